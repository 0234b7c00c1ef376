-- name: survey_lanes :many
-- locks: none        index: ready_pkey
-- The head of each lane: since when its oldest execution may start, or when its next one may. Known lanes are read from
-- their bounds on. Unknown ones are found by jumps from tenant to tenant in the gaps between the known lanes: a jump onto
-- a known lane would walk over all the dead rows below its bound. No bound is nearer than two seconds to now: after the
-- database's clock was set back, work enters the queue below the bounds from before. Classes -1 and -2 are the gates of a
-- pool, -2 its rates: when the first execution may pass there. The last column is the scope of the pool, if it has limits.
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
       p.concurrency IS NOT NULL OR p.rate_limit IS NOT NULL AS pool_is_limited
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
UNION ALL
SELECT n.pool_no, CASE WHEN k.is_rate THEN -2 ELSE -1 END, 0, head.look_at, ondot.clock(),
       p.concurrency IS NOT NULL OR p.rate_limit IS NOT NULL
FROM unnest($5::integer[]) AS n(pool_no)
LEFT JOIN ondot.pool p ON p.pool_no = n.pool_no
CROSS JOIN (VALUES (false), (true)) AS k(is_rate)
CROSS JOIN LATERAL (
    SELECT l.look_at FROM ondot.line l
    WHERE l.pool_no = n.pool_no AND l.is_rate = k.is_rate AND l.look_at < 'infinity'
      AND (NOT k.is_rate OR $11::integer[] IS NULL OR l.tenant_no = ANY ($11))
    ORDER BY l.look_at LIMIT 1
) head;

-- name: admit :many
-- locks: gates and lines, SKIP LOCKED, then executions        index: line_look, waiting_pkey
-- $1 pool_nos, $2 at rates (false: at the other gates), $3 free slots, $4 free slots for suspects (NULL: all of them),
-- $5 tenant_nos (NULL: all)
SELECT execution_id, verdict, pool_no, tenant_no, ready_at
FROM ondot.admit($1::integer[], $2::boolean, $3::integer, $4::integer, $5::integer[]);

-- name: end_if_frozen :one
-- A worker that freezes in a transaction keeps gates or a pool locked: the server ends the transaction after this time.
-- $1 milliseconds
SELECT set_config('idle_in_transaction_session_timeout', $1::text, true) AS set;

-- name: lock_scopes :many
-- locks: the rows of the scopes, SKIP LOCKED        index: pool_pkey
-- Until the end of the transaction that leases. Attempts are counted by a statement after this one, because the snapshot
-- of this one is older than its locks.
-- $1 pool_nos
SELECT pool_no FROM ondot.pool WHERE pool_no = ANY ($1::integer[]) ORDER BY pool_no FOR UPDATE SKIP LOCKED;

-- name: scope_room :one
-- locks: none, the scopes are locked already        index: pool_pkey, slot_pkey
-- How many attempts may start now by the limits of all these scopes; and when all of them have a token. Each scope is a
-- row of the subquery: another kind of scope is a UNION ALL there. A bucket is never emptier than empty, although its
-- instant may be further ahead: after the clock was set back, or another rate was set.
-- $1 pool_nos, $2 wanted
SELECT least($2::integer, min(s.concurrency - s.running),
             min(floor(extract(epoch FROM ondot.clock() - s.full_at) / s.every_s) + s.rate_burst))::integer AS room,
       max(s.full_at - make_interval(secs => (s.rate_burst - 1) * s.every_s)) AS token_at,
       coalesce(bool_or(s.token_at > s.full_at), false) AS is_overdrawn
FROM (
    SELECT p.concurrency, p.token_at, p.rate_burst, p.rate_per_s / p.rate_limit AS every_s,
           (SELECT count(*) FROM ondot.slot s WHERE s.gate_id = ondot.pool_gate(p.pool_no)) AS running,
           least(greatest(p.token_at, ondot.clock()),
                 ondot.clock() + make_interval(secs => p.rate_burst * p.rate_per_s / p.rate_limit)) AS full_at
    FROM ondot.pool p WHERE p.pool_no = ANY ($1::integer[])
) s;

-- name: take_tokens :none
-- locks: the rows of the scopes, locked already
-- $1 pool_nos, $2 how many
UPDATE ondot.pool
SET token_at = least(greatest(token_at, ondot.clock()),
                     ondot.clock() + make_interval(secs => rate_burst * rate_per_s / rate_limit))
               + make_interval(secs => $2::integer * rate_per_s / rate_limit)
WHERE pool_no = ANY ($1::integer[]) AND rate_limit IS NOT NULL;

-- name: lease_executions :many
-- transition: start        locks: ready rows, SKIP LOCKED, then their executions        index: ready_pkey, execution_pkey
-- Takes from the lanes in the order given, up to the count of each and the limit of all. `from_at` is the head that a
-- survey saw a moment ago: below it are dead rows, and rows that the next survey finds. A pool that got a limit after the
-- survey yields nothing, unless its slots are counted ($8). A worker that is marked lost gets nothing. One whose loss
-- commits at this moment may get a last batch: recovery finds it by its lease row in the next pass, and the worker does
-- not start it, because it has had no confirmed beat for its timeout.
-- $1 lease_id, $2 worker_id, $3 limit, $4 pool_nos, $5 classes, $6 tenant_nos, $7 from_ats, $8 of a limited pool: each
-- takes one of its slots, $9 counts
WITH taken AS (
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
        LIMIT $3::integer
    ))
    RETURNING execution_id
), started AS (
    UPDATE ondot.execution e
    SET state = 'RUNNING', attempt_no = e.attempt_no + 1, worker_id = $2, started_at = ondot.clock(),
        gated = e.gated OR $8
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
-- work is late by its nature and does not count.
WITH lane AS (
    SELECT p.pool_no, p.name, c.class, t.tenant_no
    FROM ondot.pool p CROSS JOIN (VALUES (0::smallint), (1::smallint), (2::smallint), (3::smallint)) AS c(class)
    CROSS JOIN ondot.tenant t
    WHERE t.state = 'ACTIVE'
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
