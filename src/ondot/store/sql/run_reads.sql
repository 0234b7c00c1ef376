-- Runs and their steps as they are shown. What changes them is in runs.sql and steps.sql.

-- name: get_run :one
-- index: run_pkey
-- $1 tenant_no, $2 id
SELECT id, job_id, job_version, parent_run_id, parent_step_no, parent_item_no, rerun_of, depth, state, verdict, reason,
       is_paused, started_at, blocked_at, ended_at, look_at, waiting, active, succeeded, failed, skipped, blocked,
       superseded
FROM ondot.run WHERE id = $2::uuid AND tenant_no = $1::integer;

-- name: list_runs :many
-- index: run_tenant, or run_job, backwards
-- Newest first.
-- $1 tenant_no, $2 job_id (NULL: of all), $3 states (NULL: any), $4 before id (NULL: from the newest), $5 limit,
-- $6 ids (NULL: any), $7 parent_run_id (NULL: any)
SELECT id, job_id, job_version, parent_run_id, parent_step_no, parent_item_no, rerun_of, depth, state, verdict, reason,
       is_paused, started_at, blocked_at, ended_at, look_at, waiting, active, succeeded, failed, skipped, blocked,
       superseded
FROM ondot.run
WHERE tenant_no = $1::integer AND ($2::uuid IS NULL OR job_id = $2) AND ($3::text[] IS NULL OR state = ANY ($3))
  AND ($4::uuid IS NULL OR id < $4) AND ($6::uuid[] IS NULL OR id = ANY ($6))
  AND ($7::uuid IS NULL OR parent_run_id = $7)
ORDER BY id DESC LIMIT $5::integer;

-- name: list_steps :many
-- index: step_pkey
-- In the order of their numbers. Results of more bytes than $6 are left out.
-- $1 tenant_no, $2 run_id, $3 after this number, $4 limit, $5 states (NULL: any), $6 the most bytes of a result
SELECT step_no, execution_id, released_at, ended_at, generation, parents_succeeded, parents_failed, parents_skipped,
       state, reason, CASE WHEN octet_length(result::text) <= $6::integer THEN result END AS result,
       octet_length(result::text) AS result_bytes
FROM ondot.step
WHERE run_id = $2::uuid AND tenant_no = $1::integer AND step_no > $3::integer
  AND ($5::text[] IS NULL OR state = ANY ($5))
ORDER BY step_no LIMIT $4::integer;

-- name: get_step :one
-- index: step_pkey
-- $1 tenant_no, $2 run_id, $3 step_no
SELECT step_no, execution_id, released_at, ended_at, generation, parents_succeeded, parents_failed, parents_skipped,
       state, reason, result, octet_length(result::text) AS result_bytes
FROM ondot.step WHERE run_id = $2::uuid AND step_no = $3::integer AND tenant_no = $1::integer;

-- name: list_step_times :many
-- index: step_pkey
-- All steps, thin: for the critical path.
-- $1 tenant_no, $2 run_id
SELECT step_no, state, released_at, ended_at FROM ondot.step
WHERE run_id = $2::uuid AND tenant_no = $1::integer ORDER BY step_no;

-- name: find_live_steps :many
-- index: execution_pkey
-- $1 tenant_no, $2 ids of executions
SELECT e.id, e.state, e.ready_at, e.started_at, e.attempt_no, e.cancel_at, e.worker_id, NULL::jsonb AS error,
       NULL::json AS result, NULL::integer AS result_bytes
FROM unnest($2::uuid[]) AS n(id) JOIN ondot.execution e ON e.id = n.id AND e.tenant_no = $1::integer;

-- name: find_ended_steps :many
-- index: history_pkey
-- The bounds are written into the text (store.day_bounds), so that only the tables of their days are planned and locked.
-- Results of more bytes than $3 are left out.
-- $1 tenant_no, $2 ids of executions, $3 the most bytes of a result, $4 from id, $5 before id
SELECT h.id, h.state, h.ready_at, h.started_at, h.attempt_no, NULL::timestamptz AS cancel_at, h.worker_id, h.error,
       CASE WHEN octet_length(h.result::text) <= $3::integer THEN h.result END AS result,
       octet_length(h.result::text) AS result_bytes
FROM unnest($2::uuid[]) AS n(id)
JOIN ondot.history h ON h.id = n.id AND h.tenant_no = $1::integer AND h.id >= $4::uuid AND h.id < $5::uuid;

-- name: list_past_steps :many
-- index: past_step_pkey
-- $1 tenant_no, $2 run_id, $3 step_no
SELECT step_no, execution_id, released_at, ended_at, generation, state, reason, repair_id FROM ondot.past_step
WHERE run_id = $2::uuid AND step_no = $3::integer AND tenant_no = $1::integer ORDER BY repair_id;

-- name: list_repairs :many
-- index: repair_run, backwards
-- $1 tenant_no, $2 run_id, $3 limit
SELECT id, at, action, actor, reason, steps FROM ondot.repair
WHERE run_id = $2::uuid AND tenant_no = $1::integer ORDER BY id DESC LIMIT $3::integer;
