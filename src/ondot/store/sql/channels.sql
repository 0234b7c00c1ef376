-- fragment: channel_columns
c.id, c.tenant_no, c.name, c.job_id, c.spec::text AS spec, c.version, c.created_at, c.created_by, c.updated_at, c.updated_by

-- fragment: delivery_columns
d.id, d.tenant_no, d.channel_id, d.incident_id, d.kind, d.message->>'title' AS title, d.state, d.attempts, d.answer,
d.error, d.created_at, d.tried_at, d.ended_at, coalesce(jsonb_array_length(d.joined), 0) + d.joined_more AS joined

-- name: add_channel :one
-- $1 id, $2 tenant_no, $3 name, $4 job_id, $5 spec, $6 created_by
INSERT INTO ondot.channel AS c (id, tenant_no, name, job_id, spec, created_by)
VALUES ($1::uuid, $2::integer, $3::text, $4::uuid, $5::text::jsonb, $6::text)
ON CONFLICT (tenant_no, name) DO NOTHING
RETURNING {{channel_columns}};

-- name: count_channels :one
-- index: channel_tenant_no_name_key
-- $1 tenant_no
SELECT count(*) AS count FROM ondot.channel WHERE tenant_no = $1::integer;

-- name: list_channels :many
-- index: channel_tenant_no_name_key
-- $1 tenant_no, $2 after which name, $3 limit
SELECT {{channel_columns}} FROM ondot.channel c
WHERE c.tenant_no = $1::integer AND c.name > $2::text
ORDER BY c.name LIMIT $3::integer;

-- name: find_channels :many
-- index: channel_tenant_no_name_key
-- $1 tenant_no, $2 names
SELECT {{channel_columns}} FROM ondot.channel c WHERE c.tenant_no = $1::integer AND c.name = ANY ($2::text[]);

-- name: lock_channel :one
-- locks: the channel        index: channel_tenant_no_name_key
-- $1 tenant_no, $2 name
SELECT {{channel_columns}} FROM ondot.channel c WHERE c.tenant_no = $1::integer AND c.name = $2::text FOR UPDATE;

-- name: change_channel :one
-- locks: the channel, held already        index: channel_pkey
-- $1 tenant_no, $2 id, $3 spec, $4 updated_by
UPDATE ondot.channel c
SET spec = $3::text::jsonb, version = version + 1, updated_at = ondot.clock(), updated_by = $4::text
WHERE c.id = $2::uuid AND c.tenant_no = $1::integer
RETURNING {{channel_columns}};

-- name: find_alerts_of_channel :many
-- index: alert_tenant_no_name_key
-- $1 tenant_no, $2 name
SELECT a.name FROM ondot.alert a WHERE a.tenant_no = $1::integer AND $2::text = ANY (a.notify) ORDER BY a.name LIMIT 10;

-- name: find_database_alerts :many
-- index: the few alerts of all tenants
-- Alerts that say that the database is away, with their latest incident.
SELECT a.id, a.tenant_no, a.for_s, a.notify,
       (SELECT i.id FROM ondot.incident i WHERE i.alert_id = a.id AND i.tenant_no = a.tenant_no
        ORDER BY i.id DESC LIMIT 1) AS latest_incident
FROM ondot.alert a
WHERE a."when" ? 'database' AND (a.muted_until IS NULL OR a.muted_until < ondot.clock())
ORDER BY a.tenant_no, a.id;

-- name: delete_channel :one
-- index: channel_pkey
-- Deliveries that wait end when they are due: they find no channel.
-- $1 tenant_no, $2 id
WITH gone AS (
    DELETE FROM ondot.channel WHERE id = $2::uuid AND tenant_no = $1::integer RETURNING id
), deliveries AS (
    DELETE FROM ondot.delivery WHERE channel_id = $2 AND tenant_no = $1
)
SELECT id FROM gone;

-- name: count_recent :many
-- index: delivery_channel
-- How many messages of each channel were queued within a while, without joined ones; and the id of its next delivery.
-- $1 tenant_no, $2 channel_ids, $3 seconds
SELECT c.id, ondot.new_id() AS delivery_id,
       (SELECT count(*) FROM ondot.delivery d
        WHERE d.channel_id = c.id AND d.tenant_no = $1::integer AND d.joined IS NULL
          AND d.created_at > ondot.clock() - make_interval(secs => $3::double precision)) AS count
FROM unnest($2::uuid[]) AS c(id);

-- name: join_message :one
-- locks: the open delivery        index: delivery_open
-- $1 tenant_no, $2 channel_id, $3 the message in short, $4 the most that are kept
UPDATE ondot.delivery
SET joined = CASE WHEN jsonb_array_length(joined) < $4::integer THEN joined || $3::text::jsonb ELSE joined END,
    joined_more = joined_more + CASE WHEN jsonb_array_length(joined) < $4 THEN 0 ELSE 1 END
WHERE channel_id = $2::uuid AND tenant_no = $1::integer AND is_open
RETURNING id;

-- name: add_delivery :none
-- $1 id, $2 tenant_no, $3 channel_id, $4 incident_id, $5 kind, $6 message, $7 joined (NULL: it is a single message)
INSERT INTO ondot.delivery (id, tenant_no, channel_id, incident_id, kind, message, joined, is_open)
VALUES ($1::uuid, $2::integer, $3::uuid, $4::uuid, $5::text, $6::text::jsonb, $7::text::jsonb, $7 IS NOT NULL);

-- name: queue_delivery :one
-- transition: plan        locks: none (new rows)
-- The execution of a delivery, of the installation.
-- $1 tenant_no, $2 id, $3 job_id, $4 pool_no, $5 class, $6 starts after seconds
WITH fire AS (
    SELECT $2::uuid AS execution_id, $3::uuid AS job_id, ondot.clock() AS fire_at,
           ondot.clock() + make_interval(secs => $6::double precision) AS ready_at, $1::integer AS tenant_no,
           1 AS job_version, $4::integer AS pool_no, $5::smallint AS class, 'run' AS origin, NULL::text AS stages,
           false AS is_fire, NULL::timestamptz AS start_by, NULL::json AS payload, NULL::uuid AS replay_of, {{not_awaited}}
),
{{plan}}
SELECT execution_id, ready_at FROM planned;

-- name: start_delivery :one
-- locks: the delivery        index: delivery_pkey, channel_pkey, delivery_incident
-- An attempt starts: a joined message takes no more. One that has ended stays as it is: its completion was lost. is_over:
-- the same incident has recovered since, so that the message would be wrong. is_beside: an earlier message of the incident
-- is being sent at this moment, and must come first.
-- $1 id, $2 attempt, $3 an attempt takes at most so many seconds
UPDATE ondot.delivery d
SET state = CASE WHEN d.ended_at IS NULL THEN 'SENDING' ELSE d.state END, is_open = false, attempts = $2::integer,
    tried_at = CASE WHEN d.ended_at IS NULL THEN ondot.clock() ELSE d.tried_at END
FROM ondot.channel c
WHERE d.id = $1::uuid AND c.id = d.channel_id AND c.tenant_no = d.tenant_no
RETURNING {{channel_columns}}, d.incident_id, d.kind, d.message::text AS message, d.joined::text AS joined, d.joined_more,
          d.state, d.ended_at IS NOT NULL AS has_ended,
          extract(epoch FROM ondot.clock() - d.created_at)::double precision AS age_s,
          d.kind <> 'recovered' AND EXISTS (
              SELECT FROM ondot.delivery o
              WHERE o.incident_id = d.incident_id AND o.channel_id = d.channel_id AND o.kind = 'recovered' AND o.id > d.id
          ) AS is_over,
          EXISTS (
              SELECT FROM ondot.delivery o
              WHERE o.incident_id = d.incident_id AND o.channel_id = d.channel_id AND o.id < d.id AND o.state = 'SENDING'
                AND o.tried_at > ondot.clock() - make_interval(secs => $3::double precision)
          ) AS is_beside;

-- name: end_attempt :none
-- locks: the delivery        index: delivery_pkey
-- $1 id, $2 attempt, $3 state, $4 answer, $5 error, $6 it has ended
UPDATE ondot.delivery
SET state = $3::text, answer = $4::text, error = $5::text, ended_at = CASE WHEN $6::boolean THEN ondot.clock() END
WHERE id = $1::uuid AND attempts = $2::integer AND ended_at IS NULL;

-- name: list_deliveries :many
-- index: delivery_channel or delivery_age
-- Newest first.
-- $1 tenant_no, $2 channel_id (NULL: any), $3 before which id (NULL: from the newest), $4 limit
SELECT {{delivery_columns}}, c.name AS channel FROM ondot.delivery d JOIN ondot.channel c ON c.id = d.channel_id
WHERE d.tenant_no = $1::integer AND ($2::uuid IS NULL OR d.channel_id = $2)
  AND ($3::uuid IS NULL OR d.id < $3)
ORDER BY d.created_at DESC, d.id DESC LIMIT $4::integer;

-- name: list_deliveries_of_incident :many
-- index: delivery_incident, delivery_joined
-- Newest first: its own, and joined ones that contain a message of it.
-- $1 tenant_no, $2 incident_id, $3 from when on, $4 limit
SELECT * FROM (
    SELECT {{delivery_columns}}, c.name AS channel FROM ondot.delivery d JOIN ondot.channel c ON c.id = d.channel_id
    WHERE d.tenant_no = $1::integer AND d.incident_id = $2::uuid
    UNION ALL
    SELECT {{delivery_columns}}, c.name AS channel FROM ondot.delivery d JOIN ondot.channel c ON c.id = d.channel_id
    WHERE d.tenant_no = $1 AND d.joined IS NOT NULL AND d.created_at >= $3::timestamptz
      AND d.joined @> jsonb_build_array(jsonb_build_object('incident_id', $2::text))
) x
ORDER BY created_at DESC, id DESC LIMIT $4::integer;

-- name: get_delivery :one
-- index: delivery_pkey
-- $1 tenant_no, $2 id
SELECT {{delivery_columns}}, c.name AS channel FROM ondot.delivery d JOIN ondot.channel c ON c.id = d.channel_id
WHERE d.tenant_no = $1::integer AND d.id = $2::uuid;

-- name: end_abandoned_deliveries :many
-- locks: deliveries, SKIP LOCKED        index: delivery_unended, execution_pkey, channel_pkey
-- Deliveries whose execution has ended without a word about them: the schedulers that ran it were lost too often.
-- $1 error, $2 limit
WITH ended AS (
    UPDATE ondot.delivery SET state = 'FAILED', error = $1::text, ended_at = ondot.clock(), is_open = false
    WHERE ctid = ANY (ARRAY(
        SELECT d.ctid FROM ondot.delivery d
        WHERE d.ended_at IS NULL AND NOT EXISTS (SELECT FROM ondot.execution e WHERE e.id = d.id)
        ORDER BY d.created_at LIMIT $2::integer FOR UPDATE SKIP LOCKED
    )) RETURNING channel_id, tenant_no, message
)
SELECT {{channel_columns}}, d.message::text AS message
FROM ended d JOIN ondot.channel c ON c.id = d.channel_id AND c.tenant_no = d.tenant_no;

-- name: forget_deliveries :one
-- locks: old deliveries, SKIP LOCKED        index: delivery_age
-- $1 days, $2 limit
WITH gone AS (
    DELETE FROM ondot.delivery WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM ondot.delivery
        WHERE created_at < ondot.clock() - make_interval(days => least($1::integer, (
              SELECT min(retention_days) FROM ondot.tenant
          ))) AND created_at < ondot.clock() - make_interval(days => coalesce((
              SELECT t.retention_days FROM ondot.tenant t WHERE t.tenant_no = delivery.tenant_no
          ), $1))
        ORDER BY created_at LIMIT $2::integer FOR UPDATE SKIP LOCKED
    )) RETURNING 1
)
SELECT count(*) AS count FROM gone;

-- name: retire_channel_jobs :none
-- index: job of the installation, which are few
-- Jobs of channels that are gone, of deleted tenants too; and the dead letters of deliveries, which nobody replays.
-- $1 tenant_no of the installation
WITH letters AS (
    UPDATE ondot.dead_letter
    SET resolved_at = ondot.clock(), resolution = 'discarded', resolved_by = 'ondot'
    WHERE tenant_no = $1::integer AND resolved_at IS NULL
)
UPDATE ondot.job j SET state = 'DELETED', updated_at = ondot.clock()
WHERE j.tenant_no = $1 AND j.state = 'ACTIVE' AND NOT EXISTS (SELECT FROM ondot.channel c WHERE c.job_id = j.id);

-- name: has_due_deliveries :one
-- index: pool_name_key, ready_pkey
-- $1 within seconds
SELECT {{is_delivery_due}} <= ondot.clock() + make_interval(secs => $1::double precision)) AS is_due;
