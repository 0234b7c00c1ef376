-- name: take_quota_tokens :one
-- locks: the row of the quota        index: quota_token_pkey
-- $1 tenant_no, $2 quota, $3 seconds for one token, $4 burst, $5 least, $6 wanted
SELECT t.count, t.wait_s FROM ondot.take_quota($1::integer, $2::text, $3::double precision, $4::integer, $5::integer, $6::integer) t;

-- name: count_live_jobs :none
-- locks: the rows of the counts        index: timer_tenant, job_name, execution_tenant, timer_pkey
-- The live jobs of these tenants, each counted up to a bound: those with a coming fire, paused ones, and one-time jobs that
-- wait for a worker or run. The index has no rows of the first tenant, so its tables are read up to the bound.
-- $1 tenant_nos, $2 bounds
INSERT INTO ondot.job_count (tenant_no, jobs, counted_at)
SELECT t.tenant_no, coming.count + paused.count + live.count, ondot.clock()
FROM unnest($1::integer[], $2::bigint[]) AS t(tenant_no, most)
CROSS JOIN LATERAL (
    SELECT count(*) AS count FROM (
        SELECT FROM (SELECT FROM ondot.timer m WHERE t.tenant_no > 1 AND m.tenant_no = t.tenant_no AND m.tenant_no > 1
                       AND m.next_fire_at < 'infinity' LIMIT t.most) others
        UNION ALL
        SELECT FROM (SELECT FROM ondot.timer m WHERE t.tenant_no = 1 AND m.tenant_no = 1 AND m.next_fire_at < 'infinity'
                     LIMIT t.most) first
    ) counted
) coming
CROSS JOIN LATERAL (
    SELECT count(*) AS count FROM (
        SELECT FROM ondot.job j WHERE j.tenant_no = t.tenant_no AND j.state = 'PAUSED' LIMIT t.most
    ) counted
) paused
CROSS JOIN LATERAL (
    SELECT count(*) AS count FROM (
        SELECT FROM (
            SELECT e.job_id FROM ondot.execution e
            WHERE t.tenant_no > 1 AND e.tenant_no = t.tenant_no AND e.tenant_no > 1
            UNION ALL
            SELECT e.job_id FROM ondot.execution e WHERE t.tenant_no = 1 AND e.tenant_no = 1
        ) e
        LEFT JOIN LATERAL (
            SELECT true AS is_counted FROM ondot.timer m WHERE m.job_id = e.job_id AND m.next_fire_at < 'infinity' LIMIT 1
        ) m ON true
        WHERE m.is_counted IS NULL LIMIT t.most
    ) counted
) live
ORDER BY t.tenant_no
ON CONFLICT (tenant_no) DO UPDATE SET jobs = excluded.jobs, counted_at = excluded.counted_at;

-- name: read_job_count :one
-- index: job_count_pkey
-- $1 tenant_no
SELECT jobs, counted_at FROM ondot.job_count WHERE tenant_no = $1::integer;
