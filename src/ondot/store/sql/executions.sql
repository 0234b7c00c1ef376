-- fragment: trace_of
-- The traceparent of an execution `e`, or of its run `r` if it is a step, where that is not its job's. $1 is the tenant.
(SELECT x.traceparent FROM ondot.trace x WHERE x.execution_id = coalesce(r.id, e.id) AND x.tenant_no = $1)

-- name: insert_execution :one
-- transition: plan        locks: none (new rows), then gates
-- A run-now or a replay: it is no fire, so the unique key of fires does not apply.
-- $1 tenant_no, $2 id, $3 job_id, $4 job_version, $5 pool_no, $6 class, $7 origin, $8 payload (NULL: the job's own),
-- $9 the execution it runs again (NULL: none), $10 its gates (NULL: none), $11 seconds in which it must start (NULL: any time)
WITH fire AS (
    SELECT $2::uuid AS execution_id, $3::uuid AS job_id, ondot.clock() AS fire_at, ondot.clock() AS ready_at,
           $1::integer AS tenant_no, $4::integer AS job_version, $5::integer AS pool_no, $6::smallint AS class,
           $7::text AS origin, $10::text AS stages, false AS is_fire,
           ondot.clock() + make_interval(secs => $11::double precision) AS start_by, $8::text::json AS payload,
           $9::uuid AS replay_of, {{not_awaited}}
),
{{plan}}
SELECT execution_id, fire_at FROM planned;

-- name: find_payloads :many
-- index: execution_pkey
-- $1 ids
SELECT id, payload FROM ondot.execution WHERE id = ANY ($1::uuid[]);

-- name: get_execution :one
-- index: execution_pkey, history_pkey, run_pkey
-- $1 tenant_no, $2 id
SELECT e.*, p.name AS pool, c.progress, c.message AS progress_message, c.checkpoint, r.job_id AS workflow_id, {{trace_of}} AS trace
FROM (
    SELECT id, job_id, job_version, worker_id, fire_at, ready_at, started_at, NULL::timestamptz AS ended_at, tenant_no,
           pool_no, attempt_no, failures, losses, class, state, origin, NULL AS reason, payload, NULL::json AS result,
           NULL::jsonb AS error, cancel_at, cancel_reason, start_by, replay_of, step_no, item_no
    FROM ondot.execution WHERE id = $2::uuid AND tenant_no = $1::integer
    UNION ALL
    SELECT id, job_id, job_version, worker_id, fire_at, ready_at, started_at, ended_at, tenant_no,
           pool_no, attempt_no, failures, losses, class, state, origin, reason, payload, result, error, NULL, NULL, NULL,
           replay_of, step_no, item_no
    FROM ondot.history WHERE id = $2 AND tenant_no = $1
) e
JOIN ondot.pool p ON p.pool_no = e.pool_no
LEFT JOIN ondot.run r ON r.id = e.job_id AND e.origin = 'step'
LEFT JOIN ondot.checkpoint c ON c.execution_id = e.id;

-- name: newest_executions :many
-- index: execution_pkey, history_pkey, backwards
-- The newest by id, live and ended, some days at a time (store.newest): they show how far back `list_executions` must
-- look. Coming fires belong to the schedule: they count only if PENDING is asked for.
-- $1 tenant_no, $2 from id, $3 limit, $4 state, $5 from_at, $6 to_at, $7 pool_nos, $8 before id, $9 and $10 when the last
-- of the page before was due, and its id (NULL: none), $11 origin (NULL: all but steps)
(SELECT id FROM ondot.execution
     WHERE tenant_no = $1::integer AND id >= $2::uuid AND id < $8::uuid
       AND CASE WHEN $4::text IS NULL THEN ready_at <= ondot.clock() OR attempt_no > 0 ELSE state = $4 END
       AND ($5::timestamptz IS NULL OR fire_at >= $5) AND ($6::timestamptz IS NULL OR fire_at < $6)
       AND ($7::integer[] IS NULL OR pool_no = ANY ($7))
       AND CASE WHEN $11::text IS NULL THEN origin <> 'step' ELSE origin = $11 END
       AND ($9::timestamptz IS NULL OR (ondot.due_at(id, fire_at), id) < ($9, $10::uuid))
 ORDER BY id DESC LIMIT $3::integer)
UNION ALL
(SELECT id FROM ondot.history
     WHERE tenant_no = $1 AND id >= $2 AND id < $8 AND ($4 IS NULL OR state = $4)
       AND ($5 IS NULL OR fire_at >= $5) AND ($6 IS NULL OR fire_at < $6)
       AND ($7 IS NULL OR pool_no = ANY ($7))
       AND CASE WHEN $11 IS NULL THEN origin <> 'step' ELSE origin = $11 END
       AND ($9 IS NULL OR (ondot.due_at(id, fire_at), id) < ($9, $10))
 ORDER BY id DESC LIMIT $3)
ORDER BY id DESC LIMIT $3;

-- name: list_executions :many
-- index: execution_pkey, history_pkey, run_pkey
-- Those of a range of ids, by when they were due, latest first. The page is cut before its columns are read.
-- $1 tenant_no, and $2 to $11 as in newest_executions
WITH page AS MATERIALIZED (
    (SELECT id, ondot.due_at(id, fire_at) AS due_at FROM ondot.execution
     WHERE tenant_no = $1::integer AND id >= $2::uuid AND id < $8::uuid
       AND CASE WHEN $4::text IS NULL THEN ready_at <= ondot.clock() OR attempt_no > 0 ELSE state = $4 END
       AND ($5::timestamptz IS NULL OR fire_at >= $5) AND ($6::timestamptz IS NULL OR fire_at < $6)
       AND ($7::integer[] IS NULL OR pool_no = ANY ($7))
       AND CASE WHEN $11::text IS NULL THEN origin <> 'step' ELSE origin = $11 END
       AND ($9::timestamptz IS NULL OR (ondot.due_at(id, fire_at), id) < ($9, $10::uuid))
    )
    UNION ALL
    (SELECT id, ondot.due_at(id, fire_at) FROM ondot.history
     WHERE tenant_no = $1 AND id >= $2 AND id < $8 AND ($4 IS NULL OR state = $4)
       AND ($5 IS NULL OR fire_at >= $5) AND ($6 IS NULL OR fire_at < $6)
       AND ($7 IS NULL OR pool_no = ANY ($7))
       AND CASE WHEN $11 IS NULL THEN origin <> 'step' ELSE origin = $11 END
       AND ($9 IS NULL OR (ondot.due_at(id, fire_at), id) < ($9, $10))
    )
    ORDER BY due_at DESC, id DESC LIMIT $3::integer
)
SELECT e.*, p.name AS pool, r.job_id AS workflow_id, {{trace_of}} AS trace
FROM page g
CROSS JOIN LATERAL (
    SELECT id, job_id, job_version, worker_id, fire_at, ready_at, started_at, NULL::timestamptz AS ended_at,
           pool_no, attempt_no, failures, losses, class, state, origin, NULL AS reason, payload, NULL::json AS result,
           NULL::jsonb AS error, step_no, item_no
    FROM ondot.execution WHERE id = g.id
    UNION ALL
    SELECT id, job_id, job_version, worker_id, fire_at, ready_at, started_at, ended_at,
           pool_no, attempt_no, failures, losses, class, state, origin, reason, payload, result, error, step_no,
           item_no
    FROM ondot.history WHERE id = g.id AND id >= $2 AND id < $8
) e
JOIN ondot.pool p ON p.pool_no = e.pool_no
LEFT JOIN ondot.run r ON r.id = e.job_id AND e.origin = 'step'
ORDER BY g.due_at DESC, g.id DESC;

-- name: read_executions :many
-- index: execution_pkey, history_pkey, run_pkey
-- Executions by their ids, newest first.
-- $1 tenant_no, $2 ids
SELECT e.*, p.name AS pool, r.job_id AS workflow_id, {{trace_of}} AS trace
FROM (
    SELECT id, job_id, job_version, worker_id, fire_at, ready_at, started_at, NULL::timestamptz AS ended_at,
           pool_no, attempt_no, failures, losses, class, state, origin, NULL AS reason, payload, NULL::json AS result,
           NULL::jsonb AS error, step_no, item_no
    FROM ondot.execution WHERE id = ANY ($2::uuid[]) AND tenant_no = $1::integer
    UNION ALL
    SELECT id, job_id, job_version, worker_id, fire_at, ready_at, started_at, ended_at,
           pool_no, attempt_no, failures, losses, class, state, origin, reason, payload, result, error, step_no,
           item_no
    FROM ondot.history WHERE id = ANY ($2) AND tenant_no = $1
) e
JOIN ondot.pool p ON p.pool_no = e.pool_no
LEFT JOIN ondot.run r ON r.id = e.job_id AND e.origin = 'step'
ORDER BY e.id DESC;

-- name: find_origins :many
-- index: execution_pkey, history_pkey, run_pkey
-- What made executions, and their jobs; of a step, the workflow. The bounds are written into the text (store.day_bounds).
-- $1 tenant_no, $2 ids, $3 from id, $4 before id
SELECT e.id, e.origin, coalesce(r.job_id, e.job_id) AS job_id, e.job_version
FROM (
    SELECT id, origin, job_id, job_version FROM ondot.execution WHERE id = ANY ($2::uuid[]) AND tenant_no = $1::integer
    UNION ALL
    SELECT id, origin, job_id, job_version FROM ondot.history
    WHERE id = ANY ($2) AND id >= $3::uuid AND id < $4::uuid AND tenant_no = $1
) e
LEFT JOIN ondot.run r ON r.id = e.job_id AND e.origin = 'step';

-- name: fire_of :one
-- index: execution_pkey, history_pkey
-- $1 tenant_no, $2 id
SELECT fire_at FROM ondot.execution WHERE id = $2::uuid AND tenant_no = $1::integer
UNION ALL
SELECT fire_at FROM ondot.history WHERE id = $2 AND tenant_no = $1;

-- name: list_job_executions :many
-- index: execution_fire, execution_other, history_job, run_pkey
-- Those of one job, or the steps of one run, in a range of ids: the newest by id, or by when they were due.
-- $1 tenant_no, $2 from id, $3 limit, $4 state, $5 job_id, $6 before id, $7 and $8 when the last of the page before was
-- due, and its id (NULL: none), $9 by when they were due
SELECT e.*, p.name AS pool, r.job_id AS workflow_id, {{trace_of}} AS trace
FROM (
    SELECT id, job_id, job_version, worker_id, fire_at, ready_at, started_at, NULL::timestamptz AS ended_at,
           pool_no, attempt_no, failures, losses, class, state, origin, NULL AS reason, payload, NULL::json AS result,
           NULL::jsonb AS error, step_no, item_no
    FROM ondot.execution WHERE job_id = $5::uuid AND tenant_no = $1::integer AND origin IN ('fire', 'backfill')
    UNION ALL
    SELECT id, job_id, job_version, worker_id, fire_at, ready_at, started_at, NULL,
           pool_no, attempt_no, failures, losses, class, state, origin, NULL, payload, NULL, NULL,
           step_no, item_no
    FROM ondot.execution WHERE job_id = $5 AND tenant_no = $1 AND origin NOT IN ('fire', 'backfill')
    UNION ALL
    SELECT id, job_id, job_version, worker_id, fire_at, ready_at, started_at, ended_at,
           pool_no, attempt_no, failures, losses, class, state, origin, reason, payload, result, error,
           step_no, item_no
    FROM ondot.history WHERE job_id = $5 AND tenant_no = $1 AND id >= $2::uuid AND id < $6::uuid
) e
JOIN ondot.pool p ON p.pool_no = e.pool_no
LEFT JOIN ondot.run r ON r.id = e.job_id AND e.origin = 'step'
WHERE e.id >= $2 AND e.id < $6
  AND ($7::timestamptz IS NULL OR (ondot.due_at(e.id, e.fire_at), e.id) < ($7, $8::uuid))
  AND CASE WHEN $4::text IS NULL THEN e.ready_at <= ondot.clock() OR e.attempt_no > 0 OR e.ended_at IS NOT NULL
           ELSE e.state = $4 END
ORDER BY CASE WHEN $9::boolean THEN ondot.due_at(e.id, e.fire_at) END DESC, e.id DESC LIMIT $3::integer;

-- name: find_latest_execution :one
-- index: execution_fire, execution_other, history_job
-- For a job's status: the latest one that is due, and when one last started, which may be another: the latest may still
-- wait, or was skipped. retry_count counts its further attempts, including one that it waits for. Some days at a time
-- (store.newest).
-- $1 tenant_no, $2 job_id, $3 from id, $4 before id, $5 ended executions looked at
WITH whole AS MATERIALIZED (
    SELECT fire_at, id, state, started_at, attempt_no FROM ondot.execution
    WHERE job_id = $2::uuid AND tenant_no = $1::integer AND origin IN ('fire', 'backfill')
      AND (fire_at <= ondot.clock() OR attempt_no > 0)
    UNION ALL
    SELECT fire_at, id, state, started_at, attempt_no FROM ondot.execution
    WHERE job_id = $2 AND tenant_no = $1 AND origin NOT IN ('fire', 'backfill')
    UNION ALL
    (SELECT fire_at, id, state, started_at, attempt_no FROM ondot.history
     WHERE job_id = $2 AND tenant_no = $1 AND id >= $3::uuid AND id < $4::uuid ORDER BY fire_at DESC LIMIT $5::integer)
)
SELECT state, (SELECT max(w.started_at) FROM whole w) AS last_run,
       greatest(attempt_no - 1, 0) + (state = 'RETRYING')::integer AS retry_count, fire_at
FROM whole
ORDER BY fire_at DESC, id DESC LIMIT 1;

-- name: list_attempts :many
-- index: attempt_pkey
-- $1 tenant_no, $2 execution_id
SELECT attempt_no, outcome, worker_id, started_at, ended_at, error
FROM ondot.attempt WHERE execution_id = $2::uuid AND tenant_no = $1::integer ORDER BY attempt_no;

-- name: list_skipped :many
-- index: skipped_pkey
-- $1 tenant_no, $2 job_id, $3 limit
SELECT from_at, to_at, reason, count FROM ondot.skipped
WHERE job_id = $2::uuid AND tenant_no = $1::integer ORDER BY from_at DESC LIMIT $3::integer;

-- name: find_latest_ended :one
-- index: history_job
-- Some days at a time (store.newest).
-- $1 tenant_no, $2 job_id, $3 from id, $4 before id
SELECT id FROM ondot.history
WHERE job_id = $2::uuid AND tenant_no = $1::integer AND id >= $3::uuid AND id < $4::uuid
ORDER BY fire_at DESC, id DESC LIMIT 1;

-- name: list_missed :many
-- index: skipped_recent, backwards; backfill_job, job_pkey
-- Ranges of fires that were skipped since an instant, latest first, with the name of their job if that recurs. `is_backfilled`: a
-- backfill covers the range. Fires that a calendar skips are not missed.
-- $1 tenant_no, $2 since (NULL: 7 days ago), $3 to $5 recorded_at, job_id and from_at of the last of the page before (NULL: none),
-- $6 limit, $7 reasons (NULL: all), $8 job_id (NULL: of all)
SELECT s.job_id, j.name AS job_name, s.from_at, s.to_at, s.reason, s.count, s.at AS recorded_at,
       EXISTS (SELECT FROM ondot.backfill b
               WHERE b.job_id = s.job_id AND b.from_at <= s.from_at AND b.to_at >= s.to_at
                 AND b.state <> 'CANCELLED') AS is_backfilled, s.job_version
FROM (
    SELECT * FROM ondot.skipped
    WHERE tenant_no = $1::integer AND at BETWEEN coalesce($2::timestamptz, ondot.clock() - interval '7 days') AND coalesce($3::timestamptz, 'infinity')
      AND ($3 IS NULL OR (at, job_id, from_at) < ($3, $4::uuid, $5::timestamptz))
      AND reason <> 'calendar' AND ($7::text[] IS NULL OR reason = ANY ($7)) AND ($8::uuid IS NULL OR job_id = $8)
    ORDER BY at DESC, job_id DESC, from_at DESC LIMIT $6::integer
) s
LEFT JOIN ondot.job j ON j.id = s.job_id
ORDER BY s.at DESC, s.job_id DESC, s.from_at DESC;
