-- The statements of a search. `store.search` replaces `true /* … */` by the conditions of a query, whose values are parameters
-- after those of the block. Each statement reads one range of ids: only the tables of those days are planned and locked.

-- fragment: job
-- The job of an execution `e`: that of a step is its run's.
CASE WHEN e.origin = 'step' THEN (SELECT r.job_id FROM ondot.run r WHERE r.id = e.job_id AND r.tenant_no = $1) ELSE e.job_id END

-- fragment: with_job
-- Its name, and the spec of a one-time job. Most one-time jobs are of the days $5 to $6, which are read as tables; the others
-- are looked up one by one, and only if the branches before return nothing.
LEFT JOIN LATERAL (
    SELECT b.name, NULL::json AS once_spec FROM ondot.job b WHERE b.id = {{job}} AND b.tenant_no = $1
    UNION ALL
    SELECT o.name, o.spec FROM ondot.job_once o
    WHERE o.id = {{job}} AND o.id >= $5::uuid AND o.id < $6::uuid AND o.tenant_no = $1
    UNION ALL
    SELECT f.name, f.spec FROM ondot.find_once($1, {{job}}) f WHERE {{job}} < $5
    LIMIT 1
) d ON true

-- name: search_chunk :many
-- index: execution_pkey, history_pkey, history_job or history_not_succeeded, backwards
-- Executions of a range of ids, newest first, live and ended.
-- $1 tenant_no, $2 from id, $3 before id, $4 limit
(SELECT e.id FROM ondot.execution e
 WHERE e.tenant_no = $1::integer AND e.id >= $2::uuid AND e.id < $3::uuid AND true /* live */
 ORDER BY e.id DESC LIMIT $4::integer)
UNION ALL
(SELECT e.id FROM ondot.history e
 WHERE e.tenant_no = $1 AND e.id >= $2 AND e.id < $3 AND true /* ended */
 ORDER BY e.id DESC LIMIT $4)
ORDER BY id DESC LIMIT $4;

-- name: search_chunk_by_job :many
-- index: execution_pkey, history_pkey or history_not_succeeded, backwards; job_pkey, job_once_pkey, run_pkey
-- The same with conditions on the job.
-- $1 tenant_no, $2 from id, $3 before id, $4 limit, $5 from id and $6 before id of most one-time jobs
(SELECT e.id FROM ondot.execution e {{with_job}}
 WHERE e.tenant_no = $1::integer AND e.id >= $2::uuid AND e.id < $3::uuid AND true /* live */
 ORDER BY e.id DESC LIMIT $4::integer)
UNION ALL
(SELECT e.id FROM ondot.history e {{with_job}}
 WHERE e.tenant_no = $1 AND e.id >= $2 AND e.id < $3 AND true /* ended */
 ORDER BY e.id DESC LIMIT $4)
ORDER BY id DESC LIMIT $4;

-- name: workers_on :many
-- index: worker_pkey
-- $1 patterns of LIKE, $2 limit
SELECT id FROM ondot.worker WHERE host ILIKE ANY ($1::text[]) ORDER BY id DESC LIMIT $2::integer;

-- name: search_jobs :many
-- index: job_pkey, job_version_pkey, job_once_pkey, backwards
-- Jobs of a range of ids, newest first.
-- $1 tenant_no, $2 from id, $3 before id, $4 limit
(SELECT j.id FROM ondot.job j JOIN ondot.job_version v ON v.job_id = j.id AND v.version = j.version
 WHERE j.tenant_no = $1::integer AND j.id >= $2::uuid AND j.id < $3::uuid AND true /* recurring */
 ORDER BY j.id DESC LIMIT $4::integer)
UNION ALL
(SELECT j.id FROM ondot.job_once j
 WHERE j.tenant_no = $1 AND j.id >= $2 AND j.id < $3 AND NOT EXISTS (SELECT FROM ondot.job b WHERE b.id = j.id)
   AND true /* once */
 ORDER BY j.id DESC LIMIT $4)
ORDER BY id DESC LIMIT $4;
