-- name: find_replayed :many
-- index: execution_pkey
-- $1 tenant_no, $2 execution ids
SELECT id, replay_of FROM ondot.execution
WHERE id = ANY ($2::uuid[]) AND tenant_no = $1::integer AND replay_of IS NOT NULL;

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
