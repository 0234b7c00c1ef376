-- name: insert_steps :none
-- locks: none (new rows)
-- $1 run_ids, $2 tenant_nos, $3 how many of each
INSERT INTO ondot.step (run_id, step_no, tenant_no, state)
SELECT r.id, n, r.tenant_no, 'WAITING'
FROM unnest($1::uuid[], $2::integer[], $3::integer[]) AS r(id, tenant_no, count)
CROSS JOIN LATERAL generate_series(0, r.count - 1) AS n;

-- name: find_steps :many
-- index: step_pkey
-- Each is probed separately: the planner, which may have seen few rows, would read the whole run for one step.
-- $1 run_ids, $2 step_nos
SELECT n.run_id, s.* FROM unnest($1::uuid[], $2::integer[]) AS n(run_id, step_no) CROSS JOIN LATERAL (
    SELECT step_no, state, execution_id, parents_succeeded, parents_failed, parents_skipped, reason,
           payload IS NOT NULL AS own_payload
    FROM ondot.step WHERE run_id = n.run_id AND step_no = n.step_no LIMIT 1
) s;

-- name: find_all_steps :many
-- index: step_pkey
-- $1 run_id
SELECT step_no, state, execution_id, parents_succeeded, parents_failed, parents_skipped, reason,
       payload IS NOT NULL AS own_payload
FROM ondot.step WHERE run_id = $1::uuid ORDER BY step_no;

-- name: reject_steps :none
-- transition: reject
-- Steps, and items of steps, that end without an attempt leave a record. Steps leave a dead letter too; that of an item is
-- its step's.
-- $1 run_id, $2 tenant_no, $3 job_id, $4 job_version, $5 fire_at, $6 execution_ids, $7 step_nos, $8 pool_nos, $9 classes,
-- $10 errors, $11 item_nos, $12 reasons
WITH ended AS (
    SELECT f.execution_id AS id, $1::uuid AS job_id, NULL::uuid AS worker_id, $5::timestamptz AS fire_at,
           ondot.clock() AS ready_at, NULL::timestamptz AS started_at, $2::integer AS tenant_no,
           $4::integer AS job_version, f.pool_no, 0 AS attempt_no, 0 AS failures, 0 AS losses, 0 AS failed, 0 AS lost,
           f.class, 'FAILED' AS new_state, 'step' AS origin, f.reason,
           NULL::json AS payload, NULL::text AS result, f.error, NULL::uuid AS replay_of, NULL::uuid AS awaited_by,
           f.step_no, f.item_no, ondot.labels_of($2, $3::uuid) AS labels
    FROM unnest($6::uuid[], $7::integer[], $8::integer[], $9::smallint[], $10::text[], $11::integer[], $12::text[])
         AS f(execution_id, step_no, pool_no, class, error, item_no, reason)
),
{{end}}
INSERT INTO ondot.dead_letter (execution_id, tenant_no, job_id, job_version, failed_at, reason, error, run_id, step_no)
SELECT id, tenant_no, $3::uuid, job_version, ondot.clock(), reason, error::jsonb, $1, step_no FROM ended
WHERE item_no IS NULL;

-- name: find_results :many
-- index: step_pkey, history_pkey
-- What steps left behind: the result that was set by hand, or that of their execution. The bounds of the ids are written
-- into the text (store.day_bounds): an execution of a run is younger than the run, unless a rerun takes
-- it over.
-- $1 run_id, $2 step_nos, $3 from id, $4 before id
SELECT s.step_no, s.state, s.execution_id, s.result::text AS own_result, h.result::text AS result
FROM unnest($2::integer[]) AS n(step_no)
CROSS JOIN LATERAL (
    SELECT step_no, state, execution_id, result FROM ondot.step WHERE run_id = $1::uuid AND step_no = n.step_no LIMIT 1
) s
LEFT JOIN ondot.history h ON h.id = s.execution_id AND h.id >= $3::uuid AND h.id < $4::uuid;

-- name: find_results_of :many
-- index: history_pkey
-- The bounds of the ids are written into the text (store.day_bounds).
-- $1 tenant_no, $2 ids, $3 from id, $4 before id
SELECT h.id, h.result::text AS result FROM unnest($2::uuid[]) AS n(id)
CROSS JOIN LATERAL (
    SELECT id, result FROM ondot.history
    WHERE id = n.id AND tenant_no = $1::integer AND id >= $3::uuid AND id < $4::uuid LIMIT 1
) h;

-- name: set_results :none
-- locks: the run is locked already        index: step_pkey
-- Results that steps without an execution of their own have.
-- $1 tenant_no, $2 run_id, $3 step_nos, $4 results
UPDATE ondot.step s SET result = r.result::json
FROM unnest($3::integer[], $4::text[]) AS r(step_no, result)
WHERE s.run_id = $2::uuid AND s.step_no = r.step_no AND s.tenant_no = $1::integer;

-- name: find_executions_of_run :many
-- index: execution_other
-- Executions of a run that have not ended.
-- $1 run_id
SELECT id, step_no, item_no, state FROM ondot.execution
WHERE job_id = $1::uuid AND origin NOT IN ('fire', 'backfill') AND origin = 'step';

-- name: find_step_nos :many
-- index: execution_pkey, run_pkey, trace_pkey
-- Of which workflow, step and item executions are that a worker has leased, what started their run, their own payloads, and
-- the trace of their run. It is looked up only for runs that a request may have started.
-- $1 ids, $2 whether payloads are wanted
SELECT e.id, r.job_id, e.step_no, e.item_no, x.origin = 'event' AS is_of_event,
       CASE WHEN $2::boolean THEN e.payload END AS payload,
       CASE WHEN x.origin IN ('run', 'replay', 'event') THEN
           (SELECT ARRAY[t.traceparent, t.tracestate] FROM ondot.trace t WHERE t.execution_id = r.id) END AS trace
FROM ondot.execution e JOIN ondot.run r ON r.id = e.job_id LEFT JOIN ondot.execution x ON x.id = r.id
WHERE e.id = ANY ($1::uuid[]);

-- name: find_ends_missed :many
-- index: history_pkey
-- Of executions that are gone: how they ended. The bounds of the ids are written into the text (store.day_bounds).
-- $1 ids, $2 from id, $3 before id
SELECT id, state FROM ondot.history WHERE id = ANY ($1::uuid[]) AND id >= $2::uuid AND id < $3::uuid;
