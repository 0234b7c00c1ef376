-- name: find_pools :many
-- index: pool_name_key
-- `committed` is false for a pool that this transaction itself has created.
-- $1 names
SELECT pool_no, name, coalesce(xmin <> pg_current_xact_id_if_assigned()::xid, true) AS committed
FROM ondot.pool WHERE name = ANY ($1::text[]);

-- name: add_pools :none
-- $1 names, sorted so that two transactions that add the same ones do not deadlock
INSERT INTO ondot.pool (name)
SELECT name FROM unnest($1::text[]) AS name
ON CONFLICT DO NOTHING;

-- name: list_pools :many
-- index: pool_name_key, ready_pkey, waiting_pkey
-- Each pool that the tenant may name (not ondot's own, whose names begin with a colon), with the workers that serve it, the due
-- executions that wait for a worker, and those that wait for a limit of their job. Both are counted up to a ceiling, so that a queue of millions does not make this slow. Executions that wait for a limit
-- are stored by gate and not by pool: the statement jumps from line to line by the index, up to as many lines as the
-- ceiling, past lines whose work is due later. Due executions are at the front of each line.
-- $1 tenant_no, $2 name (NULL: all), $3 ceiling
WITH RECURSIVE line AS (
    (SELECT gate_id, pool_no, tenant_no, ready_at, 1 AS number
     FROM ondot.waiting ORDER BY gate_id, pool_no, ready_at, execution_id LIMIT 1)
    UNION ALL
    SELECT next.gate_id, next.pool_no, next.tenant_no, next.ready_at, l.number + 1
    FROM line l CROSS JOIN LATERAL (
        SELECT w.gate_id, w.pool_no, w.tenant_no, w.ready_at FROM ondot.waiting w
        WHERE (w.gate_id, w.pool_no) > (l.gate_id, l.pool_no)
        ORDER BY w.gate_id, w.pool_no, w.ready_at, w.execution_id LIMIT 1
    ) next
    WHERE l.number < $3::integer
), due_line AS MATERIALIZED (
    SELECT gate_id, pool_no FROM line WHERE tenant_no = $1::integer AND ready_at <= ondot.clock()
), gated AS MATERIALIZED (
    SELECT o.pool_no, due.count
    FROM (SELECT DISTINCT pool_no FROM due_line) o
    CROSS JOIN LATERAL (
        SELECT count(*) AS count FROM (
            SELECT FROM due_line h CROSS JOIN LATERAL (
                SELECT FROM ondot.waiting w
                WHERE w.gate_id = h.gate_id AND w.pool_no = h.pool_no AND w.ready_at <= ondot.clock() LIMIT $3
            ) front
            WHERE h.pool_no = o.pool_no LIMIT $3
        ) counted
    ) due
)
SELECT p.name, p.created_at, p.concurrency, p.rate_limit, p.rate_per_s, p.rate_burst, w.workers, w.slots, w.running,
       q.waiting, q.oldest_waiting_at, coalesce((SELECT count FROM gated g WHERE g.pool_no = p.pool_no), 0) AS gated,
       p.transport, ondot.clock() AS now
FROM ondot.pool p
CROSS JOIN LATERAL (
    SELECT count(*) AS workers, coalesce(sum(slots), 0) AS slots, coalesce(sum(running), 0) AS running
    FROM ondot.worker
    WHERE state = 'ALIVE' AND p.pool_no = ANY (pool_nos) AND (tenant_nos IS NULL OR $1 = ANY (tenant_nos))
) w
CROSS JOIN LATERAL (
    SELECT least(sum(lane.count), $3)::bigint AS waiting, min(lane.oldest_at) AS oldest_waiting_at
    FROM generate_series(0, 5) AS c(class) CROSS JOIN LATERAL (
        SELECT count(*) AS count, min(head.ready_at) AS oldest_at FROM (
            SELECT r.ready_at FROM ondot.ready r
            WHERE r.pool_no = p.pool_no AND r.class = c.class::smallint AND r.tenant_no = $1
              AND r.ready_at <= ondot.clock()
            ORDER BY r.ready_at LIMIT $3
        ) head
    ) lane
) q
WHERE ($2::text IS NULL OR p.name = $2) AND p.name NOT LIKE ':%'
  AND EXISTS (SELECT FROM ondot.tenant t WHERE t.tenant_no = $1 AND ('*' = ANY (t.pools) OR p.name = ANY (t.pools)))
ORDER BY p.name;

-- name: read_pool_depths :many
-- index: pool_name_key, ready_pkey
-- How many due executions of a tenant wait for a worker in each of these pools, counted up to a ceiling.
-- $1 tenant_no, $2 names, $3 ceiling
SELECT p.name, due.depth
FROM ondot.pool p
CROSS JOIN LATERAL (
    SELECT count(*) AS depth FROM (
        SELECT FROM generate_series(0, 5) AS c(class) CROSS JOIN LATERAL (
            SELECT FROM ondot.ready r
            WHERE r.pool_no = p.pool_no AND r.class = c.class::smallint AND r.tenant_no = $1::integer
              AND r.ready_at <= ondot.clock()
            LIMIT $3::integer
        ) lane LIMIT $3
    ) counted
) due
WHERE p.name = ANY ($2::text[]);

-- name: count_letters_by_pool :many
-- index: dead_letter_pkey, history_pkey
-- How many of these letters are open, by the pool in which each ran.
-- $1 tenant_no, $2 execution_ids
SELECT p.name, count(*) AS count
FROM unnest($2::uuid[]) AS m(id)
CROSS JOIN LATERAL (
    SELECT h.pool_no FROM ondot.dead_letter d JOIN ondot.history h ON h.id = d.execution_id AND h.id = ANY ($2)
    WHERE d.execution_id = m.id AND d.tenant_no = $1::integer AND d.resolved_at IS NULL LIMIT 1
) h
JOIN ondot.pool p ON p.pool_no = h.pool_no
GROUP BY p.name;

-- name: set_pool_limits :one
-- locks: the pool row        index: pool_name_key
-- The bucket lacks as many tokens as before: setting another limit must not let work start at once.
-- $1 name, $2 concurrency, $3 tokens, $4 in this many seconds, $5 burst
UPDATE ondot.pool SET concurrency = $2::integer, rate_limit = $3::integer, rate_per_s = $4::double precision,
                      rate_burst = $5::integer,
                      token_at = ondot.token_carried(token_at, rate_per_s / rate_limit, $4::double precision / $3::integer)
WHERE name = $1::text
RETURNING pool_no;

-- name: read_routes :one
SELECT {{pool_routes}} AS routes;

-- name: set_pool_transport :one
-- locks: the pool row        index: pool_name_key
-- $1 name, $2 transport (NULL: the installation's)
UPDATE ondot.pool SET transport_was = transport, transport = $2::text, transport_at = ondot.clock()
WHERE name = $1::text AND transport IS DISTINCT FROM $2
RETURNING pool_no;

-- name: find_hinted_pools :many
-- locks: none        index: ready_pkey, line_look
-- Each pool whose hints go through one of some transports, now or lately, and whether work of it became due in the last 20 s:
-- what waits for longer was found by the polls of idle workers, each 15 s. Lanes are found by jumps from tenant to tenant.
-- $1 transports, $2 the installation's, $3 for how many seconds after a change the transport before is used too
WITH RECURSIVE hinted AS MATERIALIZED (
    SELECT pool_no FROM ondot.pool
    WHERE coalesce(transport, $2::text) = ANY ($1::text[])
       OR transport_at > ondot.clock() - make_interval(secs => $3::double precision)
          AND coalesce(transport_was, $2) = ANY ($1)
), lane AS (
    SELECT h.pool_no, c.class::smallint AS class, head.tenant_no
    FROM hinted h CROSS JOIN generate_series(0, 5) AS c(class)
    CROSS JOIN LATERAL (
        SELECT r.tenant_no FROM ondot.ready r
        WHERE r.pool_no = h.pool_no AND r.class = c.class::smallint ORDER BY r.tenant_no LIMIT 1
    ) head
    UNION ALL
    SELECT l.pool_no, l.class, head.tenant_no
    FROM lane l CROSS JOIN LATERAL (
        SELECT r.tenant_no FROM ondot.ready r
        WHERE r.pool_no = l.pool_no AND r.class = l.class AND r.tenant_no > l.tenant_no ORDER BY r.tenant_no LIMIT 1
    ) head
), due AS MATERIALIZED (
    SELECT DISTINCT l.pool_no FROM lane l CROSS JOIN LATERAL (
        SELECT FROM ondot.ready r
        WHERE r.pool_no = l.pool_no AND r.class = l.class AND r.tenant_no = l.tenant_no
          AND r.ready_at > ondot.clock() - interval '20 seconds' AND r.ready_at <= ondot.clock() LIMIT 1
    ) head
    UNION
    SELECT h.pool_no FROM hinted h CROSS JOIN (VALUES (false), (true)) AS k(is_rate) CROSS JOIN LATERAL (
        SELECT FROM ondot.line l
        WHERE l.pool_no = h.pool_no AND l.is_rate = k.is_rate AND l.look_at <= ondot.clock() AND l.look_at < 'infinity'
        LIMIT 1
    ) head
)
SELECT h.pool_no, d.pool_no IS NOT NULL AS is_due FROM hinted h LEFT JOIN due d ON d.pool_no = h.pool_no;

-- name: limit_lock_time :none
-- For this transaction: all leases and completions wait behind it.
SET LOCAL lock_timeout = '200ms';

-- name: block_leases :none
-- locks: the table of leases: waits for statements under way; later ones wait, and take their snapshot afterwards
-- A lease from a pool without limits locks nothing of the pool. One that is under way while the pool gets its first limit
-- has not seen that limit, and add_missing_slots would not see its attempts.
LOCK TABLE ondot.lease IN SHARE MODE;

-- name: add_missing_slots :none
-- locks: executions that run        index: execution_pkey
-- For attempts that run in limited pools without a slot: they started before the limit was set. They are found by their
-- leases, so that waiting executions are not read. Without a limited pool nothing is read.
-- $1 pool_no (NULL: of all)
WITH limited AS MATERIALIZED (
    SELECT pool_no FROM ondot.pool WHERE concurrency IS NOT NULL AND ($1::integer IS NULL OR pool_no = $1)
), running AS (
    UPDATE ondot.execution e SET gated = true
    WHERE e.ctid = ANY (ARRAY(
        SELECT found.row_at FROM ondot.lease l CROSS JOIN LATERAL unnest(l.execution_ids) AS m(id) CROSS JOIN LATERAL (
            SELECT x.ctid AS row_at FROM ondot.execution x
            WHERE x.id = m.id AND x.state = 'RUNNING' AND x.worker_id = l.worker_id
              AND x.pool_no = ANY (ARRAY(SELECT pool_no FROM limited)) LIMIT 1
        ) found
        WHERE EXISTS (SELECT FROM limited)
    )) AND e.state = 'RUNNING'
      AND NOT EXISTS (SELECT FROM ondot.slot s WHERE s.gate_id = ondot.pool_gate(e.pool_no) AND s.execution_id = e.id)
    RETURNING e.id, e.tenant_no, e.pool_no
)
INSERT INTO ondot.slot (gate_id, execution_id, tenant_no, until_end, held_at)
SELECT ondot.pool_gate(pool_no), id, tenant_no, false, ondot.clock() FROM running
ON CONFLICT DO NOTHING;
