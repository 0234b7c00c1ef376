-- name: read_queue_depth :many
-- index: ready_pkey
-- Waiting executions by pool and class. Counted up to a ceiling, so that a queue of millions does not slow the reader down.
-- $1 ceiling
SELECT p.pool_no, p.name AS pool, c.class, waiting.count, waiting.oldest_at, ondot.clock() AS now
FROM ondot.pool p
CROSS JOIN generate_series(0, 5) AS c(class)
CROSS JOIN LATERAL (
    SELECT count(*) AS count, min(ready_at) AS oldest_at
    FROM (
        SELECT r.ready_at FROM ondot.tenant t CROSS JOIN LATERAL (
            SELECT ready_at FROM ondot.ready r
            WHERE r.pool_no = p.pool_no AND r.class = c.class::smallint AND r.tenant_no = t.tenant_no
              AND r.ready_at <= ondot.clock()
            ORDER BY r.ready_at LIMIT $1::integer
        ) r LIMIT $1
    ) due
) waiting
WHERE waiting.count > 0;

-- name: count_fleet :one
-- The nodes of the installation, its workers, or those that serve a tenant, and whether everything is held. There are
-- few: ended ones are removed within a day.
-- $1 tenant_no (NULL: all)
SELECT ondot.clock() AS now,
       (SELECT count(*) FROM ondot.node n WHERE ondot.is_node_alive(n.expires_at, n.beat_at)) AS nodes,
       count(*) FILTER (WHERE w.state = 'ALIVE') AS workers,
       coalesce(sum(w.slots) FILTER (WHERE w.state = 'ALIVE'), 0) AS slots,
       count(*) FILTER (WHERE w.state = 'DRAINING') AS draining,
       (SELECT held_at FROM ondot.lineage) AS held_at, (SELECT held_why FROM ondot.lineage) AS held_why,
       (SELECT min(a.coordination) FROM ondot.node a
        WHERE a.away_since IS NOT NULL AND a.beat_at > ondot.clock() - interval '30 seconds') AS away
FROM ondot.worker w
WHERE w.state IN ('ALIVE', 'DRAINING') AND ($1::integer IS NULL OR (
    (w.tenant_nos IS NULL OR $1 = ANY (w.tenant_nos)) AND EXISTS (
        SELECT FROM ondot.tenant t JOIN ondot.pool p ON '*' = ANY (t.pools) OR p.name = ANY (t.pools)
        WHERE t.tenant_no = $1 AND p.pool_no = ANY (w.pool_nos))));

-- name: pools_at_work :many
-- index: ready_pkey
-- The pools that the tenant may name: the workers there that serve it, and how much of its work is due and waits, counted
-- up to a ceiling for each class. Catch-up work and suspects are late by nature: they count as waiting and not as late.
-- Not the pool of deliveries, which is ondot's own: schedulers serve it.
-- $1 tenant_no, $2 ceiling
SELECT p.name, fleet.workers, fleet.slots, due.waiting, due.oldest_at
FROM ondot.pool p
CROSS JOIN LATERAL (
    SELECT count(*) AS workers, coalesce(sum(w.slots), 0) AS slots
    FROM ondot.worker w
    WHERE w.state = 'ALIVE' AND p.pool_no = ANY (w.pool_nos) AND (w.tenant_nos IS NULL OR $1 = ANY (w.tenant_nos))
) fleet
CROSS JOIN LATERAL (
    SELECT count(*) AS waiting, min(head.ready_at) FILTER (WHERE c.class < 4) AS oldest_at
    FROM generate_series(0, 5) AS c(class) CROSS JOIN LATERAL (
        SELECT r.ready_at FROM ondot.ready r
        WHERE r.pool_no = p.pool_no AND r.class = c.class::smallint AND r.tenant_no = $1::integer
          AND r.ready_at <= ondot.clock()
        ORDER BY r.ready_at LIMIT $2::integer
    ) head
) due
WHERE p.name NOT LIKE ':%'
  AND EXISTS (SELECT FROM ondot.tenant t WHERE t.tenant_no = $1 AND ('*' = ANY (t.pools) OR p.name = ANY (t.pools)))
ORDER BY due.oldest_at, p.name;

-- name: held_back :many
-- index: waiting_pkey, gate_pkey
-- Due executions that wait for limits, by line: from line to line by the index, up to a number of lines; due ones are first in
-- each. They are counted up to a ceiling: a line that was not reached counts as one.
-- $1 tenant_no (NULL: all), $2 lines at most, $3 ceiling
WITH RECURSIVE line AS (
    (SELECT gate_id, pool_no, 1 AS number FROM ondot.waiting ORDER BY gate_id, pool_no LIMIT 1)
    UNION ALL
    SELECT next.gate_id, next.pool_no, l.number + 1
    FROM line l CROSS JOIN LATERAL (
        SELECT w.gate_id, w.pool_no FROM ondot.waiting w
        WHERE (w.gate_id, w.pool_no) > (l.gate_id, l.pool_no)
        ORDER BY w.gate_id, w.pool_no LIMIT 1
    ) next
    WHERE l.number < $2::integer
), front AS MATERIALIZED (
    SELECT l.gate_id, l.pool_no, w.execution_id, w.stage, w.ready_at
    FROM line l CROSS JOIN LATERAL (
        SELECT w.execution_id, w.stage, w.ready_at, w.tenant_no FROM ondot.waiting w
        WHERE w.gate_id = l.gate_id AND w.pool_no = l.pool_no
        ORDER BY w.ready_at, w.execution_id LIMIT 1
    ) w
    WHERE w.ready_at <= ondot.clock() AND ($1::integer IS NULL OR w.tenant_no = $1)
), counted AS MATERIALIZED (
    SELECT gate_id, pool_no, count(*) AS count
    FROM (
        SELECT f.gate_id, f.pool_no FROM front f CROSS JOIN LATERAL (
            SELECT FROM ondot.waiting w
            WHERE w.gate_id = f.gate_id AND w.pool_no = f.pool_no AND w.ready_at <= ondot.clock() LIMIT $3::integer
        ) w
        LIMIT $3
    ) due
    GROUP BY gate_id, pool_no
)
SELECT f.execution_id, f.stage, f.ready_at AS oldest_at, g.kind, coalesce(c.count, 1) AS count,
       (SELECT max(number) FROM line) >= $2 OR (SELECT sum(count) FROM counted) >= $3 AS is_least
FROM front f
JOIN ondot.gate g ON g.id = f.gate_id
LEFT JOIN counted c ON c.gate_id = f.gate_id AND c.pool_no = f.pool_no;

-- name: held_back_for :many
-- index: execution_pkey, gated_pkey
-- The job, the pool and the limit of the first execution in each of these lines.
-- $1 executions, $2 the stages at which they wait, $3 tenant_no (NULL: all)
SELECT e.id, e.job_id, e.job_version, p.name AS pool, d.stages -> h.stage AS limit_
FROM unnest($1::uuid[], $2::integer[]) AS h(id, stage)
JOIN ondot.execution e ON e.id = h.id
JOIN ondot.gated d ON d.execution_id = h.id
JOIN ondot.pool p ON p.pool_no = e.pool_no
WHERE $3::integer IS NULL OR e.tenant_no = $3;

-- name: running_now :many
-- index: execution_pkey, worker_pkey, checkpoint_pkey, run_pkey
-- Running executions, longest first, read from the leases: never the whole table, as a hash join would. The job of a step is
-- that of its run.
-- $1 tenant_no, $2 limit, $3 ceiling of executions looked at
SELECT e.id, coalesce(r.job_id, e.job_id) AS job_id, e.job_version, e.started_at, e.attempt_no, e.total, w.host, w.pid,
       c.progress, c.message, CASE WHEN e.origin = 'step' THEN e.step_no END AS step_no
FROM (
    SELECT e.id, e.job_id, e.job_version, e.started_at, e.attempt_no, e.worker_id, e.origin, e.step_no,
           count(*) OVER () AS total
    FROM (SELECT unnest(execution_ids) AS id FROM ondot.lease LIMIT $3::integer) m
    CROSS JOIN LATERAL (SELECT * FROM ondot.execution e WHERE e.id = m.id LIMIT 1) e
    WHERE e.state = 'RUNNING' AND e.tenant_no = $1::integer
    ORDER BY e.started_at, e.id LIMIT $2::integer
) e
LEFT JOIN ondot.run r ON r.id = e.job_id AND r.tenant_no = $1 AND e.origin = 'step'
LEFT JOIN ondot.worker w ON w.id = e.worker_id
LEFT JOIN ondot.checkpoint c ON c.execution_id = e.id
ORDER BY e.started_at, e.id;

-- name: coming_fires :many
-- index: ready_pkey, waiting_pkey, execution_pkey, execution_fire, timer_due
-- The next fire of each of the jobs that fire next: the earliest not yet due, planned or not. Planned fires are in the queue, or
-- before a gate if the job has a limit; others are in timers. A timer that is due is late.
-- $1 tenant_no, $2 planned fires at most for each lane and before all gates, $3 timers at most
WITH RECURSIVE line AS (
    (SELECT gate_id, pool_no, 1 AS number FROM ondot.waiting ORDER BY gate_id, pool_no LIMIT 1)
    UNION ALL
    SELECT next.gate_id, next.pool_no, l.number + 1
    FROM line l CROSS JOIN LATERAL (
        SELECT w.gate_id, w.pool_no FROM ondot.waiting w
        WHERE (w.gate_id, w.pool_no) > (l.gate_id, l.pool_no)
        ORDER BY w.gate_id, w.pool_no LIMIT 1
    ) next
    WHERE l.number < $2::integer
), planned AS MATERIALIZED (
    SELECT r.execution_id
    FROM ondot.pool p
    CROSS JOIN generate_series(1, 4) AS c(class)
    CROSS JOIN LATERAL (
        SELECT r.execution_id FROM ondot.ready r
        WHERE r.pool_no = p.pool_no AND r.class = c.class::smallint AND r.tenant_no = $1::integer
          AND r.ready_at > ondot.clock()
        ORDER BY r.ready_at LIMIT $2
    ) r
    UNION ALL
    SELECT w.execution_id
    FROM line l
    CROSS JOIN LATERAL (
        SELECT w.execution_id FROM ondot.waiting w
        WHERE w.gate_id = l.gate_id AND w.pool_no = l.pool_no AND w.ready_at > ondot.clock() AND w.tenant_no = $1
        ORDER BY w.ready_at LIMIT $3::integer
    ) w
), timed AS MATERIALIZED (
    SELECT t.job_id, t.job_version, t.next_fire_at
    FROM generate_series(0, 63) AS p(partition_no)
    CROSS JOIN LATERAL (
        SELECT t.job_id, t.job_version, t.next_fire_at FROM ondot.timer t
        WHERE t.partition_no = p.partition_no::smallint AND t.tenant_no = $1 AND t.next_fire_at < 'infinity'
        ORDER BY t.next_fire_at LIMIT $3
    ) t
    ORDER BY t.next_fire_at LIMIT $3
), near AS MATERIALIZED (
    SELECT DISTINCT e.job_id FROM planned p
    CROSS JOIN LATERAL (SELECT job_id FROM ondot.execution e WHERE e.id = p.execution_id LIMIT 1) e
    UNION
    SELECT job_id FROM timed
)
SELECT n.job_id, e.job_version, e.fire_at AS at, true AS is_planned
FROM near n
CROSS JOIN LATERAL (
    SELECT e.job_version, e.fire_at FROM ondot.execution e
    WHERE e.job_id = n.job_id AND e.origin IN ('fire', 'backfill') AND e.fire_at > ondot.clock()
      AND e.tenant_no = $1 AND e.attempt_no = 0
    ORDER BY e.fire_at LIMIT 1
) e
UNION ALL
SELECT job_id, job_version, next_fire_at, false FROM timed
ORDER BY at;

-- name: latest_executions :many
-- index: execution_pkey, history_pkey, backwards; attempt_pkey
-- The latest executions by when they were due, live and ended together, each with its last error, without
-- steps of runs. Cut before the tenant is
-- compared: no page reads the whole history. For a tenant beside others: latest_among_tenants.
-- $1 tenant_no, $2 limit, $3 rows read in each table, $4 from id: the first page shows the last days
SELECT e.id, e.job_id, e.job_version, e.state, e.fire_at, e.ready_at, e.started_at, e.ended_at, e.attempt_no, e.reason,
       left(coalesce(e.error, a.error) ->> 'message', 300) AS message
FROM (
    (SELECT id, job_id, job_version, state, fire_at, ready_at, started_at, NULL::timestamptz AS ended_at, attempt_no,
            NULL::text AS reason, NULL::jsonb AS error
     FROM (SELECT * FROM ondot.execution ORDER BY id DESC LIMIT $3::integer) live
     WHERE tenant_no = $1::integer AND origin <> 'step' AND (attempt_no > 0 OR ready_at <= ondot.clock())
     ORDER BY ondot.due_at(id, fire_at) DESC, id DESC LIMIT $2::integer)
    UNION ALL
    (SELECT id, job_id, job_version, state, fire_at, ready_at, started_at, ended_at, attempt_no, reason, error
     FROM (SELECT * FROM ondot.history WHERE id >= $4::uuid ORDER BY id DESC LIMIT $3) ended
     WHERE tenant_no = $1 AND origin <> 'step'
     ORDER BY ondot.due_at(id, fire_at) DESC, id DESC LIMIT $2)
) e
LEFT JOIN LATERAL (
    SELECT a.error FROM ondot.attempt a
    WHERE a.execution_id = e.id AND a.execution_id >= $4 AND a.attempt_no = e.attempt_no LIMIT 1
) a ON e.state = 'RETRYING'
ORDER BY ondot.due_at(e.id, e.fire_at) DESC, e.id DESC LIMIT $2;

-- name: latest_among_tenants :many
-- index: execution_pkey, history_pkey, backwards; history_not_succeeded; attempt_pkey
-- As latest_executions, for a tenant whose executions may be hidden behind the newest of others: those that did not succeed
-- are found by an index of the tenant, however many others there are.
-- $1 tenant_no, $2 limit, $3 rows read in each table, $4 from id
SELECT e.id, e.job_id, e.job_version, e.state, e.fire_at, e.ready_at, e.started_at, e.ended_at, e.attempt_no, e.reason,
       left(coalesce(e.error, a.error) ->> 'message', 300) AS message
FROM (
    (SELECT id, job_id, job_version, state, fire_at, ready_at, started_at, NULL::timestamptz AS ended_at, attempt_no,
            NULL::text AS reason, NULL::jsonb AS error
     FROM (SELECT * FROM ondot.execution ORDER BY id DESC LIMIT $3::integer) live
     WHERE tenant_no = $1::integer AND origin <> 'step' AND (attempt_no > 0 OR ready_at <= ondot.clock())
     ORDER BY ondot.due_at(id, fire_at) DESC, id DESC LIMIT $2::integer)
    UNION ALL
    (SELECT id, job_id, job_version, state, fire_at, ready_at, started_at, ended_at, attempt_no, reason, error
     FROM (SELECT * FROM ondot.history WHERE id >= $4::uuid ORDER BY id DESC LIMIT $3) ended
     WHERE tenant_no = $1 AND origin <> 'step' AND state = 'SUCCEEDED'
     ORDER BY ondot.due_at(id, fire_at) DESC, id DESC LIMIT $2)
    UNION ALL
    (SELECT id, job_id, job_version, state, fire_at, ready_at, started_at, ended_at, attempt_no, reason, error
     FROM ondot.history WHERE tenant_no = $1 AND origin <> 'step' AND state <> 'SUCCEEDED' AND id >= $4 ORDER BY id DESC LIMIT $2)
) e
LEFT JOIN LATERAL (
    SELECT a.error FROM ondot.attempt a
    WHERE a.execution_id = e.id AND a.execution_id >= $4 AND a.attempt_no = e.attempt_no LIMIT 1
) a ON e.state = 'RETRYING'
ORDER BY ondot.due_at(e.id, e.fire_at) DESC, e.id DESC LIMIT $2;

-- name: recent_states :many
-- index: history_pkey, execution_pkey, backwards
-- States of the executions created since an instant, newest first and up to a ceiling: `looked_at` shows whether it was
-- reached. By id, because no index has the end of an execution.
-- $1 tenant_no, $2 the first id that counts, $3 ceiling
WITH ended AS MATERIALIZED (
    SELECT tenant_no, state FROM ondot.history WHERE id >= $2::uuid ORDER BY id DESC LIMIT $3::integer
)
SELECT state, count(*) AS count, (SELECT count(*) FROM ended) AS looked_at
FROM ended WHERE tenant_no = $1::integer GROUP BY state
UNION ALL
SELECT 'RETRYING', count(*), (SELECT count(*) FROM ended)
FROM (SELECT tenant_no, state FROM ondot.execution WHERE id >= $2 ORDER BY id DESC LIMIT $3) live
WHERE tenant_no = $1 AND state = 'RETRYING';

-- name: states_among_tenants :many
-- index: history_pkey, execution_pkey, backwards; history_not_succeeded
-- As recent_states, for a tenant beside others: those that did not succeed are counted by an index of the tenant, up to the
-- ceiling.
-- $1 tenant_no, $2 the first id that counts, $3 rows read, $4 ceiling
WITH ended AS MATERIALIZED (
    SELECT tenant_no, state FROM ondot.history WHERE id >= $2::uuid ORDER BY id DESC LIMIT $3::integer
)
SELECT 'SUCCEEDED' AS state, count(*) AS count, (SELECT count(*) FROM ended) AS looked_at
FROM ended WHERE tenant_no = $1::integer AND state = 'SUCCEEDED'
UNION ALL
SELECT state, count(*), 0
FROM (
    SELECT state FROM ondot.history
    WHERE tenant_no = $1 AND state <> 'SUCCEEDED' AND id >= $2 ORDER BY id DESC LIMIT $4::integer
) failed GROUP BY state
UNION ALL
SELECT 'RETRYING', count(*), 0
FROM (SELECT tenant_no, state FROM ondot.execution WHERE id >= $2 ORDER BY id DESC LIMIT $3) live
WHERE tenant_no = $1 AND state = 'RETRYING';

-- name: recent_skips :many
-- index: skipped_recent
-- Fires that were recorded as skipped within the last seconds, by reason: a range whose fires were not counted counts as at
-- least one. Exclusions of a calendar are intended and left out. Compared with the clock by which `at` is written.
-- $1 tenant_no, $2 seconds
SELECT s.reason, sum(coalesce(s.count, 1))::bigint AS count, bool_or(s.count IS NULL) AS is_least
FROM ondot.skipped s
WHERE s.tenant_no = $1::integer AND s.at > statement_timestamp() - make_interval(secs => $2::double precision)
  AND s.reason <> 'calendar'
GROUP BY s.reason
ORDER BY count DESC, s.reason;

-- name: missed_fires :one
-- index: skipped_recent, backfill_job
-- The cost of an outage: fires that were recorded as missed since an instant, and that no backfill covers. Of the latest ranges,
-- up to a limit: `looked_at` shows whether it was reached.
-- $1 tenant_no, $2 seconds, $3 ranges looked at
WITH latest AS MATERIALIZED (
    SELECT s.job_id, s.from_at, s.to_at, s.count FROM ondot.skipped s
    WHERE s.tenant_no = $1::integer AND s.at > ondot.clock() - make_interval(secs => $2::double precision)
      AND s.reason IN ('misfire', 'coalesced')
    ORDER BY s.at DESC LIMIT $3::integer
)
SELECT coalesce(sum(coalesce(s.count, 1)), 0)::bigint AS count, count(DISTINCT s.job_id) AS jobs,
       coalesce(bool_or(s.count IS NULL), false) OR (SELECT count(*) FROM latest) >= $3 AS is_least
FROM latest s
WHERE NOT EXISTS (SELECT FROM ondot.backfill b
                  WHERE b.job_id = s.job_id AND b.from_at <= s.from_at AND b.to_at >= s.to_at
                    AND b.state <> 'CANCELLED');

-- name: paused_by_itself :many
-- index: timer_due, job_pkey
-- Jobs that ondot paused, latest first. The timer of a paused job is at infinity, with few others: these are read, up to a limit
-- for each partition, and never all jobs.
-- $1 tenant_no, $2 limit, $3 timers read in each partition
SELECT j.id, j.name, j.state_reason, j.updated_at, count(*) OVER () AS total
FROM generate_series(0, 63) AS p(partition_no)
CROSS JOIN LATERAL (
    SELECT t.job_id FROM ondot.timer t
    WHERE t.partition_no = p.partition_no::smallint AND t.next_fire_at = 'infinity' AND t.tenant_no = $1::integer
    LIMIT $3::integer
) t
CROSS JOIN LATERAL (SELECT * FROM ondot.job j WHERE j.id = t.job_id LIMIT 1) j
WHERE j.state = 'PAUSED' AND j.state_reason IS NOT NULL
ORDER BY j.updated_at DESC, j.id LIMIT $2::integer;

-- name: version_made_at :one
-- index: job_version_pkey
-- When a version of a job was created. NULL for a one-time job that was never changed: it has its first version.
-- $1 tenant_no, $2 job_id, $3 version
SELECT created_at FROM ondot.job_version
WHERE job_id = $2::uuid AND version = $3::integer AND tenant_no = $1::integer;

-- name: blocked_runs :many
-- index: run_live, backwards
-- Runs that wait for a person, the newest first.
-- $1 tenant_no, $2 limit, $3 ceiling of their count
SELECT r.id, r.job_id, r.job_version, coalesce(r.blocked_at, r.started_at) AS blocked_at, r.reason,
       (SELECT count(*) FROM (
           SELECT FROM ondot.run WHERE tenant_no = $1 AND state = 'BLOCKED' AND ended_at IS NULL LIMIT $3::integer
       ) all_blocked) AS total
FROM ondot.run r
WHERE r.tenant_no = $1::integer AND r.state = 'BLOCKED' AND r.ended_at IS NULL
ORDER BY r.id DESC LIMIT $2::integer;

-- name: latest_dead_letters :many
-- index: dead_letter_open, backwards
-- Dead letters that wait for a person.
-- $1 tenant_no, $2 limit, $3 ceiling of their count
SELECT d.execution_id, d.job_id, d.job_version, d.failed_at, d.reason, left(d.error ->> 'message', 300) AS message,
       (SELECT count(*) FROM (
           SELECT FROM ondot.dead_letter WHERE tenant_no = $1 AND resolved_at IS NULL
           ORDER BY failed_at DESC LIMIT $3::integer
       ) newest) AS total
FROM ondot.dead_letter d
WHERE d.tenant_no = $1::integer AND d.resolved_at IS NULL
ORDER BY d.failed_at DESC LIMIT $2::integer;

-- name: count_jobs :one
-- index: job_name
-- Recurring jobs that are active or paused, of all tenants.
SELECT coalesce(sum(of_one.active), 0)::bigint AS active, coalesce(sum(of_one.paused), 0)::bigint AS paused
FROM ondot.tenant t CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE j.state = 'ACTIVE') AS active, count(*) FILTER (WHERE j.state = 'PAUSED') AS paused
    FROM ondot.job j WHERE j.tenant_no = t.tenant_no AND j.state <> 'DELETED'
) of_one;

-- name: count_dead_letters :one
-- index: dead_letter_open
-- Of all tenants.
SELECT coalesce(sum(of_one.count), 0)::bigint AS count
FROM ondot.tenant t CROSS JOIN LATERAL (
    SELECT count(*) AS count FROM ondot.dead_letter d WHERE d.tenant_no = t.tenant_no AND d.resolved_at IS NULL
) of_one;
