-- What alerts look at. One statement for all alerts of a kind, over all tenants that have such alerts; each reads a bounded
-- number of rows by an index, however many jobs, executions and letters there are.

-- fragment: lanes
-- From lane to lane by the index: only those that have rows.
lane AS (
    (SELECT pool_no, class, tenant_no FROM ondot.ready ORDER BY pool_no, class, tenant_no LIMIT 1)
    UNION ALL
    SELECT next.pool_no, next.class, next.tenant_no
    FROM lane l CROSS JOIN LATERAL (
        SELECT r.pool_no, r.class, r.tenant_no FROM ondot.ready r
        WHERE (r.pool_no, r.class, r.tenant_no) > (l.pool_no, l.class, l.tenant_no)
        ORDER BY r.pool_no, r.class, r.tenant_no LIMIT 1
    ) next
)

-- fragment: lines
-- From line to line before limits, up to a number of them; the first of each.
line AS (
    (SELECT gate_id, pool_no, tenant_no, ready_at, execution_id, 1 AS number
     FROM ondot.waiting ORDER BY gate_id, pool_no, ready_at, execution_id LIMIT 1)
    UNION ALL
    SELECT next.gate_id, next.pool_no, next.tenant_no, next.ready_at, next.execution_id, l.number + 1
    FROM line l CROSS JOIN LATERAL (
        SELECT w.gate_id, w.pool_no, w.tenant_no, w.ready_at, w.execution_id FROM ondot.waiting w
        WHERE (w.gate_id, w.pool_no) > (l.gate_id, l.pool_no)
        ORDER BY w.gate_id, w.pool_no, w.ready_at, w.execution_id LIMIT 1
    ) next
    WHERE l.number < $3::integer
)

-- name: open_letters_by_job :many
-- index: dead_letter_open, backwards
-- The newest open letters of each tenant, by job: how many, since when, and when the latest ones failed.
-- $1 tenant_nos (NULL: all), $2 letters of each tenant at most, $3 instants of each job at most
SELECT l.tenant_no, l.job_id, count(*) AS count, min(l.failed_at) AS first_at,
       (array_agg(l.failed_at ORDER BY l.failed_at DESC))[:$3::integer] AS failed_ats
FROM ondot.tenant t CROSS JOIN LATERAL (
    SELECT d.tenant_no, d.job_id, d.failed_at FROM ondot.dead_letter d
    WHERE d.tenant_no = t.tenant_no AND d.resolved_at IS NULL
    ORDER BY d.failed_at DESC LIMIT $2::integer
) l
WHERE t.state = 'ACTIVE' AND ($1::integer[] IS NULL OR t.tenant_no = ANY ($1))
GROUP BY l.tenant_no, l.job_id;

-- name: open_letters_of_jobs :many
-- index: dead_letter_job, backwards
-- The same of some jobs, however many letters other jobs have: not counted beyond the instants.
-- $1 job_ids, $2 instants of each job at most
SELECT l.tenant_no, l.job_id, count(*) AS count, min(l.failed_at) AS first_at,
       array_agg(l.failed_at ORDER BY l.failed_at DESC) AS failed_ats
FROM unnest($1::uuid[]) AS n(id) CROSS JOIN LATERAL (
    SELECT d.tenant_no, d.job_id, d.failed_at FROM ondot.dead_letter d
    WHERE d.job_id = n.id AND d.resolved_at IS NULL
    ORDER BY d.failed_at DESC LIMIT $2::integer
) l
GROUP BY l.tenant_no, l.job_id;

-- name: failures_by_job :many
-- index: dead_letter_open, dead_letter_handled
-- Failures within the last seconds, handled since or not, for each of several lengths.
-- $1 tenant_nos (NULL: all), $2 seconds, $3 letters of each tenant and length at most
SELECT w.within_s, l.tenant_no, l.job_id, count(*) AS count, min(l.failed_at) AS first_at
FROM ondot.tenant t CROSS JOIN unnest($2::double precision[]) AS w(within_s) CROSS JOIN LATERAL (
    (SELECT d.tenant_no, d.job_id, d.failed_at FROM ondot.dead_letter d
     WHERE d.tenant_no = t.tenant_no AND d.resolved_at IS NULL
       AND d.failed_at > ondot.clock() - make_interval(secs => w.within_s)
     ORDER BY d.failed_at DESC LIMIT $3::integer)
    UNION ALL
    (SELECT d.tenant_no, d.job_id, d.failed_at FROM ondot.dead_letter d
     WHERE d.tenant_no = t.tenant_no AND d.resolved_at IS NOT NULL
       AND d.failed_at > ondot.clock() - make_interval(secs => w.within_s)
     ORDER BY d.failed_at DESC LIMIT $3)
) l
WHERE t.state = 'ACTIVE' AND ($1::integer[] IS NULL OR t.tenant_no = ANY ($1))
GROUP BY w.within_s, l.tenant_no, l.job_id;

-- name: last_ends :many
-- index: history_job, backwards
-- How the last executions of jobs ended, newest first, of those created since an id: the days before are not read. No upper
-- bound: without statistics, as in a day that has just begun, PostgreSQL takes a range of ids for a few rows, and reads all of
-- it for each job. Ten thousand jobs took 30 s so, and take 0.5 s without it.
-- $1 job_ids, $2 from id, $3 of each job at most
SELECT n.id AS job_id, array_agg(h.state ORDER BY h.fire_at DESC, h.id DESC) AS states
FROM unnest($1::uuid[]) AS n(id) CROSS JOIN LATERAL (
    SELECT h.id, h.fire_at, h.state FROM ondot.history h
    WHERE h.job_id = n.id AND h.id >= $2::uuid AND h.state IN ('SUCCEEDED', 'FAILED')
    ORDER BY h.fire_at DESC LIMIT $3::integer
) h
GROUP BY n.id;

-- name: latest_letters :many
-- index: dead_letter_job, backwards
-- Why jobs failed last.
-- $1 job_ids
SELECT d.job_id, d.execution_id, coalesce(d.error ->> 'fingerprint', d.reason, '') AS fingerprint,
       left(coalesce(d.error ->> 'message', d.reason, ''), 300) AS message
FROM unnest($1::uuid[]) AS n(id) CROSS JOIN LATERAL (
    SELECT * FROM ondot.dead_letter d WHERE d.job_id = n.id AND d.resolved_at IS NULL ORDER BY d.failed_at DESC LIMIT 1
) d;

-- name: late_executions :many
-- index: ready_pkey, waiting_pkey, execution_pkey
-- Executions that have not started though they are due since some seconds, by job, with the oldest: in the queue and before
-- limits. Catch-up work, suspects, retries and steps of runs are no fires that are late.
-- $1 seconds, $2 of each lane at most, $3 lines at most
WITH RECURSIVE {{lanes}}, {{lines}}, late AS MATERIALIZED (
    SELECT r.execution_id, r.ready_at, false AS is_held_back FROM lane l CROSS JOIN LATERAL (
        SELECT r.execution_id, r.ready_at FROM ondot.ready r
        WHERE r.pool_no = l.pool_no AND r.class = l.class AND r.tenant_no = l.tenant_no
          AND r.ready_at <= ondot.clock() - make_interval(secs => $1::double precision)
        ORDER BY r.ready_at LIMIT $2::integer
    ) r
    WHERE l.class < 4
    UNION ALL
    SELECT execution_id, ready_at, true FROM line
    WHERE ready_at <= ondot.clock() - make_interval(secs => $1)
)
SELECT e.tenant_no, e.job_id, min(l.ready_at) AS due_at, count(*) AS count, bool_or(l.is_held_back) AS is_held_back,
       (array_agg(e.id ORDER BY l.ready_at))[1] AS execution_id
FROM late l CROSS JOIN LATERAL (SELECT * FROM ondot.execution e WHERE e.id = l.execution_id LIMIT 1) e
WHERE e.attempt_no = 0 AND e.origin <> 'step' AND e.class < 4
GROUP BY e.tenant_no, e.job_id;

-- name: oldest_waits :many
-- index: ready_pkey, waiting_pkey
-- Since when the first execution of each lane waits for a worker, and the first before a limit, by pool and tenant. Catch-up
-- work and suspects wait by design.
-- $1 whether behind limits too, $2 seconds: only those that wait for longer, $3 lines at most
WITH RECURSIVE {{lanes}}, {{lines}}, waits AS (
    SELECT l.pool_no, l.tenant_no, r.ready_at, r.execution_id, false AS is_held_back
    FROM lane l CROSS JOIN LATERAL (
        SELECT r.ready_at, r.execution_id FROM ondot.ready r
        WHERE r.pool_no = l.pool_no AND r.class = l.class AND r.tenant_no = l.tenant_no ORDER BY r.ready_at LIMIT 1
    ) r
    WHERE l.class < 4
    UNION ALL
    SELECT pool_no, tenant_no, ready_at, execution_id, true FROM line WHERE $1::boolean
)
SELECT p.name AS pool, w.tenant_no, w.is_held_back, min(w.ready_at) AS since,
       (array_agg(w.execution_id ORDER BY w.ready_at))[1] AS execution_id
FROM waits w JOIN ondot.pool p ON p.pool_no = w.pool_no
WHERE w.ready_at <= ondot.clock() - make_interval(secs => $2::double precision)
GROUP BY p.name, w.tenant_no, w.is_held_back;

-- name: live_workers :many
-- index: pool_name_key
-- How many workers serve a tenant in a pool. A pool that does not exist has none. There are few workers: ended ones are removed
-- within a day.
-- $1 pools, $2 tenant_nos
SELECT n.pool, n.tenant_no, count(w.id) AS count
FROM unnest($1::text[], $2::integer[]) AS n(pool, tenant_no)
LEFT JOIN ondot.pool p ON p.name = n.pool
LEFT JOIN ondot.worker w ON w.state = 'ALIVE' AND p.pool_no = ANY (w.pool_nos)
                        AND (w.tenant_nos IS NULL OR n.tenant_no = ANY (w.tenant_nos))
GROUP BY n.pool, n.tenant_no;

-- name: recent_misses :many
-- index: skipped_recent
-- Fires that were recorded as missed within the last seconds, by job. Compared with the clock by which `at` is written.
-- $1 tenant_nos (NULL: all), $2 seconds, $3 ranges of each tenant at most
SELECT s.tenant_no, s.job_id, sum(coalesce(s.count, 1))::bigint AS count, min(s.from_at) AS from_at,
       max(s.to_at) AS to_at, extract(epoch FROM statement_timestamp() - min(s.at))::double precision AS ago_s
FROM ondot.tenant t CROSS JOIN LATERAL (
    SELECT * FROM ondot.skipped s
    WHERE s.tenant_no = t.tenant_no AND s.at > statement_timestamp() - make_interval(secs => $2::double precision)
      AND s.reason IN ('misfire', 'coalesced')
    ORDER BY s.at DESC LIMIT $3::integer
) s
WHERE t.state = 'ACTIVE' AND ($1::integer[] IS NULL OR t.tenant_no = ANY ($1))
GROUP BY s.tenant_no, s.job_id;

-- name: blocked_now :many
-- index: run_blocked, dependent_stuck
-- Runs that wait for a person, and jobs whose parents did not succeed.
-- $1 tenant_nos (NULL: all), $2 of each tenant at most
SELECT r.tenant_no, r.job_id, r.id, r.blocked_at AS since, coalesce(r.reason, '') AS reason, true AS is_run
FROM ondot.tenant t CROSS JOIN LATERAL (
    SELECT * FROM ondot.run r
    WHERE r.tenant_no = t.tenant_no AND r.blocked_at IS NOT NULL AND r.ended_at IS NULL AND r.state = 'BLOCKED'
    ORDER BY r.blocked_at LIMIT $2::integer
) r
WHERE t.state = 'ACTIVE' AND ($1::integer[] IS NULL OR t.tenant_no = ANY ($1))
UNION ALL
(SELECT d.tenant_no, d.child_id, d.execution_id, d.stuck_at, '', false FROM ondot.dependent d
 WHERE d.stuck_at IS NOT NULL AND ($1 IS NULL OR d.tenant_no = ANY ($1)) ORDER BY d.stuck_at LIMIT $2);

-- name: conditions_now :many
-- index: condition_pkey
-- $1 kinds, $2 tenant_nos (NULL: all), $3 limit
SELECT kind, tenant_no, subject, job_id, since, message, details FROM ondot.condition
WHERE kind = ANY ($1::text[]) AND (until_at IS NULL OR until_at > ondot.clock())
  AND ($2::integer[] IS NULL OR tenant_no = ANY ($2))
ORDER BY kind, tenant_no, subject LIMIT $3::integer;

-- name: held_by_quotas :many
-- index: ready_pkey, tenant_limit_pkey, tenant_running_pkey
-- Tenants whose due work waits though their quota of running attempts is used up, or that of starts for now. Only tenants with
-- such a quota have a row of limits.
-- $1 tenant_nos (NULL: all)
WITH RECURSIVE {{lanes}}, waits AS (
    SELECT l.tenant_no, min(r.ready_at) AS since
    FROM lane l JOIN ondot.tenant_limit t ON t.tenant_no = l.tenant_no
    CROSS JOIN LATERAL (
        SELECT r.ready_at FROM ondot.ready r
        WHERE r.pool_no = l.pool_no AND r.class = l.class AND r.tenant_no = l.tenant_no ORDER BY r.ready_at LIMIT 1
    ) r
    WHERE r.ready_at <= ondot.clock() AND ($1::integer[] IS NULL OR l.tenant_no = ANY ($1))
    GROUP BY l.tenant_no
)
SELECT w.tenant_no, q.quota, q.most, q.per_s, w.since
FROM waits w JOIN ondot.tenant t ON t.tenant_no = w.tenant_no AND t.state = 'ACTIVE'
JOIN ondot.tenant_limit l ON l.tenant_no = w.tenant_no
CROSS JOIN LATERAL (
    SELECT 'concurrent' AS quota, l.concurrent AS most, NULL::double precision AS per_s
    WHERE l.concurrent <= (SELECT coalesce(sum(r.running), 0) FROM ondot.tenant_running r WHERE r.tenant_no = w.tenant_no)
    UNION ALL
    SELECT 'starts', l.rate_limit, l.rate_per_s
    WHERE least(l.token_at, ondot.clock() + make_interval(secs => l.rate_burst * l.rate_per_s / l.rate_limit))
          - make_interval(secs => (l.rate_burst - 1) * l.rate_per_s / l.rate_limit) > ondot.clock()
) q;

-- name: found_recently :many
-- index: found_pkey
-- What the self-check found within the last seconds. A few rows.
-- $1 seconds
SELECT kind, count, last_at, example FROM ondot.found
WHERE last_at > ondot.clock() - make_interval(secs => $1::double precision);

-- name: describe_jobs :many
-- index: job_pkey, job_once_pkey
-- Jobs as alerts show them. Deleted ones, and those that are gone, are left out.
-- $1 ids
SELECT n.id, j.tenant_no, j.name, j.labels, p.name AS pool, t.name AS tenant
FROM unnest($1::uuid[]) AS n(id)
CROSS JOIN LATERAL (
    SELECT tenant_no, name, labels, pool_no FROM ondot.job WHERE id = n.id AND state <> 'DELETED'
    UNION ALL
    SELECT tenant_no, name, labels, pool_no FROM ondot.job_once
    WHERE id = n.id AND id = ANY ($1) AND NOT EXISTS (SELECT FROM ondot.job WHERE id = n.id)
    LIMIT 1
) j
JOIN ondot.pool p ON p.pool_no = j.pool_no
JOIN ondot.tenant t ON t.tenant_no = j.tenant_no;
