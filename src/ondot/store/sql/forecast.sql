-- name: jobs_ahead :many
-- index: timer_pkey, job_pkey, job_version_pkey
-- Recurring jobs that fire before an instant, a page at a time, as one row of arrays: Python spent more time on
-- collecting 100,000 rows than on anything else. The schedule is text: jobs that share it are decoded once.
-- $1 tenant_no (NULL: all), $2 after job_id, $3 fires before, $4 limit
SELECT array_agg(job_id) AS job_ids, array_agg(pool_no) AS pool_nos, array_agg(schedule) AS schedules,
       array_agg(tenant_no) AS tenant_nos, array_agg(fires_left) AS fires_left,
       array_agg(next_fire_at) AS next_fires_at
FROM (
    SELECT t.job_id, j.pool_no, (v.spec -> 'schedule')::text AS schedule, t.tenant_no, t.fires_left, t.next_fire_at
    FROM ondot.timer t
    JOIN ondot.job j ON j.id = t.job_id
    JOIN ondot.job_version v ON v.job_id = t.job_id AND v.version = t.job_version
    -- Of all three tables: a merge join would read the others from their beginning for each page.
    WHERE t.job_id > $2::uuid AND j.id > $2 AND v.job_id > $2
      AND t.next_fire_at < $3::timestamptz AND ($1::integer IS NULL OR t.tenant_no = $1)
    ORDER BY t.job_id LIMIT $4::integer
) page;

-- name: queued_ahead :many
-- index: ready_pkey
-- Executions that become due in the range: one-time work, retries, and fires that are planned already. A bounded number
-- of each queue is counted.
-- $1 tenant_no, $2 from, $3 to, $4 step in seconds, $5 at most
SELECT counted.pool_no, counted.step, count(*) AS count
FROM (
    SELECT p.pool_no, floor(extract(epoch FROM q.ready_at - $2::timestamptz) / $4::integer)::integer AS step
    FROM ondot.pool p
    CROSS JOIN generate_series(0, 5) AS c(class)
    CROSS JOIN LATERAL (
        SELECT r.ready_at FROM ondot.ready r
        WHERE r.pool_no = p.pool_no AND r.class = c.class AND r.tenant_no = $1::integer
          AND r.ready_at >= $2::timestamptz AND r.ready_at < $3::timestamptz
        ORDER BY r.ready_at LIMIT $5::integer
    ) q
) counted
GROUP BY 1, 2;

-- name: shared_pools :many
-- index: ready_pkey
-- Those of these pools whose live workers all serve every tenant, with the due executions of other tenants that wait there,
-- counted up to a ceiling.
-- $1 tenant_no, $2 pool_nos, $3 ceiling
SELECT p.pool_no, waiting.count
FROM unnest($2::integer[]) AS p(pool_no)
CROSS JOIN LATERAL (
    SELECT count(*) AS count FROM (
        SELECT FROM generate_series(0, 5) AS c(class) CROSS JOIN ondot.tenant t CROSS JOIN LATERAL (
            SELECT FROM ondot.ready r
            WHERE r.pool_no = p.pool_no AND r.class = c.class::smallint AND r.tenant_no = t.tenant_no
              AND r.ready_at <= ondot.clock()
            LIMIT $3::integer
        ) r
        WHERE t.tenant_no <> $1::integer LIMIT $3
    ) due
) waiting
WHERE NOT EXISTS (SELECT FROM ondot.worker w
                  WHERE w.state = 'ALIVE' AND p.pool_no = ANY (w.pool_nos) AND w.tenant_nos IS NOT NULL);

-- name: measured_durations :many
-- How long the latest executions took, by job: of the newest rows of history, which are read backwards up to a limit.
-- $1 tenant_no (NULL: all), $2 rows, $3 from id, $4 before id
SELECT job_id, avg(extract(epoch FROM ended_at - started_at))::float8 AS mean_s
FROM (
    SELECT h.job_id, h.started_at, h.ended_at FROM ondot.history h
    WHERE h.id >= $3::uuid AND h.id < $4::uuid AND ($1::integer IS NULL OR h.tenant_no = $1)
      AND h.started_at IS NOT NULL
    ORDER BY h.id DESC LIMIT $2::integer
) latest
GROUP BY job_id;

-- name: slots_of_pools :many
SELECT p.pool_no, p.name, least(sum(w.slots), p.concurrency)::integer AS slots
FROM ondot.worker w JOIN ondot.pool p ON p.pool_no = ANY (w.pool_nos)
WHERE w.state = 'ALIVE'
GROUP BY p.pool_no;

-- name: names_of_jobs :many
-- index: job_pkey
-- $1 tenant_no, $2 ids
SELECT id, name FROM ondot.job WHERE tenant_no = $1::integer AND id = ANY ($2::uuid[]);

-- name: actual_loads :many
-- What ran, by pool and bucket of the instant at which it became due, of one tenant, and of all in the pools that they
-- share: of the newest rows of history, read backwards up to a limit.
-- $1 tenant_no, $2 shared pool_nos, $3 from, $4 to, $5 bucket in seconds, $6 rows, $7 from id, $8 before id
SELECT latest.pool_no, floor(extract(epoch FROM latest.ready_at - $3::timestamptz) / $5::integer)::integer AS bucket,
       count(*) AS executions,
       coalesce(sum(latest.took_s), 0)::float8 AS work_s,
       coalesce(sum(latest.took_s) FILTER (WHERE latest.tenant_no <> $1::integer), 0)::float8 AS others_s,
       max(extract(epoch FROM latest.started_at - latest.ready_at))::float8 AS wait_s
FROM (
    SELECT h.pool_no, h.tenant_no, h.ready_at, h.started_at, extract(epoch FROM h.ended_at - h.started_at) AS took_s
    FROM ondot.history h
    WHERE h.id >= $7::uuid AND h.id < $8::uuid AND (h.tenant_no = $1 OR h.pool_no = ANY ($2::integer[]))
      AND h.ready_at >= $3 AND h.ready_at < $4::timestamptz
    ORDER BY h.id DESC LIMIT $6::integer
) latest
GROUP BY 1, 2;

-- name: once_timers :many
-- index: timer_due, job_pkey
-- One-time jobs that fire in the range, a bounded number of them.
-- $1 tenant_no, $2 from, $3 to, $4 at most
SELECT due.job_id, due.next_fire_at
FROM generate_series(0, 63) AS p(partition_no)
CROSS JOIN LATERAL (
    SELECT t.job_id, t.next_fire_at FROM ondot.timer t
    WHERE t.partition_no = p.partition_no AND t.tenant_no = $1::integer
      AND t.next_fire_at >= $2::timestamptz AND t.next_fire_at < $3::timestamptz
      -- A look-up for each: NOT EXISTS became a merge join, which read all jobs again for each partition.
      AND (SELECT j.id FROM ondot.job j WHERE j.id = t.job_id) IS NULL
    ORDER BY t.next_fire_at LIMIT $4::integer
) due
LIMIT $4;

-- name: pools_of_once :many
-- $1 tenant_no, $2 ids, $3 from id, $4 before id
SELECT id, pool_no FROM ondot.job_once
WHERE tenant_no = $1::integer AND id = ANY ($2::uuid[]) AND id >= $3::uuid AND id < $4::uuid;
