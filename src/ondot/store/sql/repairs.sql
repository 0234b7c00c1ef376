-- Repairs of runs. The run is locked by the transaction.

-- name: insert_repair :none
-- locks: none (new row)
-- $1 tenant_no, $2 id, $3 run_id, $4 action, $5 actor, $6 reason, $7 names of steps
INSERT INTO ondot.repair (id, run_id, at, tenant_no, action, actor, reason, steps)
VALUES ($2::uuid, $3::uuid, ondot.clock(), $1::integer, $4::text, $5::text, $6::text, $7::text[]);

-- name: keep_past_steps :none
-- locks: none (new rows)        index: step_pkey
-- Steps that a repair replaces, if they have run or have a result. One that waits was kept by the repair before.
-- $1 tenant_no, $2 run_id, $3 repair_id, $4 step_nos
INSERT INTO ondot.past_step (run_id, repair_id, execution_id, released_at, ended_at, step_no, tenant_no, generation, state,
                             reason)
SELECT run_id, $3::uuid, execution_id, released_at, ended_at, step_no, tenant_no, generation, state, reason
FROM ondot.step
WHERE run_id = $2::uuid AND tenant_no = $1::integer AND step_no = ANY ($4::integer[])
  AND (execution_id IS NOT NULL OR result IS NOT NULL) AND state <> 'WAITING';

-- name: reset_steps :none
-- locks: the run is locked already        index: step_pkey
-- What a repair changes beside the state of steps: results by hand go, and payloads may come.
-- $1 tenant_no, $2 run_id, $3 step_nos, $4 step_nos of the next, $5 a payload for these (NULL: as it was), $6 their result
UPDATE ondot.step
SET result = CASE WHEN step_no = ANY ($4::integer[]) THEN $6::text::json END,
    payload = CASE WHEN step_no = ANY ($4) AND $5::text IS NOT NULL THEN $5::json ELSE payload END,
    ended_at = NULL
WHERE run_id = $2::uuid AND tenant_no = $1::integer AND step_no = ANY ($3::integer[]);

-- name: find_live_of_steps :many
-- index: execution_other
-- Executions of these steps that have not ended.
-- $1 tenant_no, $2 run_id, $3 step_nos
SELECT id FROM ondot.execution
WHERE job_id = $2::uuid AND tenant_no = $1::integer AND origin NOT IN ('fire', 'backfill') AND origin = 'step'
  AND step_no = ANY ($3::integer[]);

-- name: find_open_ends :many
-- index: arrival_pkey
-- Which of these executions have ended, and their run has not seen it.
-- $1 tenant_no, $2 run_id, $3 ids
SELECT execution_id FROM ondot.arrival
WHERE run_id = $2::uuid AND tenant_no = $1::integer AND execution_id = ANY ($3::uuid[]);

-- name: resolve_step_letters :many
-- locks: letters        index: dead_letter_run
-- Open letters of steps that a repair changes.
-- $1 tenant_no, $2 run_id, $3 step_nos, $4 resolution, $5 actor, $6 reason
UPDATE ondot.dead_letter
SET resolved_at = ondot.clock(), resolution = $4::text, resolved_by = $5::text, resolved_reason = $6::text,
    replay_id = CASE WHEN $4 = 'replayed' THEN $2::uuid END
WHERE run_id = $2 AND tenant_no = $1::integer AND step_no = ANY ($3::integer[]) AND resolved_at IS NULL
RETURNING execution_id;

-- name: find_step_payloads :many
-- index: step_pkey
-- The payloads that retries gave.
-- $1 tenant_no, $2 run_id, $3 step_nos
SELECT step_no, payload::text AS payload FROM ondot.step
WHERE run_id = $2::uuid AND tenant_no = $1::integer AND step_no = ANY ($3::integer[]) AND payload IS NOT NULL;
