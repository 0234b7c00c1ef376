-- The statements of a search. `store.search` replaces `true /* … */` by the conditions of a query, whose values are parameters
-- after those of the block. Each statement reads one range of ids: only the tables of those days are planned and locked.

-- name: search_chunk :many
-- index: execution_pkey, history_pkey, history_job, history_not_succeeded or history_tenant, backwards
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
-- index: as search_chunk; job_once_pkey, job_version_pkey, run_pkey
-- The same with conditions that read the job: most one-time jobs are those of the days $5 to $6, the others are looked up one
-- by one (find_once).
-- $1 tenant_no, $2 from id, $3 before id, $4 limit, $5 from id and $6 before id of one-time jobs
(SELECT e.id FROM ondot.execution e
 WHERE e.tenant_no = $1::integer AND e.id >= $2::uuid AND e.id < $3::uuid AND $5::uuid <= $6::uuid AND true /* live */
 ORDER BY e.id DESC LIMIT $4::integer)
UNION ALL
(SELECT e.id FROM ondot.history e
 WHERE e.tenant_no = $1 AND e.id >= $2 AND e.id < $3 AND true /* ended */
 ORDER BY e.id DESC LIMIT $4)
ORDER BY id DESC LIMIT $4;

-- name: recurring_jobs :many
-- index: job_name
-- The recurring jobs of a tenant, and whether each has one of these names. A tenant with more than the limit is searched
-- without them.
-- $1 tenant_no, $2 patterns of LIKE, $3 limit
SELECT id, name ILIKE ANY ($2::text[]) AS is_named FROM ondot.job WHERE tenant_no = $1::integer LIMIT $3::integer;

-- name: workers_on :many
-- index: worker_pkey
-- $1 patterns of LIKE, $2 limit
SELECT id FROM ondot.worker WHERE host ILIKE ANY ($1::text[]) ORDER BY id DESC LIMIT $2::integer;

-- name: search_jobs :many
-- index: job_pkey, job_version_pkey, job_once_pkey, or job_tenant and job_once_tenant, backwards
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

-- name: search_runs :many
-- index: run_tenant, backwards
-- Runs of a range of ids, newest first.
-- $1 tenant_no, $2 from id, $3 before id, $4 limit
SELECT r.id FROM ondot.run r
WHERE r.tenant_no = $1::integer AND r.id >= $2::uuid AND r.id < $3::uuid AND true /* runs */
ORDER BY r.id DESC LIMIT $4::integer;
