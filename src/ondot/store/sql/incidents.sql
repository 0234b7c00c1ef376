-- fragment: incident_columns
i.id, i.tenant_no, i.alert_id, i.alert, i.kind, i.reason, i.title, i.job_id, i.since, i.opened_at, i.clear_at, i.remind_at,
i.resolved_at, i.resolved_by, i.acknowledged_at, i.acknowledged_by, i.note, i.notified, i.reopened, i.causes, i.messages

-- fragment: cause_columns
c.id, c.tenant_no, c.alert_id, c.incident_id, c.job_id, c.since, c.ended_at, c.times, c.kind, c.key, c.reason, c.subject, c.message,
c.details

-- name: load_incidents :many
-- index: incident_open, incident_resolved
-- Open ones of all tenants, and those that recovered within the last seconds.
-- $1 seconds
SELECT {{incident_columns}} FROM ondot.incident i
JOIN ondot.tenant t ON t.tenant_no = i.tenant_no AND t.state <> 'DELETED'
WHERE i.resolved_at IS NULL
UNION ALL
SELECT {{incident_columns}} FROM ondot.incident i
JOIN ondot.tenant t ON t.tenant_no = i.tenant_no AND t.state <> 'DELETED'
WHERE i.resolved_at > ondot.clock() - make_interval(secs => $1::double precision);

-- name: load_causes :many
-- index: cause_live, cause_incident
-- Those that hold, and ended ones of open incidents: they may return.
SELECT {{cause_columns}} FROM ondot.cause c
JOIN ondot.tenant t ON t.tenant_no = c.tenant_no AND t.state <> 'DELETED'
WHERE c.ended_at IS NULL
UNION ALL
SELECT {{cause_columns}} FROM ondot.incident i JOIN ondot.cause c ON c.incident_id = i.id AND c.ended_at IS NOT NULL
JOIN ondot.tenant t ON t.tenant_no = c.tenant_no AND t.state <> 'DELETED'
WHERE i.resolved_at IS NULL;

-- name: put_incidents :none
-- locks: incidents (the state of alerts is locked)        index: incident_pkey
-- What a person did to them is in other columns, and stays; but an incident that opens again is not acknowledged any more.
-- $1 incidents as JSON
INSERT INTO ondot.incident AS i (id, tenant_no, alert_id, alert, kind, reason, title, job_id, since, opened_at, clear_at,
                                 remind_at, resolved_at, notified, reopened, causes, messages)
SELECT n.id, n.tenant_no, n.alert_id, n.alert, n.kind, n.reason, n.title, n.job_id, n.since, n.opened_at, n.clear_at,
       n.remind_at, n.resolved_at, n.notified, n.reopened, n.causes, n.messages
FROM jsonb_to_recordset($1::jsonb) AS n(
    id uuid, tenant_no integer, alert_id uuid, alert text, kind text, reason text, title text, job_id uuid,
    since timestamptz, opened_at timestamptz, clear_at timestamptz, remind_at timestamptz, resolved_at timestamptz,
    notified text[], reopened integer, causes integer, messages integer, is_acknowledged boolean)
ON CONFLICT (id) DO UPDATE
SET title = excluded.title, job_id = excluded.job_id, since = excluded.since, clear_at = excluded.clear_at,
    remind_at = excluded.remind_at, resolved_at = excluded.resolved_at, notified = excluded.notified,
    reopened = excluded.reopened, causes = excluded.causes, messages = i.messages + excluded.messages,
    acknowledged_at = CASE WHEN i.reopened = excluded.reopened THEN i.acknowledged_at END,
    acknowledged_by = CASE WHEN i.reopened = excluded.reopened THEN i.acknowledged_by END;

-- name: put_causes :none
-- locks: causes (the state of alerts is locked)        index: cause_pkey
-- $1 ids, $2 alert_ids, $3 incident_ids, $4 job_ids, $5 since, $6 ended_at, $7 tenant_nos, $8 times, $9 kinds, $10 keys,
-- $11 reasons, $12 subjects, $13 messages, $14 details
INSERT INTO ondot.cause (id, alert_id, incident_id, job_id, since, ended_at, tenant_no, times, kind, key, reason, subject,
                         message, details)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::timestamptz[], $6::timestamptz[], $7::integer[],
                     $8::integer[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::jsonb[])
ON CONFLICT (id) DO UPDATE
SET incident_id = excluded.incident_id, since = excluded.since, ended_at = excluded.ended_at, times = excluded.times,
    reason = excluded.reason, message = excluded.message, details = excluded.details;

-- name: remove_causes :none
-- locks: causes (the state of alerts is locked)        index: cause_pkey
-- Those that ended before they were an incident.
-- $1 ids
DELETE FROM ondot.cause WHERE id = ANY ($1::uuid[]);

-- name: list_incidents :many
-- index: incident_latest or incident_open, backwards
-- Newest first; a page is cut by id.
-- $1 tenant_no, $2 whether open (NULL: all), $3 alert_id (NULL: all), $4 job_id (NULL: all), $5 kind (NULL: all), $6 before
-- which id (NULL: from the newest), $7 limit
SELECT {{incident_columns}} FROM ondot.incident i
WHERE i.tenant_no = $1::integer AND ($2::boolean IS NULL OR (i.resolved_at IS NULL) = $2)
  AND ($3::uuid IS NULL OR i.alert_id = $3) AND ($5::text IS NULL OR i.kind = $5)
  AND ($4::uuid IS NULL OR i.job_id = $4
       OR EXISTS (SELECT FROM ondot.cause c WHERE c.incident_id = i.id AND c.job_id = $4 AND c.tenant_no = $1))
  AND ($6::uuid IS NULL OR i.id < $6)
ORDER BY i.id DESC LIMIT $7::integer;

-- name: get_incident :one
-- index: incident_pkey
-- $1 tenant_no, $2 id
SELECT {{incident_columns}} FROM ondot.incident i WHERE i.id = $2::uuid AND i.tenant_no = $1::integer;

-- name: lock_incident :one
-- locks: the incident's row (the state of alerts is locked)        index: incident_pkey
-- $1 tenant_no, $2 id
SELECT {{incident_columns}} FROM ondot.incident i WHERE i.id = $2::uuid AND i.tenant_no = $1::integer FOR UPDATE;

-- name: list_causes :many
-- index: cause_incident
-- Of incidents, the first of each.
-- $1 tenant_no, $2 incident_ids, $3 limit of each
SELECT {{cause_columns}}
FROM unnest($2::uuid[]) AS n(id) CROSS JOIN LATERAL (
    SELECT * FROM ondot.cause c WHERE c.incident_id = n.id AND c.tenant_no = $1::integer ORDER BY c.id LIMIT $3::integer
) c;

-- name: count_causes :one
-- index: cause_incident
-- How many causes of an incident hold, and how many jobs it has.
-- $1 tenant_no, $2 incident_id
SELECT count(*) FILTER (WHERE ended_at IS NULL) AS holding, count(DISTINCT job_id) AS jobs
FROM ondot.cause WHERE incident_id = $2::uuid AND tenant_no = $1::integer;

-- name: count_open_incidents :one
-- index: incident_open
-- $1 tenant_no
SELECT count(*) FROM ondot.incident WHERE tenant_no = $1::integer AND resolved_at IS NULL;

-- name: count_incidents_since :one
-- index: incident_latest
-- Of one kind, opened since an id.
-- $1 tenant_no, $2 kind, $3 from id
SELECT count(*) FROM ondot.incident WHERE tenant_no = $1::integer AND id >= $3::uuid AND kind = $2::text;

-- name: count_incidents_by_kind :many
-- index: incident_open
-- Open ones of all tenants, by kind and whether a person knows of them.
SELECT kind, acknowledged_at IS NOT NULL AS is_acknowledged, count(*) AS count
FROM ondot.incident WHERE resolved_at IS NULL GROUP BY 1, 2;

-- name: open_incidents_of_jobs :many
-- index: cause_job, incident_pkey
-- $1 tenant_no, $2 job_ids
SELECT DISTINCT ON (c.job_id, i.id) c.job_id, i.id, i.title, i.opened_at, i.acknowledged_by
FROM unnest($2::uuid[]) AS n(id)
JOIN ondot.cause c ON c.job_id = n.id AND c.ended_at IS NULL AND c.incident_id IS NOT NULL AND c.tenant_no = $1::integer
JOIN ondot.incident i ON i.id = c.incident_id AND i.tenant_no = $1 AND i.resolved_at IS NULL
ORDER BY c.job_id, i.id;

-- name: acknowledge_incident :one
-- locks: the incident's row (the state of alerts is locked)        index: incident_pkey
-- $1 tenant_no, $2 id, $3 by, $4 note (NULL: as it is), $5 messages sent with it
UPDATE ondot.incident i
SET acknowledged_at = coalesce(acknowledged_at, ondot.clock()), acknowledged_by = coalesce(acknowledged_by, $3::text),
    note = coalesce($4::text, note), messages = messages + $5::integer
WHERE i.id = $2::uuid AND i.tenant_no = $1::integer
RETURNING {{incident_columns}};

-- name: resolve_incident :one
-- locks: the incident's row (the state of alerts is locked)        index: incident_pkey
-- $1 tenant_no, $2 id, $3 by, $4 note (NULL: as it is), $5 messages sent with it
UPDATE ondot.incident i
SET resolved_at = ondot.clock(), resolved_by = $3::text, remind_at = NULL, note = coalesce($4::text, note),
    messages = messages + $5::integer
WHERE i.id = $2::uuid AND i.tenant_no = $1::integer
RETURNING {{incident_columns}};

-- name: forget_incidents :one
-- locks: incidents, SKIP LOCKED, then their causes        index: incident_resolved, cause_incident
-- $1 days, $2 limit
WITH old AS MATERIALIZED (
    SELECT id FROM ondot.incident
    WHERE resolved_at IS NOT NULL AND resolved_at < ondot.clock() - make_interval(days => least($1::integer, (
          SELECT min(retention_days) FROM ondot.tenant
      ))) AND resolved_at < ondot.clock() - make_interval(days => coalesce((
          SELECT t.retention_days FROM ondot.tenant t WHERE t.tenant_no = incident.tenant_no
      ), $1))
    ORDER BY resolved_at LIMIT $2::integer FOR UPDATE SKIP LOCKED
), causes AS (
    DELETE FROM ondot.cause WHERE incident_id = ANY (ARRAY(SELECT id FROM old))
), gone AS (
    DELETE FROM ondot.incident WHERE id = ANY (ARRAY(SELECT id FROM old)) RETURNING 1
)
SELECT count(*) AS count FROM gone;
