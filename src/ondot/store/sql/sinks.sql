-- fragment: sink_columns
k.id, k.tenant_no, k.name, k.spec, k.is_paused, k.version, k.created_at, k.created_by, k.updated_at, k.updated_by,
t.position, t.sent, t.shortened, t.refused, t.dropped, t.sent_at, t.error, t.error_at, t.failing_since, t.tries, t.retry_at

-- fragment: events_in
-- How many events rows of the outbox `o` have.
coalesce(sum(cardinality(o.job_ids)), 0)::bigint

-- fragment: last_no
-- The last number that any row of the outbox was given, committed or not.
coalesce(pg_sequence_last_value('ondot.outbox_no_seq'), 0)

-- name: put_sink :one
-- locks: the sink's row
-- A new sink begins after all that is in the outbox; a changed one keeps its position.
-- $1 id, $2 tenant_no, $3 name, $4 types, $5 spec, $6 by
WITH put AS (
    INSERT INTO ondot.sink AS k (id, tenant_no, name, types, spec, created_by)
    VALUES ($1::uuid, $2::integer, $3::text, $4::text[], $5::json, $6::text)
    ON CONFLICT (tenant_no, name) DO UPDATE
    SET types = excluded.types, spec = excluded.spec, version = k.version + 1, updated_at = ondot.clock(),
        updated_by = excluded.created_by
    RETURNING k.id, k.tenant_no, k.version
), begun AS (
    INSERT INTO ondot.sink_state (sink_id, tenant_no, position)
    SELECT p.id, p.tenant_no, {{last_no}} FROM put p WHERE p.id = $1
    RETURNING sink_id
), released AS (
    UPDATE ondot.sink_state t SET tries = 0, retry_at = NULL FROM put p WHERE t.sink_id = p.id AND t.tenant_no = $2
)
SELECT id, version FROM put;

-- name: lock_sink :one
-- locks: the sink's row        index: sink_tenant_no_name_key
-- $1 tenant_no, $2 name
SELECT id, spec, is_paused FROM ondot.sink WHERE tenant_no = $1::integer AND name = $2::text FOR UPDATE;

-- name: count_sinks :one
-- index: sink_tenant_no_name_key
-- $1 tenant_no
SELECT count(*) FROM ondot.sink WHERE tenant_no = $1::integer;

-- name: list_sinks :many
-- index: sink_tenant_no_name_key, sink_state_pkey
-- By name.
-- $1 tenant_no, $2 after, $3 limit, $4 name (NULL: all)
SELECT {{sink_columns}}
FROM ondot.sink k JOIN ondot.sink_state t ON t.sink_id = k.id AND t.tenant_no = $1
WHERE k.tenant_no = $1::integer AND k.name > $2::text AND ($4::text IS NULL OR k.name = $4)
ORDER BY k.name LIMIT $3::integer;

-- name: list_all_sinks :many
-- index: sink_pkey, sink_state_pkey
-- Of all tenants; those that fail or are behind come first.
-- $1 limit
SELECT {{sink_columns}}
FROM ondot.sink k JOIN ondot.sink_state t ON t.sink_id = k.id AND t.tenant_no = k.tenant_no
JOIN ondot.tenant n ON n.tenant_no = k.tenant_no AND n.state <> 'DELETED'
ORDER BY t.failing_since NULLS LAST, t.position, k.id LIMIT $1::integer;

-- name: measure_lags :many
-- index: outbox_pkey
-- How many events wait for each sink, up to about a limit of rows, and since when the oldest does.
-- $1 ids of sinks, $2 tenant_nos, $3 limit
SELECT n.id, w.events, w.since, extract(epoch FROM ondot.clock() - w.since)::double precision AS behind_s,
       (SELECT name FROM ondot.tenant WHERE tenant_no = k.tenant_no) AS tenant
FROM unnest($1::uuid[], $2::integer[]) AS n(id, tenant_no)
JOIN ondot.sink k ON k.id = n.id AND k.tenant_no = n.tenant_no
JOIN ondot.sink_state t ON t.sink_id = k.id AND t.tenant_no = k.tenant_no
CROSS JOIN LATERAL (
    SELECT {{events_in}} AS events, min(o.at) AS since
    FROM (SELECT b.job_ids, b.at, b.type FROM ondot.outbox b WHERE b.tenant_no = k.tenant_no AND b.no > t.position
          ORDER BY b.no LIMIT $3::integer) o
    WHERE k.types @> ARRAY[o.type]
) w;

-- name: set_sink_paused :none
-- $1 tenant_no, $2 id, $3 is_paused, $4 by
WITH set AS (
    UPDATE ondot.sink SET is_paused = $3::boolean, updated_at = ondot.clock(), updated_by = $4::text
    WHERE tenant_no = $1::integer AND id = $2::uuid
    RETURNING id
)
UPDATE ondot.sink_state t SET tries = 0, retry_at = NULL, failing_since = NULL FROM set s
WHERE t.sink_id = s.id AND t.tenant_no = $1;

-- name: delete_sink :none
-- What waits for it alone, housekeeping removes.
-- $1 tenant_no, $2 id
WITH gone AS (
    DELETE FROM ondot.sink WHERE tenant_no = $1::integer AND id = $2::uuid RETURNING id
)
DELETE FROM ondot.sink_state t USING gone g WHERE t.sink_id = g.id AND t.tenant_no = $1;

-- name: post_job_events :none
-- index: sink_tenant_no_name_key
-- Events of jobs. Nothing is written if no sink of the tenant wants them.
-- $1 tenant_no, $2 type, $3 job_ids, $4 details
INSERT INTO ondot.outbox (tenant_no, type, job_ids, detail)
SELECT $1::integer, $2::text, ARRAY[n.id], n.detail::json
FROM unnest($3::uuid[], $4::text[]) AS n(id, detail)
WHERE EXISTS (SELECT FROM ondot.sink s WHERE s.tenant_no = $1 AND s.types @> ARRAY[$2]);

-- name: post_test_event :one
-- $1 tenant_no, $2 id of the sink, $3 detail
WITH released AS (
    UPDATE ondot.sink_state SET tries = 0, retry_at = NULL WHERE tenant_no = $1::integer AND sink_id = $2::uuid
)
INSERT INTO ondot.outbox (tenant_no, type, job_ids, detail) VALUES ($1, 'ondot.sink.test', ARRAY[$2], $3::json)
RETURNING no;

-- name: read_last_no :one
SELECT {{last_no}} AS no;

-- name: read_snapshot :one
-- Transactions below xmin have ended; those from xmax on had not begun to write.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS xmin,
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS xmax;

-- name: find_due_sinks :many
-- index: sink_pkey, sink_state_pkey
-- Sinks with rows of their tenant up to a number that they have not seen, whatever their type.
-- $1 up to this number, $2 limit
SELECT {{sink_columns}}
FROM ondot.sink k JOIN ondot.sink_state t ON t.sink_id = k.id AND t.tenant_no = k.tenant_no
JOIN ondot.tenant n ON n.tenant_no = k.tenant_no AND n.state = 'ACTIVE'
WHERE NOT k.is_paused AND t.position < $1::bigint AND (t.retry_at IS NULL OR t.retry_at <= ondot.clock())
  AND EXISTS (SELECT FROM ondot.outbox o WHERE o.tenant_no = k.tenant_no AND o.no > t.position AND o.no <= $1)
ORDER BY t.retry_at NULLS FIRST, k.id LIMIT $2::integer;

-- name: read_outbox :many
-- index: outbox_pkey
-- Rows in their order, until they have enough events.
-- $1 tenant_no, $2 after, $3 up to this number, $4 events
SELECT no, at, type, job_ids, execution_ids, attempt_nos, retry_ats, detail
FROM (SELECT *, sum(cardinality(job_ids)) OVER (ORDER BY no) - cardinality(job_ids) AS before
      FROM (SELECT * FROM ondot.outbox
            WHERE tenant_no = $1::integer AND no > $2::bigint AND no <= $3::bigint ORDER BY no LIMIT $4::integer) r) o
WHERE before < $4
ORDER BY no;

-- name: advance_sink :one
-- locks: the sink's state        index: sink_state_pkey
-- After an acknowledgement. Two senders may have sent the same: the position never goes back.
-- $1 tenant_no, $2 id, $3 position, $4 sent, $5 shortened, $6 refused, $7 why the last was refused (NULL: none was)
UPDATE ondot.sink_state
SET position = greatest(position, $3::bigint), sent = sent + $4::bigint, shortened = shortened + $5::bigint,
    refused = refused + $6::bigint, sent_at = CASE WHEN $4 > 0 THEN ondot.clock() ELSE sent_at END,
    error = coalesce($7::text, error), error_at = CASE WHEN $7 IS NULL THEN error_at ELSE ondot.clock() END,
    failing_since = NULL, tries = 0, retry_at = NULL
WHERE tenant_no = $1::integer AND sink_id = $2::uuid
RETURNING position;

-- name: fail_sink :one
-- locks: the sink's state        index: sink_state_pkey
-- $1 tenant_no, $2 id, $3 error, $4 try again in seconds
UPDATE ondot.sink_state
SET error = $3::text, error_at = ondot.clock(), failing_since = coalesce(failing_since, ondot.clock()), tries = tries + 1,
    retry_at = ondot.clock() + make_interval(secs => $4::double precision)
WHERE tenant_no = $1::integer AND sink_id = $2::uuid
RETURNING failing_since, tries;

-- name: find_outbox_tenants :many
-- index: outbox_pkey
-- Which tenants have rows, by jumps from tenant to tenant.
WITH RECURSIVE tenants AS (
    (SELECT tenant_no FROM ondot.outbox ORDER BY tenant_no LIMIT 1)
    UNION ALL
    SELECT (SELECT o.tenant_no FROM ondot.outbox o WHERE o.tenant_no > t.tenant_no ORDER BY o.tenant_no LIMIT 1)
    FROM tenants t WHERE t.tenant_no IS NOT NULL
)
SELECT tenant_no FROM tenants WHERE tenant_no IS NOT NULL;

-- name: remove_sent :one
-- index: outbox_pkey, sink_state_tenant
-- Rows that every sink of the tenant has; all of them if it has no sink.
-- $1 tenant_no, $2 limit
WITH removed AS (
    DELETE FROM ondot.outbox WHERE tenant_no = $1::integer AND no = ANY (ARRAY(
        SELECT o.no FROM ondot.outbox o
        WHERE o.tenant_no = $1
          AND o.no <= coalesce((SELECT min(t.position) FROM ondot.sink_state t WHERE t.tenant_no = $1), 9223372036854775807)
        ORDER BY o.no LIMIT $2::integer
    ))
    RETURNING no
)
SELECT count(*) FROM removed;

-- name: find_oldest :one
-- index: outbox_pkey
-- The first row of a tenant that is younger than some seconds, if its first row is older.
-- $1 tenant_no, $2 seconds
SELECT (SELECT max(o.no) FROM ondot.outbox o
        WHERE o.tenant_no = $1 AND o.at < ondot.clock() - make_interval(secs => $2)) AS through
FROM (SELECT at FROM ondot.outbox WHERE tenant_no = $1::integer ORDER BY no LIMIT 1) f
WHERE f.at < ondot.clock() - make_interval(secs => $2::double precision);

-- name: drop_old :many
-- locks: states of sinks        index: sink_state_tenant, outbox_pkey
-- Moves the sinks of a tenant past rows that are too old, and counts the events that they miss.
-- $1 tenant_no, $2 through this number
UPDATE ondot.sink_state t
SET dropped = t.dropped + (
        SELECT {{events_in}} FROM ondot.outbox o
        WHERE o.tenant_no = $1 AND o.no > t.position AND o.no <= $2 AND k.types @> ARRAY[o.type]),
    position = $2
FROM ondot.sink k
WHERE k.id = t.sink_id AND k.tenant_no = $1 AND t.tenant_no = $1::integer AND t.position < $2::bigint
RETURNING k.id, k.name, t.dropped;

-- name: find_ended_facts :many
-- index: history_pkey
-- What events say of executions that have ended. The bounds leave the partitions of a few days.
-- $1 tenant_no, $2 ids, $3 from id, $4 through id, $5 longest result in bytes (0: none)
SELECT h.id, h.job_version, (SELECT p.name FROM ondot.pool p WHERE p.pool_no = h.pool_no) AS pool, h.state, h.origin,
       h.reason, h.attempt_no, h.fire_at, h.started_at, h.ended_at,
       h.labels, h.error, CASE WHEN $5::integer > 0 AND octet_length(h.result::text) <= $5 THEN h.result END AS result,
       $5 > 0 AND octet_length(h.result::text) > $5 AS is_cut
FROM unnest($2::uuid[]) AS n(id)
CROSS JOIN LATERAL (
    SELECT * FROM ondot.history WHERE id = n.id AND id BETWEEN $3::uuid AND $4::uuid AND tenant_no = $1::integer LIMIT 1
) h;

-- name: find_attempt_facts :many
-- index: execution_pkey, history_pkey, attempt_pkey
-- What events say of executions that started or are retried; they may have ended since.
-- $1 tenant_no, $2 ids, $3 attempt_nos, $4 from id, $5 through id
SELECT n.id, n.attempt_no, coalesce(e.job_version, h.job_version) AS job_version, 
       (SELECT p.name FROM ondot.pool p WHERE p.pool_no = coalesce(e.pool_no, h.pool_no)) AS pool,
       coalesce(e.origin, h.origin) AS origin, coalesce(e.fire_at, h.fire_at) AS fire_at, a.error
FROM unnest($2::uuid[], $3::integer[]) AS n(id, attempt_no)
LEFT JOIN LATERAL (
    SELECT * FROM ondot.execution WHERE id = n.id AND tenant_no = $1::integer LIMIT 1
) e ON true
LEFT JOIN LATERAL (
    SELECT * FROM ondot.history WHERE id = n.id AND id BETWEEN $4::uuid AND $5::uuid AND tenant_no = $1 LIMIT 1
) h ON true
LEFT JOIN LATERAL (
    SELECT error FROM ondot.attempt
    WHERE execution_id = n.id AND execution_id BETWEEN $4 AND $5 AND attempt_no = n.attempt_no AND tenant_no = $1 LIMIT 1
) a ON true;

-- name: find_facts_of_jobs :many
-- index: job_pkey, job_once_pkey
-- $1 tenant_no, $2 ids
SELECT n.id, coalesce(j.name, o.name) AS name, coalesce(j.labels, o.labels) AS labels
FROM unnest($2::uuid[]) AS n(id)
LEFT JOIN LATERAL (SELECT name, labels FROM ondot.job WHERE id = n.id AND tenant_no = $1::integer LIMIT 1) j ON true
LEFT JOIN LATERAL (
    SELECT name, labels FROM ondot.job_once WHERE id = n.id AND id = ANY ($2) AND tenant_no = $1 LIMIT 1
) o ON true;
