-- Steps that wait for a time, an event or a person, and their ends. An end is an arrival that names the wait.

-- fragment: insert_into_arrival
-- FROM follows.
INSERT INTO ondot.arrival (run_id, execution_id, at, tenant_no, step_no, state)
SELECT run_id, execution_id, ondot.clock(), tenant_no, step_no, state

-- name: insert_step_wait :one
-- locks: none (the run is locked)        index: step_wait_pkey
-- $1 tenant_no, $2 run_id, $3 step_no, $4 execution_id, $5 kind, $6 role, $7 seconds until it is due (NULL: never)
INSERT INTO ondot.step_wait (run_id, execution_id, due_at, step_no, tenant_no, kind, role)
VALUES ($2::uuid, $4::uuid, ondot.clock() + make_interval(secs => $7::double precision), $3::integer, $1::integer, $5::text,
        $6::text)
ON CONFLICT (run_id, execution_id) DO NOTHING
RETURNING due_at;

-- name: end_due_waits :many
-- locks: due waits, SKIP LOCKED        index: step_wait_due
-- A time that is over ends its step well; an event or a person that did not come in time ends it badly.
-- $1 limit
WITH due AS (
    SELECT run_id, execution_id FROM ondot.step_wait
    WHERE ended_at IS NULL AND due_at IS NOT NULL AND due_at <= ondot.clock()
    ORDER BY due_at LIMIT $1::integer FOR UPDATE SKIP LOCKED
), ended AS (
    UPDATE ondot.step_wait w
    SET ended_at = ondot.clock(), state = CASE WHEN w.kind = 'time' THEN 'SUCCEEDED' ELSE 'FAILED' END,
        reason = CASE w.kind WHEN 'event' THEN 'no event arrived in time'
                             WHEN 'approval' THEN 'it was not approved in time' END
    FROM due d WHERE w.run_id = d.run_id AND w.execution_id = d.execution_id
    RETURNING w.run_id, w.execution_id, w.tenant_no, w.step_no, w.state
), arrived AS (
    {{insert_into_arrival}}
    FROM ended
)
SELECT DISTINCT run_id FROM ended;

-- name: end_wait :one
-- locks: the wait        index: step_wait_pkey
-- An event or a person ends a step. NULL: it waits no longer, so nothing changes.
-- $1 tenant_no, $2 run_id, $3 execution_id, $4 state, $5 reason, $6 result
WITH ended AS (
    UPDATE ondot.step_wait SET ended_at = ondot.clock(), state = $4::text, reason = $5::text, result = $6::text::json
    WHERE run_id = $2::uuid AND execution_id = $3::uuid AND tenant_no = $1::integer AND ended_at IS NULL
    RETURNING run_id, execution_id, tenant_no, step_no, state
), arrived AS (
    {{insert_into_arrival}}
    FROM ended
)
SELECT run_id FROM ended;

-- name: stop_waits :none
-- index: step_wait_pkey
-- The run ends, or these steps start from scratch: nothing is waited for any more.
-- $1 tenant_no, $2 run_id, $3 execution_ids
UPDATE ondot.step_wait SET ended_at = ondot.clock()
WHERE run_id = $2::uuid AND execution_id = ANY ($3::uuid[]) AND tenant_no = $1::integer AND ended_at IS NULL;

-- name: find_wait :one
-- index: step_wait_pkey
-- $1 tenant_no, $2 run_id, $3 execution_id
SELECT execution_id, step_no, kind, role, due_at, ended_at, state, reason, result::text AS result FROM ondot.step_wait
WHERE run_id = $2::uuid AND execution_id = $3::uuid AND tenant_no = $1::integer;

-- name: find_waits :many
-- index: step_wait_pkey
-- $1 tenant_no, $2 run_id, $3 execution_ids
SELECT execution_id, step_no, kind, role, due_at, ended_at, state, reason, result::text AS result FROM ondot.step_wait
WHERE run_id = $2::uuid AND execution_id = ANY ($3::uuid[]) AND tenant_no = $1::integer;
