-- name: put_traces :none
-- $1 tenant_no, $2 execution ids, $3 traceparent, $4 tracestate (NULL: none)
INSERT INTO ondot.trace (execution_id, tenant_no, traceparent, tracestate)
SELECT n.id, $1::integer, $3::text, $4::text FROM unnest($2::uuid[]) AS n(id);

-- name: find_traces :many
-- index: trace_pkey
-- $1 execution ids, which a worker has leased
SELECT execution_id, traceparent, tracestate FROM ondot.trace WHERE execution_id = ANY ($1::uuid[]);

-- name: find_replayed :many
-- index: execution_pkey, run_pkey
-- $1 tenant_no, $2 execution ids
SELECT e.id, coalesce(e.replay_of, r.rerun_of) AS replay_of
FROM ondot.execution e LEFT JOIN ondot.run r ON r.id = e.id AND r.tenant_no = e.tenant_no
WHERE e.id = ANY ($2::uuid[]) AND e.tenant_no = $1::integer AND coalesce(e.replay_of, r.rerun_of) IS NOT NULL;

-- name: find_parents :many
-- index: run_pkey
-- $1 tenant_no, $2 ids of runs
SELECT c.id, c.parent_run_id, p.job_id, p.job_version
FROM ondot.run c JOIN ondot.run p ON p.id = c.parent_run_id AND p.tenant_no = c.tenant_no
WHERE c.id = ANY ($2::uuid[]) AND c.tenant_no = $1::integer;

-- name: find_event_traces :many
-- index: event_match_execution, event_pkey
-- The traceparent of the events that started these executions, if they have one. An event is older than what it starts,
-- and its id is in the same range.
-- $1 tenant_no, $2 execution ids, $3 from id, $4 through id
SELECT m.execution_id AS id, max(e.body ->> 'traceparent') AS traceparent
FROM ondot.event_match m
JOIN ondot.event e ON e.id = m.event_id AND e.id BETWEEN $3::uuid AND $4::uuid
WHERE m.execution_id = ANY ($2::uuid[]) AND m.tenant_no = $1::integer AND m.event_id BETWEEN $3 AND $4
  AND e.body ->> 'traceparent' IS NOT NULL
GROUP BY m.execution_id;

-- name: find_backfill_traces :many
-- index: backfill_job
-- The traceparent of the request for the newest backfill that has this fire, if it had one.
-- $1 tenant_no, $2 execution ids, $3 job_ids, $4 fire_ats
SELECT n.id, b.traceparent FROM unnest($2::uuid[], $3::uuid[], $4::timestamptz[]) AS n(id, job_id, fire_at)
CROSS JOIN LATERAL (
    SELECT traceparent FROM ondot.backfill
    WHERE job_id = n.job_id AND tenant_no = $1::integer AND n.fire_at BETWEEN from_at AND to_at
    ORDER BY id DESC LIMIT 1
) b
WHERE b.traceparent IS NOT NULL;
