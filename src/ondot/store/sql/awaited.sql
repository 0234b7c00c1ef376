-- name: find_awaited_jobs :many
-- index: job_pkey, job_once_pkey
-- Which of these jobs exist, and their pools. The bounds are written into the text (store.day_bounds).
-- $1 tenant_no, $2 ids, $3 from id, $4 before id
SELECT j.id, p.name AS pool
FROM (
    SELECT id, pool_no FROM ondot.job WHERE id = ANY ($2::uuid[]) AND tenant_no = $1::integer
    UNION ALL
    SELECT o.id, o.pool_no FROM ondot.job_once o
    WHERE o.id = ANY ($2) AND o.id >= $3::uuid AND o.id < $4::uuid AND o.tenant_no = $1
      AND NOT EXISTS (SELECT FROM ondot.job b WHERE b.id = o.id)
) j
JOIN ondot.pool p ON p.pool_no = j.pool_no;

-- name: find_jobs_over :many
-- index: execution_fire, execution_other, timer_pkey, owed_job, subscription_pkey
-- Which of the awaited jobs of all callers have nothing left to do: not ondot.is_live, where a run that waits for a person does
-- not count. It is looked for many times a second: executions first, because nearly all awaited jobs have one.
-- $1 tenant_nos, $2 job_ids
SELECT a.job_id
FROM unnest($1::integer[], $2::uuid[]) AS a(tenant_no, job_id)
WHERE NOT EXISTS (SELECT FROM ondot.execution e
                  WHERE e.job_id = a.job_id AND e.tenant_no = a.tenant_no AND e.origin IN ('fire', 'backfill')
                    AND (e.state <> 'BLOCKED' OR e.attempt_no = 0))
  AND NOT EXISTS (SELECT FROM ondot.execution e
                  WHERE e.job_id = a.job_id AND e.tenant_no = a.tenant_no AND e.origin NOT IN ('fire', 'backfill')
                    AND (e.state <> 'BLOCKED' OR e.attempt_no = 0))
  AND NOT EXISTS (SELECT FROM ondot.timer t
                  WHERE t.job_id = a.job_id AND t.tenant_no = a.tenant_no AND t.next_fire_at < 'infinity')
  AND NOT EXISTS (SELECT FROM ondot.owed o WHERE o.job_id = a.job_id AND o.tenant_no = a.tenant_no)
  AND NOT EXISTS (SELECT FROM ondot.subscription s WHERE s.id = a.job_id AND s.tenant_no = a.tenant_no);

-- name: read_latest_ends :many
-- index: history_job, execution_fire, execution_other
-- The latest execution of each of these jobs: ended, or waiting for a person. A long result is left out.
-- $1 tenant_no, $2 job_ids, $3 the most bytes of a result, $4 from id, $5 before id
SELECT DISTINCT ON (e.job_id) e.job_id, e.id, e.state, e.attempt_no, e.ended_at, e.reason, e.error,
       CASE WHEN octet_length(e.result::text) <= $3::integer THEN e.result END AS result,
       e.result IS NOT NULL AND octet_length(e.result::text) > $3 AS is_long
FROM (
    SELECT job_id, id, state, attempt_no, ended_at, reason, error, result FROM ondot.history
    WHERE job_id = ANY ($2::uuid[]) AND tenant_no = $1::integer AND id >= $4::uuid AND id < $5::uuid
    UNION ALL
    SELECT job_id, id, state, attempt_no, NULL, NULL, NULL, NULL FROM ondot.execution
    WHERE job_id = ANY ($2) AND tenant_no = $1 AND origin IN ('fire', 'backfill') AND state = 'BLOCKED'
    UNION ALL
    SELECT job_id, id, state, attempt_no, NULL, NULL, NULL, NULL FROM ondot.execution
    WHERE job_id = ANY ($2) AND tenant_no = $1 AND origin NOT IN ('fire', 'backfill') AND state = 'BLOCKED'
) e
ORDER BY e.job_id, e.id DESC;
