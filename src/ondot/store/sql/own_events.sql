-- name: emit_event :none
-- index: subscription_own
-- An event of ondot's own, outside of the end of an execution. Nothing is written if no job of the tenant starts by such
-- events.
-- $1 tenant_no, $2 type, $3 job_id, $4 execution_id (NULL: it is about the job), $5 reason
INSERT INTO ondot.own_event (at, tenant_no, type, job_id, execution_id, reason)
SELECT ondot.clock(), $1::integer, $2::text, $3::uuid, $4::uuid, $5::text
WHERE EXISTS (SELECT FROM ondot.subscription s
              WHERE s.tenant_no = $1 AND s.type = $2 AND s.type LIKE 'ondot.%');

-- name: read_followed :one
-- index: subscription_own, sink_pkey
-- Whether any job of the installation starts by successes of others, and whether sinks send successes and starts.
SELECT EXISTS (SELECT FROM ondot.subscription
               WHERE type = 'ondot.execution.succeeded' AND type LIKE 'ondot.%') AS start_jobs,
       EXISTS (SELECT FROM ondot.sink WHERE types @> ARRAY['ondot.execution.succeeded']) AS successes_are_sent,
       EXISTS (SELECT FROM ondot.sink WHERE types @> ARRAY['ondot.execution.started']) AS starts_are_sent;

-- name: find_own_tenants :many
-- index: own_event_tenant
-- Which tenants have events that wait, by jumps from tenant to tenant.
-- $1 limit
WITH RECURSIVE tenants AS (
    (SELECT tenant_no FROM ondot.own_event ORDER BY tenant_no LIMIT 1)
    UNION ALL
    SELECT (SELECT o.tenant_no FROM ondot.own_event o WHERE o.tenant_no > t.tenant_no ORDER BY o.tenant_no LIMIT 1)
    FROM tenants t WHERE t.tenant_no IS NOT NULL
)
SELECT tenant_no FROM tenants WHERE tenant_no IS NOT NULL LIMIT $1::integer;

-- name: take_own_events :many
-- locks: own events, SKIP LOCKED        index: own_event_tenant
-- In their order. The transaction that removes them starts what they match.
-- $1 tenant_no, $2 limit
DELETE FROM ondot.own_event WHERE tenant_no = $1::integer AND no = ANY (ARRAY(
    SELECT no FROM ondot.own_event WHERE tenant_no = $1 ORDER BY no LIMIT $2::integer FOR UPDATE SKIP LOCKED
))
RETURNING no, at, type, job_id, execution_id, reason;

-- name: find_ended :many
-- index: history_pkey
-- What is known of executions that have ended. Large results are left out. The bounds leave the partitions of a few days.
-- $1 tenant_no, $2 ids, $3 from id, $4 through id, $5 longest result in bytes
SELECT h.id, h.job_version, h.state, h.origin, h.reason, h.attempt_no, h.fire_at, h.ended_at, h.error,
       CASE WHEN octet_length(h.result::text) <= $5::integer THEN h.result END AS result,
       octet_length(h.result::text) > $5 AS is_cut
FROM unnest($2::uuid[]) AS n(id)
CROSS JOIN LATERAL (
    SELECT * FROM ondot.history WHERE id = n.id AND id BETWEEN $3::uuid AND $4::uuid AND tenant_no = $1::integer LIMIT 1
) h;

-- name: find_hops :many
-- index: event_match_execution, event_pkey
-- How many of ondot's own events led to these executions, one after the other. An event is older than what it starts, and
-- its id is in the same range.
-- $1 tenant_no, $2 execution ids, $3 from id, $4 through id
SELECT m.execution_id AS id, max((e.body ->> 'ondothops')::integer) AS hops
FROM ondot.event_match m
JOIN ondot.event e ON e.id = m.event_id AND e.id BETWEEN $3::uuid AND $4::uuid
WHERE m.execution_id = ANY ($2::uuid[]) AND m.tenant_no = $1::integer AND m.event_id BETWEEN $3 AND $4
  AND e.body ->> 'ondothops' ~ '^[0-9]{1,4}$'
GROUP BY m.execution_id;
