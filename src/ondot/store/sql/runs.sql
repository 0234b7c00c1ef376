-- Runs of workflows. Lock order: run → gate → waiting → ready → execution. Only the transaction that has a run's row
-- locked changes the run, its steps and its arrivals.

-- fragment: run_columns
id, job_id, tenant_no, job_version, state, fire_at, class, own_payload, is_paused, is_counted, verdict, reason, started_at,
blocked_at, look_at, waiting, active, succeeded, failed, skipped, blocked, superseded, parent_run_id, parent_step_no,
parent_item_no, depth, rerun_of IS NOT NULL AS is_rerun, results_from, ondot.clock() AS now

-- name: take_runs :many
-- locks: runs, SKIP LOCKED, then their arrivals
-- The columns of run_columns, and arrivals. The transaction that has the row locked looks again after its commit: see
-- flow.workflows.advance.
-- $1 ids, $2 most arrivals of each
SELECT * FROM ondot.take_runs($1::uuid[], $2::integer);

-- name: take_run :one
-- locks: the run, SKIP LOCKED        index: run_pkey
-- $1 id
SELECT {{run_columns}} FROM ondot.run WHERE id = $1::uuid FOR UPDATE SKIP LOCKED;

-- name: lock_run :one
-- locks: the run        index: run_pkey
-- $1 id, $2 tenant_no (NULL: of any)
SELECT {{run_columns}} FROM ondot.run WHERE id = $1::uuid AND ($2::integer IS NULL OR tenant_no = $2) FOR UPDATE;

-- name: read_run :one
-- index: run_pkey
-- As it is at this moment: nothing is locked.
-- $1 id, $2 tenant_no
SELECT {{run_columns}} FROM ondot.run WHERE id = $1::uuid AND tenant_no = $2::integer;

-- name: lock_runs :many
-- locks: runs, in the order of their ids        index: run_pkey
-- $1 ids
SELECT {{run_columns}} FROM ondot.run WHERE id = ANY ($1::uuid[]) ORDER BY id FOR UPDATE;

-- name: begin_runs :many
-- locks: executions, then counts of tenants        index: execution_pkey, gated_pkey, slot_pkey, tenant_running_pkey
-- Fenced as completions. Runs go on without their worker: the slots of their pools and their counts go back, the slots of
-- their gates stay until they end or are BLOCKED.
-- $1 worker_id, $2 ids, $3 attempt_nos, $4 whether they begin even if they were cancelled
WITH wanted AS (
    SELECT * FROM unnest($2::uuid[], $3::integer[], $4::boolean[]) AS w(id, attempt_no, is_resumed)
), begun AS (
    UPDATE ondot.execution e
    SET worker_id = NULL, gated = e.gated AND EXISTS (SELECT FROM ondot.gated d WHERE d.execution_id = e.id),
        -- A rerun that has not begun waits for its own end.
        awaited_by = nullif(e.awaited_by, e.id)
    FROM wanted w
    WHERE e.id = w.id AND e.attempt_no = w.attempt_no AND e.worker_id = $1::uuid AND e.state = 'RUNNING'
      AND (e.cancel_at IS NULL OR w.is_resumed)
    RETURNING e.id, e.job_id, e.tenant_no, e.job_version, e.pool_no, e.fire_at, e.class, e.origin,
              e.payload IS NOT NULL AS own_payload
), uncounted AS (
    INSERT INTO ondot.tenant_running AS r (tenant_no, worker_id, pool_no, running)
    SELECT b.tenant_no, $1, b.pool_no, -count(*) FROM begun b
    WHERE EXISTS (SELECT FROM ondot.tenant_limit l WHERE l.tenant_no = b.tenant_no AND l.is_counted)
    GROUP BY b.tenant_no, b.pool_no ORDER BY b.tenant_no, b.pool_no
    ON CONFLICT (tenant_no, worker_id, pool_no) DO UPDATE SET running = r.running + excluded.running
), pool_slots AS (
    DELETE FROM ondot.slot s USING begun b WHERE s.gate_id = ondot.pool_gate(b.pool_no) AND s.execution_id = b.id
)
SELECT * FROM begun;

-- name: insert_runs :many
-- locks: none (new rows)
-- $1 ids, $2 job_ids, $3 tenant_nos, $4 job_versions, $5 fire_ats, $6 classes, $7 own_payloads
INSERT INTO ondot.run (id, job_id, tenant_no, job_version, fire_at, class, own_payload, state)
SELECT n.*, 'PENDING'
FROM unnest($1::uuid[], $2::uuid[], $3::integer[], $4::integer[], $5::timestamptz[], $6::smallint[], $7::boolean[]) AS n
RETURNING {{run_columns}};

-- name: hold_run :one
-- transition: hold        locks: the execution, then gates by the trigger on gated        index: execution_pkey, gated_pkey
-- The run is locked already. Its slots go back, so that the next run of its job may start. It counts as one failure.
-- $1 id, $2 failures in a row after which the job is paused (NULL: they are not counted)
WITH held AS (
    UPDATE ondot.execution SET state = 'BLOCKED', gated = false
    WHERE id = $1::uuid AND state = 'RUNNING' AND worker_id IS NULL
    RETURNING id, job_id, tenant_no, pool_no
), passed AS (
    DELETE FROM ondot.gated WHERE execution_id = ANY (ARRAY(SELECT id FROM held)) RETURNING pool_no
), counted AS (
    INSERT INTO ondot.streak (job_id, tenant_no, failures, pause_after, succeeded)
    SELECT job_id, tenant_no, 1, $2::integer, false FROM held WHERE $2 IS NOT NULL
    ON CONFLICT (job_id) DO UPDATE
    SET failures = streak.failures + 1, pause_after = excluded.pause_after, succeeded = false
)
SELECT h.id, (SELECT pool_no FROM passed) AS pool_no FROM held h;

-- name: requeue_run :one
-- transition: unblock        locks: the execution, then gates        index: execution_pkey
-- A BLOCKED run waits for its slots again, as a run asked for by hand. The worker that leases it resumes it.
-- $1 id, $2 its gates (NULL: none), $3 class
WITH moved AS (
    UPDATE ondot.execution
    SET state = 'PENDING', ready_at = ondot.clock(), gated = $2::text IS NOT NULL, class = $3::smallint, start_by = NULL
    WHERE id = $1::uuid AND state = 'BLOCKED'
    RETURNING id AS execution_id, pool_no, class, tenant_no, ready_at, gated
), queued AS (
    {{insert_into_ready}}
    FROM moved WHERE NOT gated
), gated AS (
    INSERT INTO ondot.gated (execution_id, ready_at, tenant_no, pool_no, class, is_fire, stages)
    SELECT execution_id, ready_at, tenant_no, pool_no, class, false, $2::jsonb FROM moved WHERE gated
)
SELECT pool_no, ready_at FROM moved;

-- name: end_run :one
-- transition: succeed, fail, stop, cancel, give up
-- locks: the execution, then gates by the trigger on gated        index: execution_pkey, gated_pkey
-- The run is locked already, and no worker has it.
-- $1 id, $2 the state it ends in, $3 reason, $4 error, $5 failures in a row after which the job is paused (NULL: this end
-- is not counted), $6 result
WITH gone AS (
    DELETE FROM ondot.execution
    WHERE id = $1::uuid AND state IN ('RUNNING', 'BLOCKED') AND worker_id IS NULL
    RETURNING *
), ended AS (
    SELECT g.*, 0 AS failed, 0 AS lost, $2::text AS new_state, $3::text AS reason, $6::text AS result, $4::text AS error,
           ondot.labels_of(g.tenant_no, g.job_id) AS labels
    FROM gone g
),
{{end}},
passed AS (
    DELETE FROM ondot.gated WHERE execution_id = ANY (ARRAY(SELECT id FROM ended WHERE gated)) RETURNING pool_no
), counted AS (
    INSERT INTO ondot.streak (job_id, tenant_no, failures, pause_after, succeeded)
    SELECT job_id, tenant_no, (new_state = 'FAILED')::integer, $5::integer, new_state = 'SUCCEEDED'
    FROM ended WHERE $5 IS NOT NULL AND new_state IN ('SUCCEEDED', 'FAILED')
    ON CONFLICT (job_id) DO UPDATE
    SET failures = CASE WHEN excluded.succeeded THEN 0 ELSE streak.failures + excluded.failures END,
        pause_after = excluded.pause_after, succeeded = excluded.succeeded
    WHERE streak.failures > 0 OR excluded.failures > 0
)
SELECT e.id, e.awaited_by, (SELECT pool_no FROM passed) AS pool_no FROM ended e;

-- name: handle_letters :none
-- locks: letters        index: dead_letter_run
-- A run ends SUCCEEDED: the failures of its steps were handled.
-- $1 run_id, $2 tenant_no
UPDATE ondot.dead_letter SET resolved_at = ondot.clock(), resolution = 'handled', resolved_by = 'ondot'
WHERE run_id = $1::uuid AND tenant_no = $2::integer AND resolved_at IS NULL;

-- name: find_due_runs :many
-- index: run_look
-- $1 limit
SELECT id FROM ondot.run WHERE look_at <= ondot.clock() ORDER BY look_at LIMIT $1::integer;

-- name: postpone_run :none
-- locks: the run, then its arrivals        index: run_pkey, arrival_pkey
-- A fault of ours keeps a run from being advanced: housekeeping tries again later, and the run shows why it stands still.
-- $1 id, $2 reason, $3 seconds
WITH later AS (
    UPDATE ondot.run
    SET reason = $2::text,
        look_at = CASE WHEN look_at IS NOT NULL THEN greatest(look_at, ondot.clock() + make_interval(secs => $3)) END
    WHERE id = $1::uuid AND ended_at IS NULL
    RETURNING id
)
UPDATE ondot.arrival SET at = ondot.clock() + make_interval(secs => $3::double precision)
WHERE run_id = (SELECT id FROM later);

-- name: find_cancelled_runs :many
-- index: execution_cancel
-- Runs that were asked to end: no worker sees the request.
-- $1 limit
SELECT e.id, e.cancel_reason FROM ondot.execution e
WHERE e.cancel_at IS NOT NULL AND e.state IN ('RUNNING', 'BLOCKED') AND e.worker_id IS NULL
  AND EXISTS (SELECT FROM ondot.run r WHERE r.id = e.id AND r.state IN ('RUNNING', 'BLOCKED'))
ORDER BY e.cancel_at LIMIT $1::integer;

-- name: find_jobs_of_runs :many
-- index: run_pkey
-- The workflows of runs.
-- $1 ids
SELECT id, job_id FROM ondot.run WHERE id = ANY ($1::uuid[]);

-- name: is_run :one
-- index: run_pkey
-- Whether an id that arrivals name is that of a run, and not of a job that others depend on.
-- $1 id
SELECT EXISTS (SELECT FROM ondot.run WHERE id = $1::uuid) AS is_run;

-- name: count_runs :many
-- index: run_live
-- Runs that have not ended, by state.
SELECT state, count(*) AS count FROM ondot.run WHERE ended_at IS NULL GROUP BY state;

-- name: find_live_runs :many
-- index: run_job
-- $1 tenant_no, $2 job_id
SELECT id FROM ondot.run WHERE job_id = $2::uuid AND tenant_no = $1::integer AND ended_at IS NULL ORDER BY id;
