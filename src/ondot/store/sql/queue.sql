-- fragment: running_of_tenant
-- Of the tenant of `l`.
(SELECT coalesce(sum(r.running), 0) FROM ondot.tenant_running r WHERE r.tenant_no = l.tenant_no)

-- fragment: is_near
-- Whether the tenant of `l` might reach its ceiling if each live worker leases a batch at this moment ($3: the largest).
l.concurrent < {{running_of_tenant}} + (SELECT coalesce(sum(least(w.slots, $3::integer)), 0) FROM ondot.worker w
                                        WHERE w.state IN ('ALIVE', 'DRAINING'))

-- fragment: lease
-- transition: start. What lease_executions does.
taken AS (
    DELETE FROM ondot.ready WHERE ctid = ANY (ARRAY(
        SELECT head.ctid
        FROM unnest($4::integer[], $5::smallint[], $6::integer[], $7::timestamptz[], $9::integer[])
             AS l(pool_no, class, tenant_no, from_at, count)
        CROSS JOIN LATERAL (
            SELECT r.ctid FROM ondot.ready r
            WHERE r.pool_no = l.pool_no AND r.class = l.class AND r.tenant_no = l.tenant_no
              AND r.ready_at BETWEEN l.from_at AND ondot.clock()
            ORDER BY r.ready_at, r.execution_id
            LIMIT l.count
            FOR UPDATE SKIP LOCKED
        ) head
        WHERE EXISTS (SELECT FROM ondot.worker WHERE id = $2::uuid AND state = 'ALIVE')
          AND ($8::boolean OR NOT EXISTS (
              SELECT FROM ondot.pool p
              WHERE p.pool_no = l.pool_no AND (p.concurrency IS NOT NULL OR p.rate_limit IS NOT NULL)
          ))
          AND NOT EXISTS (
              SELECT FROM ondot.tenant_limit t WHERE t.tenant_no = l.tenant_no AND t.tenant_no <> ALL ($10::integer[])
          )
        LIMIT $3::integer
    ))
    RETURNING execution_id
), started AS (
    UPDATE ondot.execution e
    SET state = 'RUNNING', attempt_no = e.attempt_no + 1, worker_id = $2, started_at = ondot.clock(),
        gated = e.gated OR $8 OR e.tenant_no = ANY ($11::integer[])
    WHERE e.id = ANY (ARRAY(SELECT execution_id FROM taken)) AND e.state IN ('PENDING', 'RETRYING')
    RETURNING e.id, e.job_id, e.job_version, e.tenant_no, e.pool_no, e.class, date_part('epoch', e.fire_at) AS fire_s,
              date_part('epoch', e.ready_at) AS ready_s, date_part('epoch', e.started_at) AS started_s, e.attempt_no, e.failures, e.losses,
              e.origin, e.payload IS NOT NULL AS own_payload, {{has_more_at_end}}, date_part('epoch', e.start_by) AS start_by_s
), lease_row AS (
    INSERT INTO ondot.lease (id, worker_id, leased_at, execution_ids, attempt_nos)
    SELECT $1::uuid, $2, ondot.clock(), array_agg(id), array_agg(attempt_no) FROM started HAVING count(*) > 0
), slotted AS (
    INSERT INTO ondot.slot (gate_id, execution_id, tenant_no, until_end, held_at)
    SELECT ondot.pool_gate(pool_no), id, tenant_no, false, ondot.clock() FROM started WHERE $8
    ON CONFLICT DO NOTHING
), counted AS (
    INSERT INTO ondot.tenant_running AS r (tenant_no, worker_id, pool_no, running)
    SELECT tenant_no, $2, pool_no, count(*) FROM started WHERE tenant_no = ANY ($11) GROUP BY tenant_no, pool_no
    ORDER BY tenant_no, pool_no
    ON CONFLICT (tenant_no, worker_id, pool_no) DO UPDATE SET running = r.running + excluded.running
)

-- name: survey_lanes :many
-- locks: none        index: ready_pkey
-- The head of each lane: since when its oldest execution may start, or when its next one may. Known lanes are read from
-- their bounds on. Unknown ones are found by jumps from tenant to tenant in the gaps between the known lanes: a jump onto
-- a known lane would walk over all the dead rows below its bound. No bound is nearer than two seconds to now: after the
-- database's clock was set back, work enters the queue below the bounds from before. Classes -1 and -2 are the gates of a
-- pool, -2 its rates: when the first execution may pass there. Rates of tenants with quotas have rows of their own. Class -3:
-- some tenant has reserved slots. The last columns are the scopes of the pool and the tenant, if they have limits, and
-- whether the tenant is suspended or deleted.
-- $1 pool_nos, $2 classes, $3 tenant_nos, $4 from_ats, $5 the pools themselves, gaps: $6 pool_nos, $7 classes, $8 tenants
-- after, $9 and before these, $10 how many unknown lanes at most, $11 the tenants whose rates are looked at (NULL: all)
WITH RECURSIVE unknown AS (
    SELECT g.pool_no, g.class, g.before_no, head.tenant_no, head.ready_at
    FROM unnest($6::integer[], $7::smallint[], $8::integer[], $9::integer[]) AS g(pool_no, class, after_no, before_no)
    CROSS JOIN LATERAL (
        SELECT r.tenant_no, r.ready_at FROM ondot.ready r
        WHERE r.pool_no = g.pool_no AND r.class = g.class AND r.tenant_no > g.after_no AND r.tenant_no < g.before_no
        ORDER BY r.tenant_no, r.ready_at LIMIT 1
    ) head
    UNION ALL
    SELECT u.pool_no, u.class, u.before_no, head.tenant_no, head.ready_at
    FROM unknown u
    CROSS JOIN LATERAL (
        SELECT r.tenant_no, r.ready_at FROM ondot.ready r
        WHERE r.pool_no = u.pool_no AND r.class = u.class AND r.tenant_no > u.tenant_no AND r.tenant_no < u.before_no
        ORDER BY r.tenant_no, r.ready_at LIMIT 1
    ) head
)
SELECT l.pool_no, l.class, l.tenant_no, l.ready_at, ondot.clock() AS now,
       p.concurrency IS NOT NULL OR p.rate_limit IS NOT NULL AS pool_is_limited, t.tenant_no IS NOT NULL AS tenant_is_limited,
       coalesce(t.is_stopped, false) AS is_stopped
FROM (
    SELECT k.pool_no, k.class, k.tenant_no, head.ready_at
    FROM unnest($1::integer[], $2::smallint[], $3::integer[], $4::timestamptz[])
         AS k(pool_no, class, tenant_no, from_at)
    CROSS JOIN LATERAL (
        SELECT r.ready_at FROM ondot.ready r
        WHERE r.pool_no = k.pool_no AND r.class = k.class AND r.tenant_no = k.tenant_no
          AND r.ready_at >= least(k.from_at, ondot.clock() - interval '2 seconds')
        ORDER BY r.ready_at LIMIT 1
    ) head
    UNION ALL
    (SELECT pool_no, class, tenant_no, ready_at FROM unknown LIMIT $10::integer)
) l
LEFT JOIN ondot.pool p ON p.pool_no = l.pool_no
LEFT JOIN ondot.tenant_limit t ON t.tenant_no = l.tenant_no
UNION ALL
SELECT n.pool_no, CASE WHEN k.is_rate THEN -2 ELSE -1 END, 0, head.look_at, ondot.clock(),
       p.concurrency IS NOT NULL OR p.rate_limit IS NOT NULL, false, false
FROM unnest($5::integer[]) AS n(pool_no)
LEFT JOIN ondot.pool p ON p.pool_no = n.pool_no
CROSS JOIN (VALUES (false), (true)) AS k(is_rate)
CROSS JOIN LATERAL (
    SELECT l.look_at FROM ondot.line l
    WHERE l.pool_no = n.pool_no AND l.is_rate = k.is_rate AND l.look_at < 'infinity'
      AND (NOT k.is_rate OR ($11::integer[] IS NULL OR l.tenant_no = ANY ($11))
           AND NOT EXISTS (SELECT FROM ondot.tenant_limit t WHERE t.tenant_no = l.tenant_no))
    ORDER BY l.look_at LIMIT 1
) head
UNION ALL
SELECT l.pool_no, -2, l.tenant_no, min(l.look_at), ondot.clock(),
       bool_or(p.concurrency IS NOT NULL OR p.rate_limit IS NOT NULL), true, false
FROM ondot.tenant_limit t
JOIN ondot.line l ON l.tenant_no = t.tenant_no
JOIN ondot.pool p ON p.pool_no = l.pool_no
WHERE l.pool_no = ANY ($5) AND l.is_rate AND l.look_at < 'infinity' AND NOT t.is_stopped
  AND ($11 IS NULL OR l.tenant_no = ANY ($11))
GROUP BY l.pool_no, l.tenant_no
UNION ALL
(SELECT 0, -3, 0, ondot.clock(), ondot.clock(), false, false, false
 FROM ondot.tenant_limit t WHERE t.reserved > 0 AND NOT t.is_stopped LIMIT 1);

-- name: admit :many
-- locks: gates and lines, SKIP LOCKED, then executions        index: line_look, waiting_pkey
-- $1 pool_nos, $2 at rates (false: at the other gates), $3 free slots, $4 free slots for suspects (NULL: all of them),
-- $5 tenant_nos (NULL: all), $6 at rates: of this tenant alone, which has quotas (NULL: of those without)
SELECT execution_id, verdict, pool_no, tenant_no, ready_at
FROM ondot.admit($1::integer[], $2::boolean, $3::integer, $4::integer, $5::integer[], $6::integer);

-- name: end_if_frozen :one
-- A worker that freezes in a transaction keeps gates or a pool locked: the server ends the transaction after this time.
-- $1 milliseconds
SELECT set_config('idle_in_transaction_session_timeout', $1::text, true) AS set;

-- name: lock_scopes :many
-- locks: the rows of pools, SKIP LOCKED; tenants by advisory locks that do not wait        index: pool_pkey, tenant_limit_pkey
-- Until the end of the transaction that leases. Attempts are counted by a statement after this one, because the snapshot
-- of this one is older than its locks. A tenant far from its ceiling is locked shared: even if each live worker leases a
-- batch at this moment, the ceiling is not reached. Near it, and where a token is taken, the lock is exclusive.
-- $1 pool_nos, $2 tenant_nos, $3 the largest batch
WITH pools AS (
    SELECT pool_no FROM ondot.pool WHERE pool_no = ANY ($1::integer[]) ORDER BY pool_no FOR UPDATE SKIP LOCKED
), tenants AS MATERIALIZED (
    SELECT t.tenant_no, t.is_near,
           CASE WHEN t.is_near THEN pg_try_advisory_xact_lock({{tenant_lock}}, t.tenant_no)
                ELSE pg_try_advisory_xact_lock_shared({{tenant_lock}}, t.tenant_no) END AS is_locked
    FROM (
        SELECT l.tenant_no, l.rate_limit IS NOT NULL OR {{is_near}} AS is_near
        FROM ondot.tenant_limit l WHERE l.tenant_no = ANY ($2::integer[])
        OFFSET 0
    ) t
)
SELECT 'pool' AS kind, pool_no AS no, true AS is_exclusive FROM pools
UNION ALL
SELECT 'tenant', tenant_no, is_near FROM tenants WHERE is_locked;

-- name: scope_room :many
-- locks: none, the scopes are locked already        index: pool_pkey, slot_pkey, tenant_limit_pkey, tenant_running_pkey
-- How many attempts may start now by the limits of each scope; and when it has a token. A bucket is never emptier than
-- empty, although its instant may be further ahead: after the clock was set back, or another rate was set. A tenant that
-- is locked shared has room for all, or none if it has come near its ceiling since. One without a row has no quotas any
-- more. NULL: what runs of it is not counted yet.
-- $1 pool_nos, $2 tenant_nos, $3 the largest batch, $4 those of $2 that are locked exclusively, $5 wanted
SELECT s.kind, s.no, CASE WHEN s.is_known THEN greatest(least($5::integer, s.room,
             floor(extract(epoch FROM ondot.clock() - s.full_at) / s.every_s) + s.rate_burst), 0)::integer END AS room,
       s.full_at - make_interval(secs => (s.rate_burst - 1) * s.every_s) AS token_at,
       coalesce(s.token_at > s.full_at, false) AS is_overdrawn, s.is_counted
FROM (
    SELECT 'pool' AS kind, p.pool_no AS no, true AS is_known, false AS is_counted,
           p.concurrency - (SELECT count(*) FROM ondot.slot s WHERE s.gate_id = ondot.pool_gate(p.pool_no)) AS room,
           p.token_at, p.rate_burst, p.rate_per_s / p.rate_limit AS every_s,
           least(greatest(p.token_at, ondot.clock()),
                 ondot.clock() + make_interval(secs => p.rate_burst * p.rate_per_s / p.rate_limit)) AS full_at
    FROM ondot.pool p WHERE p.pool_no = ANY ($1::integer[])
    UNION ALL
    SELECT 'tenant', l.tenant_no, l.is_counted OR l.concurrent IS NULL AND l.reserved IS NULL, l.is_counted,
           CASE WHEN l.is_stopped THEN 0
                WHEN l.concurrent IS NULL THEN $5
                WHEN l.tenant_no = ANY ($4::integer[]) THEN l.concurrent - {{running_of_tenant}}
                WHEN {{is_near}} THEN 0 ELSE $5 END,
           l.token_at, l.rate_burst, l.rate_per_s / l.rate_limit,
           least(greatest(l.token_at, ondot.clock()),
                 ondot.clock() + make_interval(secs => l.rate_burst * l.rate_per_s / l.rate_limit))
    FROM ondot.tenant_limit l WHERE l.tenant_no = ANY ($2::integer[])
) s;

-- name: take_tokens :none
-- locks: the scopes are locked already
-- $1 pool_nos, $2 how many in each pool, $3 tenant_nos, $4 how many of each tenant
WITH of_pools AS (
    UPDATE ondot.pool
    SET token_at = least(greatest(token_at, ondot.clock()),
                         ondot.clock() + make_interval(secs => rate_burst * rate_per_s / rate_limit))
                   + make_interval(secs => $2::integer * rate_per_s / rate_limit)
    WHERE pool_no = ANY ($1::integer[]) AND rate_limit IS NOT NULL
)
UPDATE ondot.tenant_limit l
SET token_at = least(greatest(token_at, ondot.clock()),
                     ondot.clock() + make_interval(secs => rate_burst * rate_per_s / rate_limit))
               + make_interval(secs => t.count * rate_per_s / rate_limit)
FROM unnest($3::integer[], $4::integer[]) AS t(tenant_no, count)
WHERE l.tenant_no = t.tenant_no AND l.rate_limit IS NOT NULL;

-- name: lock_tenant_to_count :one
-- Whether no other transaction counts what runs of this tenant, or leases work of it.
-- $1 tenant_no
SELECT pg_try_advisory_xact_lock({{tenant_lock}}, $1::integer) AS is_locked;

-- name: forget_running :none
-- locks: counts; leases are blocked        index: tenant_running_pkey
-- $1 tenant_no
DELETE FROM ondot.tenant_running WHERE tenant_no = $1::integer;

-- name: count_running :none
-- locks: executions that run; leases are blocked        index: execution_pkey, tenant_limit_pkey
-- Counts what runs of a tenant: its quota was set while it ran. Attempts are found by their leases, so that waiting
-- executions are not read. `gated`: the end of each has something to do, its count.
-- $1 tenant_no
WITH limited AS (
    UPDATE ondot.tenant_limit SET is_counted = true
    WHERE tenant_no = $1::integer AND (concurrent IS NOT NULL OR reserved IS NOT NULL)
    RETURNING tenant_no
), running AS (
    UPDATE ondot.execution e SET gated = true
    WHERE e.ctid = ANY (ARRAY(
        SELECT found.row_at FROM ondot.lease l CROSS JOIN LATERAL unnest(l.execution_ids) AS m(id) CROSS JOIN LATERAL (
            SELECT x.ctid AS row_at FROM ondot.execution x
            WHERE x.id = m.id AND x.state = 'RUNNING' AND x.tenant_no = $1 AND x.worker_id = l.worker_id LIMIT 1
        ) found
        WHERE EXISTS (SELECT FROM limited)
    )) AND e.state = 'RUNNING'
    RETURNING e.tenant_no, e.worker_id, e.pool_no
)
INSERT INTO ondot.tenant_running (tenant_no, worker_id, pool_no, running)
SELECT tenant_no, worker_id, pool_no, count(*) FROM running GROUP BY 1, 2, 3;

-- name: forget_idle_counts :none
-- index: tenant_running_pkey
-- Of workers that are gone, once recovery has given back all that they ran.
DELETE FROM ondot.tenant_running r
WHERE r.running = 0 AND NOT EXISTS (SELECT FROM ondot.worker w WHERE w.id = r.worker_id AND w.state IN ('ALIVE', 'DRAINING'));

-- name: read_reserved :many
-- locks: none        index: tenant_limit_pkey, tenant_running_pkey, pool_name_key
-- For each pool of a worker and each tenant with reserved slots there: how many slots live workers have in the pool, how
-- many of these are of workers before this one and its own, and what of the tenant runs there, all and of this worker.
-- $1 pool_nos, $2 worker_id
SELECT n.pool_no, l.tenant_no, l.reserved, s.slots, s.before, s.here,
       (SELECT coalesce(sum(r.running), 0)::integer FROM ondot.tenant_running r
        WHERE r.tenant_no = l.tenant_no AND r.pool_no = n.pool_no) AS running,
       (SELECT coalesce(sum(r.running), 0)::integer FROM ondot.tenant_running r
        WHERE r.tenant_no = l.tenant_no AND r.pool_no = n.pool_no AND r.worker_id = $2::uuid) AS running_here
FROM ondot.tenant_limit l
JOIN ondot.tenant t ON t.tenant_no = l.tenant_no
CROSS JOIN unnest($1::integer[]) AS n(pool_no)
JOIN ondot.pool p ON p.pool_no = n.pool_no
CROSS JOIN LATERAL (
    SELECT coalesce(sum(w.slots), 0)::integer AS slots, coalesce(sum(w.slots) FILTER (WHERE w.id < $2), 0)::integer AS before,
           coalesce(sum(w.slots) FILTER (WHERE w.id = $2), 0)::integer AS here
    FROM ondot.worker w
    WHERE w.state = 'ALIVE' AND n.pool_no = ANY (w.pool_nos) AND (w.tenant_nos IS NULL OR l.tenant_no = ANY (w.tenant_nos))
) s
WHERE l.reserved > 0 AND NOT l.is_stopped AND (p.name = ANY (t.pools) OR '*' = ANY (t.pools))
ORDER BY n.pool_no, l.tenant_no;

-- name: read_slots_held :many
-- locks: none
-- How many slots each tenant holds on the live workers of these pools, as their beats report; how many slots there are, and
-- how many this worker has.
-- $1 pool_nos, $2 worker_id
SELECT h.tenant_no, sum(h.slots)::integer AS held,
       (SELECT coalesce(sum(w.slots), 0)::integer FROM ondot.worker w WHERE w.state = 'ALIVE' AND w.pool_nos && $1::integer[])
           AS slots,
       coalesce((SELECT w.slots FROM ondot.worker w WHERE w.id = $2::uuid), 1) AS here
FROM ondot.worker w CROSS JOIN LATERAL jsonb_to_recordset(w.held) AS h(tenant_no integer, slots integer)
WHERE w.state = 'ALIVE' AND w.pool_nos && $1
GROUP BY h.tenant_no;

-- name: lease_executions :many
-- transition: start        locks: ready rows, SKIP LOCKED, then their executions        index: ready_pkey, execution_pkey
-- Takes from the lanes in the order given, up to the count of each and the limit of all. `from_at` is the head that a
-- survey saw a moment ago: below it are dead rows, and rows that the next survey finds. A pool that got a limit after the
-- survey yields nothing, unless its slots are counted ($8); so does a tenant that got a quota or was suspended, unless it
-- is one of $10. A worker that is marked lost gets nothing. One whose loss
-- commits at this moment may get a last batch: recovery finds it by its lease row in the next pass, and the worker does
-- not start it, because it has had no confirmed beat for its timeout.
-- $1 lease_id, $2 worker_id, $3 limit, $4 pool_nos, $5 classes, $6 tenant_nos, $7 from_ats, $8 of a limited pool: each
-- takes one of its slots, $9 counts, $10 tenants with quotas that have room, $11 those of them whose attempts are counted
WITH {{lease}}
SELECT * FROM started;

-- name: lease_and_post :many
-- transition: start        locks: ready rows, SKIP LOCKED, then their executions        index: ready_pkey, execution_pkey
-- The same while a sink sends starts (flow.events.followed).
-- $1 to $11 as in lease_executions
WITH {{lease}}, posted AS (
    {{insert_into_outbox}}
    FROM (SELECT *, 'started' AS event FROM started WHERE origin <> 'step') e
    WHERE {{wants}} ARRAY['ondot.execution.started'])
    GROUP BY e.tenant_no, event
)
SELECT * FROM started;

-- name: find_lease :many
-- index: lease_pkey, execution_pkey
-- The executions of a lease whose reply was lost, in the form of lease_executions.
-- $1 lease_id, $2 worker_id
SELECT e.id, e.job_id, e.job_version, e.tenant_no, e.pool_no, e.class, date_part('epoch', e.fire_at) AS fire_s,
       date_part('epoch', e.ready_at) AS ready_s, date_part('epoch', e.started_at) AS started_s, e.attempt_no, e.failures, e.losses,
       e.origin, e.payload IS NOT NULL AS own_payload, {{has_more_at_end}}, date_part('epoch', e.start_by) AS start_by_s
FROM ondot.lease l
CROSS JOIN LATERAL unnest(l.execution_ids, l.attempt_nos) AS m(id, attempt_no)
JOIN ondot.execution e ON e.id = m.id AND e.attempt_no = m.attempt_no AND e.worker_id = $2::uuid AND e.state = 'RUNNING'
WHERE l.id = $1::uuid AND l.worker_id = $2;

-- name: sweep_late_ready :many
-- locks: ready rows, SKIP LOCKED, then their executions        index: ready_pkey
-- Rows committed late, below the bounds of the workers that take from their lane. They are inserted again as of now, where
-- all workers find them, also one that never took from this lane and reads it from the start.
-- $1 limit
WITH bound AS (
    SELECT b.pool_no, b.class, b.tenant_no, min(b.from_at) AS from_at
    FROM ondot.worker w
    CROSS JOIN LATERAL jsonb_to_recordset(w.bounds) AS b(pool_no integer, class smallint, tenant_no integer, from_at timestamptz)
    WHERE w.state = 'ALIVE'
    GROUP BY 1, 2, 3
), late AS (
    DELETE FROM ondot.ready WHERE ctid = ANY (ARRAY(
        SELECT below.ctid FROM bound b CROSS JOIN LATERAL (
            SELECT r.ctid FROM ondot.ready r
            WHERE r.pool_no = b.pool_no AND r.class = b.class AND r.tenant_no = b.tenant_no
              AND r.ready_at < least(b.from_at, ondot.clock() - interval '2 seconds')
            ORDER BY r.ready_at LIMIT $1::integer FOR UPDATE SKIP LOCKED
        ) below LIMIT $1
    ))
    RETURNING pool_no, class, tenant_no, execution_id
), moved AS (
    UPDATE ondot.execution e SET ready_at = ondot.clock()
    WHERE e.id = ANY (ARRAY(SELECT execution_id FROM late))
), queued AS (
    INSERT INTO ondot.ready (pool_no, class, tenant_no, ready_at, execution_id)
    SELECT pool_no, class, tenant_no, ondot.clock(), execution_id FROM late
)
SELECT pool_no, count(*) AS count FROM late GROUP BY pool_no;

-- name: oldest_due :one
-- index: ready_pkey, line_look, timer_due
-- For /readyz (L7): the oldest fire that is due and has not started, whether unplanned or waiting for a worker. Catch-up
-- work is late by its nature, and work of tenants that have quotas or are suspended may have to wait: neither counts.
WITH lane AS (
    SELECT p.pool_no, p.name, c.class, t.tenant_no
    FROM ondot.pool p CROSS JOIN (VALUES (0::smallint), (1::smallint), (2::smallint), (3::smallint)) AS c(class)
    CROSS JOIN ondot.tenant t
    WHERE NOT EXISTS (SELECT FROM ondot.tenant_limit x WHERE x.tenant_no = t.tenant_no)
), waiting AS (
    SELECT l.name, head.ready_at FROM lane l CROSS JOIN LATERAL (
        SELECT r.ready_at FROM ondot.ready r
        WHERE r.pool_no = l.pool_no AND r.class = l.class AND r.tenant_no = l.tenant_no
        ORDER BY r.ready_at LIMIT 1
    ) head
    UNION ALL
    -- An execution might pass a gate, and no worker of the pool has looked.
    SELECT p.name, line.look_at
    FROM ondot.pool p CROSS JOIN (VALUES (false), (true)) AS k(is_rate) CROSS JOIN LATERAL (
        SELECT l.look_at FROM ondot.line l
        WHERE l.pool_no = p.pool_no AND l.is_rate = k.is_rate AND l.look_at < 'infinity' ORDER BY l.look_at LIMIT 1
    ) line
    ORDER BY ready_at LIMIT 1
), unplanned AS (
    SELECT head.next_fire_at FROM generate_series(0, 63) AS p(partition_no) CROSS JOIN LATERAL (
        SELECT t.next_fire_at FROM ondot.timer t WHERE t.partition_no = p.partition_no::smallint
        ORDER BY t.next_fire_at LIMIT 1
    ) head
    ORDER BY head.next_fire_at LIMIT 1
)
SELECT ondot.clock() AS now,
       (SELECT name FROM waiting) AS pool,
       extract(epoch FROM ondot.clock() - (SELECT ready_at FROM waiting))::double precision AS waiting_s,
       extract(epoch FROM ondot.clock() - (SELECT nullif(next_fire_at, 'infinity') FROM unplanned))::double precision
           AS unplanned_s;
