-- name: add_event_wait :none
-- $1 tenant_no, $2 execution_id, $3 run_id, $4 type, $5 rule
INSERT INTO ondot.event_wait (execution_id, run_id, tenant_no, type, rule)
VALUES ($2::uuid, $3::uuid, $1::integer, $4::text, $5::text::json)
ON CONFLICT DO NOTHING;

-- name: find_event_waits :many
-- index: event_wait_type
-- In the order of their tokens, in which they are ended.
-- $1 tenant_no, $2 types
SELECT execution_id, run_id, type, rule FROM ondot.event_wait
WHERE tenant_no = $1::integer AND type = ANY ($2::text[]) ORDER BY execution_id;

-- name: remove_event_waits :none
-- index: event_wait_pkey
-- $1 tenant_no, $2 execution_ids
DELETE FROM ondot.event_wait WHERE execution_id = ANY ($2::uuid[]) AND tenant_no = $1::integer;

-- name: forget_event_waits :one
-- index: event_wait_pkey, step_wait_pkey
-- Housekeeping: those of steps that wait no longer.
-- $1 limit
WITH gone AS (
    DELETE FROM ondot.event_wait WHERE ctid = ANY (ARRAY(
        SELECT w.ctid FROM ondot.event_wait w
        WHERE NOT EXISTS (SELECT FROM ondot.step_wait s
                          WHERE s.run_id = w.run_id AND s.execution_id = w.execution_id AND s.ended_at IS NULL)
        LIMIT $1::integer FOR UPDATE SKIP LOCKED
    ))
    RETURNING 1
)
SELECT count(*) AS count FROM gone;
