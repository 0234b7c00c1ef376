-- name: read_usage :many
-- locks: none        index: ready_pkey, execution_pkey, lease_pkey
-- Which tenants run or wait in each pool. Running attempts are found by their leases. Waiting work is found by jumps from
-- tenant to tenant, of some tenants of each class, and counted up to a ceiling.
-- $1 ceiling for each lane, $2 the most lanes
WITH RECURSIVE lane AS (
    SELECT p.pool_no, c.class::smallint AS class, head.tenant_no, head.ready_at, 1 AS number
    FROM ondot.pool p CROSS JOIN generate_series(0, 5) AS c(class) CROSS JOIN LATERAL (
        SELECT r.tenant_no, r.ready_at FROM ondot.ready r
        WHERE r.pool_no = p.pool_no AND r.class = c.class::smallint ORDER BY r.tenant_no, r.ready_at LIMIT 1
    ) head
    UNION ALL
    SELECT l.pool_no, l.class, head.tenant_no, head.ready_at, l.number + 1
    FROM lane l CROSS JOIN LATERAL (
        SELECT r.tenant_no, r.ready_at FROM ondot.ready r
        WHERE r.pool_no = l.pool_no AND r.class = l.class AND r.tenant_no > l.tenant_no
        ORDER BY r.tenant_no, r.ready_at LIMIT 1
    ) head
    WHERE l.number < $2::integer
), waiting AS (
    SELECT l.pool_no, l.tenant_no, sum(due.count)::bigint AS waiting, min(l.ready_at) AS oldest_at
    FROM lane l CROSS JOIN LATERAL (
        SELECT count(*) AS count FROM (
            SELECT FROM ondot.ready r
            WHERE r.pool_no = l.pool_no AND r.class = l.class AND r.tenant_no = l.tenant_no AND r.ready_at <= ondot.clock()
            LIMIT $1::integer
        ) r
    ) due
    WHERE l.ready_at <= ondot.clock()
    GROUP BY l.pool_no, l.tenant_no
), running AS (
    SELECT e.pool_no, e.tenant_no, count(*) AS running
    FROM ondot.lease l CROSS JOIN LATERAL unnest(l.execution_ids, l.attempt_nos) AS m(id, attempt_no)
    JOIN ondot.execution e
      ON e.id = m.id AND e.attempt_no = m.attempt_no AND e.worker_id = l.worker_id AND e.state = 'RUNNING'
    GROUP BY e.pool_no, e.tenant_no
)
SELECT p.pool_no, p.name AS pool, w.slots, t.tenant_no, t.name, t.weight, coalesce(u.running, 0) AS running,
       coalesce(u.waiting, 0) AS waiting, u.oldest_at
FROM ondot.pool p
CROSS JOIN LATERAL (
    SELECT coalesce(sum(slots), 0)::integer AS slots FROM ondot.worker
    WHERE state = 'ALIVE' AND p.pool_no = ANY (pool_nos)
) w
LEFT JOIN (
    SELECT pool_no, tenant_no, r.running, q.waiting, q.oldest_at
    FROM running r FULL JOIN waiting q USING (pool_no, tenant_no)
) u ON u.pool_no = p.pool_no
LEFT JOIN ondot.tenant t ON t.tenant_no = u.tenant_no
ORDER BY p.name, coalesce(u.running, 0) DESC, coalesce(u.waiting, 0) DESC, t.tenant_no;

-- name: read_own_usage :one
-- locks: none        index: tenant_limit_pkey
-- When the tenant may start the next attempt by its rate; NULL: at once.
-- $1 tenant_no
SELECT ondot.clock() AS now,
       (SELECT nullif(greatest(ondot.clock(),
            least(greatest(l.token_at, ondot.clock()),
                  ondot.clock() + make_interval(secs => l.rate_burst * l.rate_per_s / l.rate_limit))
            - make_interval(secs => (l.rate_burst - 1) * l.rate_per_s / l.rate_limit)), ondot.clock())
        FROM ondot.tenant_limit l WHERE l.tenant_no = $1::integer AND l.rate_limit IS NOT NULL) AS token_at;

-- name: read_load :many
-- locks: none        index: ready_pkey
-- What these tenants hold and wait for, in all pools: the slots as the beats of live workers report them, and due work
-- counted up to a ceiling for each lane.
-- $1 tenant_nos, $2 ceiling
SELECT t.tenant_no,
       (SELECT coalesce(sum(h.slots), 0)::bigint
        FROM ondot.worker w CROSS JOIN LATERAL jsonb_to_recordset(w.held) AS h(tenant_no integer, slots integer)
        WHERE w.state IN ('ALIVE', 'DRAINING') AND h.tenant_no = t.tenant_no) AS held,
       (SELECT count(*)
        FROM ondot.pool p CROSS JOIN generate_series(0, 5) AS c(class) CROSS JOIN LATERAL (
            SELECT FROM ondot.ready r
            WHERE r.pool_no = p.pool_no AND r.class = c.class::smallint AND r.tenant_no = t.tenant_no
              AND r.ready_at <= ondot.clock()
            LIMIT $2::integer
        ) due) AS waiting
FROM unnest($1::integer[]) AS t(tenant_no);
