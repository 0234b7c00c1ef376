-- name: queue_depth :many
-- What waits, by pool and class. Counted up to a ceiling, so that a queue of millions does not slow down who looks.
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

-- name: planned_fires :many
-- index: ready_pkey, execution_pkey
-- Planned and not yet due: the earliest of each lane.
-- $1 tenant_no, $2 limit
SELECT e.job_id, e.job_version, e.fire_at, e.id
FROM ondot.pool p
CROSS JOIN generate_series(1, 4) AS c(class)
CROSS JOIN LATERAL (
    SELECT r.execution_id FROM ondot.ready r
    WHERE r.pool_no = p.pool_no AND r.class = c.class::smallint AND r.tenant_no = $1::integer
      AND r.ready_at > ondot.clock()
    ORDER BY r.ready_at LIMIT $2::integer
) r
JOIN ondot.execution e ON e.id = r.execution_id AND e.attempt_no = 0
ORDER BY e.fire_at LIMIT $2;

-- name: count_states :many
-- Executions ended in the last so many minutes, by state.
-- $1 tenant_no, $2 minutes
SELECT state, count(*) AS count FROM ondot.history
WHERE tenant_no = $1::integer AND id >= ondot.first_id_at(ondot.clock() - make_interval(mins => $2::integer) - interval '2 minutes')
  AND ended_at >= ondot.clock() - make_interval(mins => $2)
GROUP BY state;

-- name: count_jobs :one
-- Recurring jobs that are active or paused.
-- $1 tenant_no
SELECT count(*) FILTER (WHERE state = 'ACTIVE') AS active, count(*) FILTER (WHERE state = 'PAUSED') AS paused
FROM ondot.job WHERE tenant_no = $1::integer AND state <> 'DELETED';

-- name: count_dead_letters :one
-- $1 tenant_no
SELECT count(*) AS count FROM ondot.dead_letter WHERE tenant_no = $1::integer;
