-- name: register_worker :one
-- $1 id, $2 host, $3 pid, $4 release, $5 pool_nos, $6 slots, $7 tenant_nos (NULL: all), $8 app (NULL: none),
-- $9 the app's release
INSERT INTO ondot.worker
    (id, state, host, pid, release, pool_nos, slots, tenant_nos, started_at, beat_at, app, app_release)
VALUES ($1::uuid, 'ALIVE', $2::text, $3::integer, $4::text, $5::integer[], $6::integer, $7::integer[], ondot.clock(),
        ondot.clock(), $8::text, $9::text)
ON CONFLICT (id) DO UPDATE SET beat_at = excluded.beat_at -- its own first try, the reply lost
RETURNING ondot.clock() AS now,
    ARRAY(SELECT DISTINCT blocked_by FROM ondot.worker
          WHERE blocked_by IS NOT NULL AND blocked_at > ondot.clock() - interval '1 hour') AS blocking;

-- name: beat_worker :one
-- locks: the worker row        index: worker_pkey, worker_blocked
-- Returns nothing for an incarnation that was marked lost: it must stop. Otherwise returns the functions that blocked the
-- loop of a worker in the last hour, and the transports of pools.
-- $1 id, $2 state (ALIVE, DRAINING), $3 running, $4 its lease_ids, $5 bounds, $6 the slots that tenants hold, $7 the
-- transports that it trusts
UPDATE ondot.worker
SET beat_no = beat_no + 1, beat_at = ondot.clock(), state = $2::text, running = $3::integer, lease_ids = $4::uuid[],
    bounds = $5::text::jsonb, held = $6::text::jsonb, trusts = $7::text[], stalled_at = NULL, stalled_in = NULL, stalled_by = NULL
WHERE id = $1::uuid AND state IN ('ALIVE', 'DRAINING')
RETURNING ondot.clock() AS now, {{pool_routes}} AS routes,
    ARRAY(SELECT DISTINCT blocked_by FROM ondot.worker
          WHERE blocked_by IS NOT NULL AND blocked_at > ondot.clock() - interval '1 hour') AS blocking;

-- name: report_stalled_worker :none
-- locks: the worker row        index: worker_pkey
-- Not a beat: the counter stays, and the worker is marked lost after its timeout. The name of a function that blocked
-- stays in the row when the loop moves again.
-- $1 id, $2 for how many seconds the loop has not moved, $3 where, $4 execution id or NULL, $5 function or NULL
UPDATE ondot.worker
SET stalled_at = ondot.clock() - make_interval(secs => $2::double precision), stalled_in = $3::text,
    stalled_by = $4::uuid, blocked_at = CASE WHEN $5::text IS NULL THEN blocked_at ELSE ondot.clock() END,
    blocked_by = coalesce($5, blocked_by)
WHERE id = $1::uuid;

-- name: leave_worker :none
-- $1 id
UPDATE ondot.worker SET state = 'GONE', running = 0, held = '[]', lease_ids = '{}', ended_at = ondot.clock()
WHERE id = $1::uuid AND state IN ('ALIVE', 'DRAINING');

-- name: set_worker_tenants :none
-- locks: the worker row        index: worker_pkey
-- $1 id, $2 tenant_nos
UPDATE ondot.worker SET tenant_nos = $2::integer[] WHERE id = $1::uuid;

-- name: read_beats :many
SELECT id, beat_no, beat_at, ondot.clock() AS now FROM ondot.worker WHERE state IN ('ALIVE', 'DRAINING');

-- name: lose_worker :one
-- locks: the worker row        index: worker_pkey
-- Compare-and-set on the beat it was judged by: a worker that sent a beat since is alive.
-- $1 id, $2 beat_no
UPDATE ondot.worker SET state = 'LOST', ended_at = ondot.clock()
WHERE id = $1::uuid AND beat_no = $2::bigint AND state IN ('ALIVE', 'DRAINING')
RETURNING id;

-- name: find_orphaned_leases :many
-- index: worker_pkey
-- Leases whose worker is lost or missing, and those that a live worker has not named for two beats, because the reply
-- never reached it (no call was started, so recovery costs nothing). A beat in the future is from before the clock was
-- set back, and may be older than any lease.
-- $1 seconds between two beats, $2 limit
WITH named AS (
    SELECT unnest(lease_ids) AS id FROM ondot.worker WHERE state IN ('ALIVE', 'DRAINING')
)
SELECT l.id, l.worker_id, coalesce(w.state IN ('ALIVE', 'DRAINING'), false) AS unnamed
FROM ondot.lease l
LEFT JOIN ondot.worker w ON w.id = l.worker_id
LEFT JOIN named n ON n.id = l.id
WHERE w.id IS NULL OR w.state IN ('LOST', 'GONE')
   OR (n.id IS NULL AND w.beat_at > l.leased_at + 2 * make_interval(secs => $1::double precision)
       AND w.beat_at <= ondot.clock())
LIMIT $2::integer;

-- name: find_lost_executions :many
-- index: lease_pkey, execution_pkey, worker_pkey
-- Executions that are RUNNING with exactly the worker and attempt of these leases, and what blocked that worker's loop.
-- $1 lease_ids
SELECT e.id, e.job_id, e.job_version, e.tenant_no, e.pool_no, e.attempt_no, e.losses, e.origin, l.id AS lease_id, l.worker_id,
       w.stalled_in, w.stalled_by, CASE WHEN w.stalled_by IS NOT NULL THEN w.blocked_by END AS blocked_by,
       CASE WHEN e.started_at > e.start_by AND e.failures = 0 AND e.losses = 0 THEN e.start_by END AS expired_at
FROM ondot.lease l
LEFT JOIN ondot.worker w ON w.id = l.worker_id
CROSS JOIN LATERAL unnest(l.execution_ids, l.attempt_nos) AS m(id, attempt_no)
JOIN ondot.execution e
  ON e.id = m.id AND e.attempt_no = m.attempt_no AND e.worker_id = l.worker_id AND e.state = 'RUNNING'
WHERE l.id = ANY ($1::uuid[]);

-- name: worker_names :many
-- index: worker_pkey
-- $1 ids
SELECT id, host, pid FROM ondot.worker WHERE id = ANY ($1::uuid[]);

-- name: forget_workers :none
-- Incarnations that ended a day ago and have no lease.
DELETE FROM ondot.worker w
WHERE w.ended_at < ondot.clock() - interval '1 day'
  AND NOT EXISTS (SELECT FROM ondot.lease l WHERE l.worker_id = w.id);
