-- name: count_ended :many
-- index: history_pkey
-- The executions of a range of ids that had ended at the end of the window, by state, without steps of runs.
-- $1 tenant_no, $2 from id, $3 before id, $4 until
SELECT h.state, count(*) AS count FROM ondot.history h
WHERE h.tenant_no = $1::integer AND h.id >= $2::uuid AND h.id < $3::uuid AND h.origin <> 'step'
  AND h.ended_at < $4::timestamptz
GROUP BY h.state;

-- name: sum_notable :many
-- index: history_pkey, job_pkey
-- Those of a range of ids that were late (their first attempt started that long after it was due) or took a while, the newest up to
-- a limit, by job; all that run once together. To group every row by its job would take ten times as long as to count.
-- $1 tenant_no, $2 from id, $3 before id, $4 late after seconds, $5 took a while: seconds, $6 limit,
-- $7 until
WITH notable AS MATERIALIZED (
    SELECT h.job_id, h.state, h.ready_at, h.ended_at - h.started_at AS took,
           CASE WHEN h.attempt_no = 1 AND h.started_at - h.ready_at > make_interval(secs => $4::double precision)
                THEN h.started_at - h.ready_at END AS late
    FROM ondot.history h
    WHERE h.tenant_no = $1::integer AND h.id >= $2::uuid AND h.id < $3::uuid AND h.origin <> 'step'
      AND h.ended_at < $7::timestamptz
      AND (h.ended_at - h.started_at >= make_interval(secs => $5::double precision)
           OR h.attempt_no = 1 AND h.started_at - h.ready_at > make_interval(secs => $4))
    ORDER BY h.id DESC LIMIT $6::integer
), by_job AS MATERIALIZED (
    SELECT job_id, count(*) AS count, count(*) FILTER (WHERE state = 'SUCCEEDED') AS succeeded,
           sum(took) FILTER (WHERE state = 'SUCCEEDED') AS took, count(late) AS late, max(late) AS most_late,
           max(ready_at) FILTER (WHERE late IS NOT NULL) AS last_late_at
    FROM notable GROUP BY job_id
)
SELECT j.id AS job_id, sum(b.count)::integer AS count, sum(b.succeeded)::integer AS succeeded,
       coalesce(extract(epoch FROM sum(b.took)), 0)::double precision AS took_s, sum(b.late)::integer AS late,
       coalesce(extract(epoch FROM max(b.most_late)), 0)::double precision AS most_late_s, max(b.last_late_at) AS last_late_at
FROM by_job b
LEFT JOIN LATERAL (SELECT j.id FROM ondot.job j WHERE j.id = b.job_id AND j.tenant_no = $1 LIMIT 1) j ON true
GROUP BY j.id;

-- name: group_not_succeeded :many
-- index: history_not_succeeded, job_pkey, dead_letter_pkey, dead_letter_run, run_pkey
-- Executions that ended in a window without success, of the newest of a range of ids: by job if it recurs, state, reason and
-- fingerprint of the error. `looked_at` shows whether the limit was reached. Those created long before the window are left out.
-- $1 tenant_no, $2 from id, $3 before id, $4 since, $5 until, $6 limit
WITH latest AS MATERIALIZED (
    SELECT h.id, h.job_id, h.job_version, h.state, h.reason, h.ended_at, h.error->>'fingerprint' AS fingerprint,
           left(h.error->>'message', 300) AS message
    FROM ondot.history h
    WHERE h.tenant_no = $1::integer AND h.state <> 'SUCCEEDED' AND h.id >= $2::uuid AND h.id < $3::uuid
      AND h.ended_at >= $4::timestamptz AND h.ended_at < $5::timestamptz AND h.origin <> 'step'
    ORDER BY h.id DESC LIMIT $6::integer
)
SELECT j.id AS job_id, l.state, CASE WHEN l.fingerprint IS NULL THEN l.reason END AS reason, l.fingerprint, count(*) AS count,
       count(*) FILTER (WHERE d.resolved_at IS NOT NULL OR NOT r.is_open) AS repaired,
       count(*) FILTER (WHERE d.resolved_at IS NULL AND d.execution_id IS NOT NULL OR r.is_open) AS open,
       min(l.ended_at) AS first_at, max(l.ended_at) AS last_at,
       (array_agg(l.id ORDER BY d.resolved_at IS NOT NULL, l.id DESC))[1] AS execution_id,
       (array_agg(l.job_id ORDER BY d.resolved_at IS NOT NULL, l.id DESC))[1] AS example_job_id,
       (array_agg(coalesce(l.message, l.reason) ORDER BY l.id DESC))[1] AS message,
       (array_agg(r.id ORDER BY d.resolved_at IS NOT NULL, l.id DESC))[1] AS run_id,
       count(DISTINCT l.job_id) AS jobs, (SELECT count(*) FROM latest) AS looked_at
FROM latest l
LEFT JOIN LATERAL (SELECT id FROM ondot.job j WHERE j.id = l.job_id AND j.tenant_no = $1 LIMIT 1) j ON true
LEFT JOIN LATERAL (
    SELECT d.execution_id, d.resolved_at FROM ondot.dead_letter d
    WHERE d.execution_id = l.id AND d.tenant_no = $1 LIMIT 1
) d ON l.state = 'FAILED'
LEFT JOIN LATERAL (
    -- A failed run has no letter of its own: those of its steps are open until a person has settled them.
    SELECT r.id, EXISTS (SELECT FROM ondot.dead_letter o WHERE o.run_id = r.id AND o.resolved_at IS NULL AND o.tenant_no = $1)
               AS is_open
    FROM ondot.run r WHERE r.id = l.id AND r.tenant_no = $1 LIMIT 1
) r ON l.state = 'FAILED'
GROUP BY j.id, l.state, 3, l.fingerprint;

-- name: group_attempts :many
-- index: attempt_pkey, execution_pkey, history_pkey, job_pkey, run_pkey
-- Attempts that failed in a window, of the newest of a range of ids and up to a limit, by job if it recurs (of a step: its
-- workflow): those of executions that were tried again, or were to be when the window ended, and those whose worker was lost, by worker.
-- $1 tenant_no, $2 from id, $3 before id, $4 since, $5 until, $6 limit
WITH latest AS MATERIALIZED (
    SELECT a.execution_id, a.outcome, a.worker_id, a.ended_at, left(a.error->>'message', 300) AS message
    FROM ondot.attempt a
    WHERE a.tenant_no = $1::integer AND a.execution_id >= $2::uuid AND a.execution_id < $3::uuid
      AND a.ended_at >= $4::timestamptz AND a.ended_at < $5::timestamptz
      AND a.outcome IN ('FAILED', 'TIMED_OUT', 'WORKER_LOST')
    ORDER BY a.execution_id DESC LIMIT $6::integer
), of_one AS MATERIALIZED (
    SELECT l.*, e.job_id, e.origin, e.state, e.over_at
    FROM latest l
    CROSS JOIN LATERAL (
        SELECT job_id, origin, state, NULL::timestamptz AS over_at FROM ondot.execution
        WHERE id = l.execution_id AND tenant_no = $1
        UNION ALL
        SELECT job_id, origin, state, ended_at FROM ondot.history
        WHERE id = l.execution_id AND id >= $2 AND id < $3 AND tenant_no = $1
        LIMIT 1
    ) e
)
SELECT j.id AS job_id, CASE WHEN o.outcome = 'WORKER_LOST' THEN o.worker_id END AS worker_id, o.outcome = 'WORKER_LOST' AS is_lost,
       count(*) AS count, count(DISTINCT o.execution_id) AS executions,
       count(DISTINCT o.execution_id) FILTER (WHERE o.state = 'SUCCEEDED') AS succeeded,
       min(o.ended_at) AS first_at, max(o.ended_at) AS last_at,
       (array_agg(o.execution_id ORDER BY o.ended_at DESC))[1] AS execution_id,
       (array_agg(coalesce(r.job_id, o.job_id) ORDER BY o.ended_at DESC))[1] AS example_job_id,
       (array_agg(o.message ORDER BY o.ended_at DESC))[1] AS message, (SELECT count(*) FROM latest) AS looked_at
FROM of_one o
LEFT JOIN LATERAL (SELECT r.job_id FROM ondot.run r WHERE r.id = o.job_id AND r.tenant_no = $1 LIMIT 1) r ON o.origin = 'step'
LEFT JOIN LATERAL (
    SELECT j.id FROM ondot.job j WHERE j.id = coalesce(r.job_id, o.job_id) AND j.tenant_no = $1 LIMIT 1
) j ON true
WHERE o.outcome = 'WORKER_LOST' OR o.state IN ('SUCCEEDED', 'RETRYING', 'RUNNING', 'PENDING') OR o.over_at >= $5
GROUP BY 1, 2, 3;

-- name: list_lost_workers :many
-- Workers that were marked lost in a window. There are few: ended ones are removed within a day.
-- $1 since, $2 until
SELECT id, host, pid, ended_at FROM ondot.worker
WHERE state = 'LOST' AND ended_at >= $1::timestamptz AND ended_at < $2::timestamptz
ORDER BY ended_at DESC LIMIT 100;

-- name: measure_before :many
-- index: history_job
-- How long the successes of these jobs took in the days before a window, at most 50 of each, latest first.
-- $1 tenant_no, $2 job ids, $3 from id, $4 before id, $5 from, $6 until
SELECT j.id AS job_id, count(*) AS count, avg(b.took_s)::double precision AS took_s
FROM unnest($2::uuid[]) AS j(id)
CROSS JOIN LATERAL (
    SELECT extract(epoch FROM h.ended_at - h.started_at) AS took_s FROM ondot.history h
    WHERE h.job_id = j.id AND h.tenant_no = $1::integer AND h.fire_at >= $5::timestamptz AND h.fire_at < $6::timestamptz
      AND h.id >= $3::uuid AND h.id < $4::uuid AND h.state = 'SUCCEEDED' AND h.origin = 'fire' AND h.started_at IS NOT NULL
    ORDER BY h.fire_at DESC LIMIT 50
) b
GROUP BY j.id;
