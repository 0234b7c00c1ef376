-- Runs as the pages draw them: all steps of one run, or a few steps of many runs. See run_reads.sql for the rest.

-- name: list_thin_steps :many
-- index: step_pkey
-- $1 tenant_no, $2 run_id
SELECT step_no, state, reason, execution_id, generation, released_at, ended_at
FROM ondot.step WHERE run_id = $2::uuid AND tenant_no = $1::integer ORDER BY step_no;

-- name: list_steps_in_need :many
-- index: step_pkey
-- Steps that wait for a person: they failed, or are released and one of $3, the approvals.
-- $1 tenant_no, $2 run_id, $3 numbers, $4 limit
SELECT step_no, state, reason, execution_id, generation, released_at, ended_at
FROM ondot.step
WHERE run_id = $2::uuid AND tenant_no = $1::integer
  AND (state = 'FAILED' OR (state = 'RELEASED' AND step_no = ANY ($3::integer[])))
ORDER BY step_no LIMIT $4::integer;

-- name: list_run_executions :many
-- index: execution_other, history_job
-- The executions of the steps of a run, of all generations, without those of items. Ended ones are of the days between $3
-- and $4, which are written into the text (store.day_bounds).
-- $1 tenant_no, $2 run_id, $3 from id, $4 before id
SELECT id, step_no, state, started_at, attempt_no
FROM ondot.execution
WHERE job_id = $2::uuid AND tenant_no = $1::integer AND origin NOT IN ('fire', 'backfill') AND item_no IS NULL
UNION ALL
SELECT id, step_no, state, started_at, attempt_no
FROM ondot.history
WHERE job_id = $2 AND tenant_no = $1 AND id >= $3::uuid AND id < $4::uuid AND item_no IS NULL;

-- name: list_step_executions :many
-- index: execution_other, history_job
-- The newest executions of one step of a run: its generations, or the items of a map. Those that did not succeed first.
-- $1 tenant_no, $2 run_id, $3 step_no, $4 limit, $5 from id, $6 before id (as in list_run_executions)
SELECT id, item_no, state, started_at, ended_at, attempt_no, error, reason FROM (
    SELECT id, item_no, state, started_at, NULL::timestamptz AS ended_at, attempt_no, NULL::jsonb AS error, NULL AS reason
    FROM ondot.execution
    WHERE job_id = $2::uuid AND tenant_no = $1::integer AND origin NOT IN ('fire', 'backfill') AND step_no = $3::integer
    UNION ALL
    SELECT id, item_no, state, started_at, ended_at, attempt_no, error, reason
    FROM ondot.history
    WHERE job_id = $2 AND tenant_no = $1 AND id >= $5::uuid AND id < $6::uuid AND step_no = $3
) e
ORDER BY item_no IS NOT NULL AND state = 'SUCCEEDED', id DESC LIMIT $4::integer;

-- name: list_early_attempts :many
-- index: attempt_pkey
-- Attempts that another one followed, of these executions.
-- $1 tenant_no, $2 execution ids, $3 from id, $4 before id (as in list_run_executions)
SELECT execution_id, started_at, ended_at
FROM ondot.attempt
WHERE execution_id = ANY ($2::uuid[]) AND tenant_no = $1::integer AND execution_id >= $3::uuid AND execution_id < $4::uuid
ORDER BY execution_id, attempt_no;

-- name: list_maps :many
-- index: mapped_pkey
-- $1 tenant_no, $2 run_id
SELECT step_no, total, active, succeeded, failed FROM ondot.mapped WHERE run_id = $2::uuid AND tenant_no = $1::integer;

-- name: list_cells :many
-- index: step_pkey
-- A few steps of several runs.
-- $1 tenant_no, $2 run ids, $3 step numbers
SELECT run_id, step_no, state, reason FROM ondot.step
WHERE run_id = ANY ($2::uuid[]) AND step_no = ANY ($3::integer[]) AND tenant_no = $1::integer;
