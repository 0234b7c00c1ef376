-- name: put_watches :none
-- locks: the watches of a job        index: watch_pkey
-- The expectations of a job from now on. Those that it no longer has are looked at once more, and removed then. Of a new job
-- every fire counts: its first one may be due before this statement runs.
-- $1 tenant_no, $2 job_id, $3 which, $4 the first fire of a new job
WITH others AS (
    UPDATE ondot.watch SET look_at = ondot.clock()
    WHERE job_id = $2::uuid AND tenant_no = $1::integer AND which <> ALL ($3::text[])
)
INSERT INTO ondot.watch (job_id, tenant_no, which, after_at, look_at)
SELECT $2, $1, w.which, least(ondot.clock(), $4::timestamptz - interval '1 microsecond'), ondot.clock()
FROM unnest($3) AS w(which)
ON CONFLICT (job_id, which) DO UPDATE SET look_at = ondot.clock();

-- name: find_due_watches :many
-- index: watch_look
-- Of all tenants.
-- $1 limit
SELECT job_id, which, tenant_no, after_at, look_at, ondot.clock() AS now FROM ondot.watch
WHERE look_at <= ondot.clock() ORDER BY look_at LIMIT $1::integer;

-- name: read_watched_fires :many
-- index: execution_fire, execution_other, history_job, attempt_pkey
-- The fires of jobs after an instant each, up to now, with what became of them; the oldest first, up to a limit for each.
-- `started_at`: of the first attempt; failed attempts have rows of their own.
-- $1 tenant_nos, $2 job_ids, $3 after, $4 limit for each, $5 from id
SELECT w.job_id, w.after_at, f.*, CASE WHEN f.attempt_no > 1 THEN coalesce(a.started_at, f.last_started_at)
                                       ELSE f.last_started_at END AS started_at
FROM unnest($1::integer[], $2::uuid[], $3::timestamptz[]) AS w(tenant_no, job_id, after_at)
CROSS JOIN LATERAL (
    (SELECT e.id, e.fire_at, e.ready_at, e.state, e.started_at AS last_started_at, NULL::timestamptz AS ended_at,
            NULL::text AS reason, e.attempt_no
     FROM ondot.execution e
     WHERE e.job_id = w.job_id AND e.tenant_no = w.tenant_no AND e.origin = 'fire' AND e.origin IN ('fire', 'backfill')
       AND e.fire_at > w.after_at AND e.fire_at <= ondot.clock()
     ORDER BY e.fire_at LIMIT $4::integer)
    UNION ALL
    (SELECT e.id, e.fire_at, e.ready_at, e.state, e.started_at, NULL, NULL, e.attempt_no
     FROM ondot.execution e
     WHERE e.job_id = w.job_id AND e.tenant_no = w.tenant_no AND e.origin = 'event'
       AND e.origin NOT IN ('fire', 'backfill') AND e.fire_at > w.after_at AND e.fire_at <= ondot.clock()
     ORDER BY e.fire_at LIMIT $4)
    UNION ALL
    (SELECT h.id, h.fire_at, h.ready_at, h.state, h.started_at, h.ended_at, coalesce(h.error->>'message', h.reason), h.attempt_no
     FROM ondot.history h
     WHERE h.job_id = w.job_id AND h.tenant_no = w.tenant_no AND h.origin IN ('fire', 'event')
       AND h.fire_at > w.after_at AND h.fire_at <= ondot.clock() AND h.id >= $5::uuid
     ORDER BY h.fire_at LIMIT $4)
    ORDER BY fire_at LIMIT $4
) f
LEFT JOIN LATERAL (
    SELECT a.started_at FROM ondot.attempt a
    WHERE a.execution_id = f.id AND a.execution_id >= $5 AND a.attempt_no = 1 AND a.tenant_no = w.tenant_no LIMIT 1
) a ON f.attempt_no > 1
ORDER BY w.job_id, f.fire_at;

-- name: read_skipped_fires :many
-- index: skipped_pkey, timer_pkey
-- Fires of jobs after an instant each that have no execution: recorded as skipped, or due and not planned yet.
-- $1 tenant_nos, $2 job_ids, $3 after
SELECT w.job_id, w.after_at, s.from_at, s.to_at, s.reason, coalesce(s.count, 1) AS count
FROM unnest($1::integer[], $2::uuid[], $3::timestamptz[]) AS w(tenant_no, job_id, after_at)
CROSS JOIN LATERAL (
    SELECT from_at, to_at, reason, count FROM ondot.skipped
    WHERE job_id = w.job_id AND tenant_no = w.tenant_no AND to_at > w.after_at AND from_at <= ondot.clock()
      AND reason IN ('misfire', 'coalesced', 'paused')
    UNION ALL
    SELECT next_fire_at, next_fire_at, 'not planned', 1 FROM ondot.timer
    WHERE job_id = w.job_id AND tenant_no = w.tenant_no AND next_fire_at <= ondot.clock() AND next_fire_at > w.after_at
    ORDER BY from_at LIMIT 100
) s
ORDER BY w.job_id, s.from_at;

-- name: read_durations :many
-- index: history_job
-- How long the latest successes of these jobs took, up to a limit for each.
-- $1 tenant_nos, $2 job_ids, $3 from id, $4 limit
SELECT w.job_id, array_agg(extract(epoch FROM t.took)::double precision) AS took_s
FROM unnest($1::integer[], $2::uuid[]) AS w(tenant_no, job_id)
CROSS JOIN LATERAL (
    SELECT h.ended_at - h.started_at AS took FROM ondot.history h
    WHERE h.job_id = w.job_id AND h.tenant_no = w.tenant_no AND h.id >= $3::uuid AND h.state = 'SUCCEEDED'
      AND h.origin IN ('fire', 'event') AND h.started_at IS NOT NULL
    ORDER BY h.fire_at DESC LIMIT $4::integer
) t
GROUP BY w.job_id;

-- name: read_last_successes :many
-- index: history_job
-- When these jobs last succeeded after an instant each: by a fire, an event or by hand. Backfills and replays of old fires do
-- not count.
-- $1 tenant_nos, $2 job_ids, $3 after, $4 from id
SELECT w.job_id, max(h.ended_at) AS succeeded_at
FROM unnest($1::integer[], $2::uuid[], $3::timestamptz[]) AS w(tenant_no, job_id, after_at)
CROSS JOIN LATERAL (
    SELECT h.ended_at FROM ondot.history h
    WHERE h.job_id = w.job_id AND h.tenant_no = w.tenant_no AND h.state = 'SUCCEEDED' AND h.origin IN ('fire', 'event', 'run')
      AND h.ended_at > w.after_at AND h.id >= $4::uuid
    ORDER BY h.fire_at DESC LIMIT 20
) h
GROUP BY w.job_id;

-- name: read_open_misses :many
-- index: miss_open, execution_pkey, history_pkey
-- With the state of their executions now. $3: no execution of them has a smaller id.
-- $1 tenant_nos, $2 job_ids, $3 from id
SELECT m.id, m.job_id, m.which, m.execution_id, m.fire_at, m.due_at, m.seen_at, m.count, m.predicted, m.reason,
       e.state, e.started_at, e.ended_at
FROM unnest($1::integer[], $2::uuid[]) AS w(tenant_no, job_id)
JOIN ondot.miss m ON m.job_id = w.job_id AND m.tenant_no = w.tenant_no AND m.cleared_at IS NULL
LEFT JOIN LATERAL (
    SELECT state, started_at, NULL::timestamptz AS ended_at FROM ondot.execution
    WHERE id = m.execution_id AND tenant_no = w.tenant_no
    UNION ALL
    SELECT state, started_at, ended_at FROM ondot.history
    WHERE id = m.execution_id AND id >= $3::uuid AND tenant_no = w.tenant_no
    LIMIT 1
) e ON m.execution_id IS NOT NULL;

-- name: move_watches :many
-- locks: watches, in the order of their keys        index: watch_pkey
-- Fenced by the look that was answered: a look of another process, or a change of the job since, is not overwritten.
-- $1 job_ids, $2 which, $3 the looks, $4 settled through, $5 next looks (NULL: it is over), $6 tenant_nos
WITH wanted AS (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::timestamptz[], $4::timestamptz[], $5::timestamptz[], $6::integer[])
             AS w(job_id, which, look_at, after_at, next_at, tenant_no)
), held AS (
    SELECT w.* FROM ondot.watch x JOIN wanted w
        ON x.job_id = w.job_id AND x.which = w.which AND x.look_at = w.look_at AND x.tenant_no = w.tenant_no
    ORDER BY x.job_id, x.which FOR UPDATE OF x
), over AS (
    DELETE FROM ondot.watch x USING held h WHERE x.job_id = h.job_id AND x.which = h.which AND h.next_at IS NULL
), moved AS (
    UPDATE ondot.watch x SET after_at = h.after_at, look_at = h.next_at
    FROM held h WHERE x.job_id = h.job_id AND x.which = h.which AND h.next_at IS NOT NULL
)
SELECT job_id, which FROM held;

-- name: put_misses :none
-- locks: open misses        index: miss_open
-- A forecast that comes true becomes the miss; a further miss is counted in the open one.
-- $1 ids, $2 tenant_nos, $3 job_ids, $4 which, $5 execution_ids, $6 fires, $7 due, $8 counts, $9 predicted, $10 reasons
INSERT INTO ondot.miss AS m (id, tenant_no, job_id, which, execution_id, fire_at, due_at, count, predicted, reason, seen_at)
SELECT n.*, ondot.clock()
FROM unnest($1::uuid[], $2::integer[], $3::uuid[], $4::text[], $5::uuid[], $6::timestamptz[], $7::timestamptz[],
            $8::integer[], $9::boolean[], $10::text[]) AS n
ON CONFLICT (job_id, which) WHERE cleared_at IS NULL DO UPDATE
SET execution_id = excluded.execution_id, fire_at = excluded.fire_at, due_at = excluded.due_at, reason = excluded.reason,
    count = CASE WHEN m.predicted THEN excluded.count WHEN excluded.predicted THEN m.count
                 ELSE m.count + excluded.count END,
    seen_at = CASE WHEN m.predicted AND NOT excluded.predicted THEN ondot.clock() ELSE m.seen_at END,
    predicted = m.predicted AND excluded.predicted;

-- name: clear_misses :none
-- locks: misses        index: miss_pkey
-- $1 ids, $2 tenant_nos
UPDATE ondot.miss m SET cleared_at = ondot.clock()
FROM unnest($1::uuid[], $2::integer[]) AS n(id, tenant_no) WHERE m.id = n.id AND m.tenant_no = n.tenant_no;

-- name: list_misses :many
-- index: miss_job, backwards
-- Of one job, the latest first.
-- $1 tenant_no, $2 job_id, $3 limit
SELECT id, job_id, which, execution_id, fire_at, due_at, seen_at, cleared_at, count, predicted, reason
FROM ondot.miss WHERE job_id = $2::uuid AND tenant_no = $1::integer ORDER BY id DESC LIMIT $3::integer;

-- name: list_recent_misses :many
-- index: miss_latest
-- Of all jobs of a tenant, due in a window, and those that began before its end and last beyond it: an open one moves on to
-- the latest fire that missed. Of a window that ends now also the forecasts that hold.
-- $1 tenant_no, $2 since, $3 until, $4 whether it ends now, $5 limit
SELECT id, job_id, which, execution_id, fire_at, due_at, seen_at, cleared_at, count, predicted, reason
FROM ondot.miss
WHERE tenant_no = $1::integer AND due_at >= $2::timestamptz
  AND ((due_at < $3::timestamptz OR seen_at < $3) AND NOT predicted OR $4::boolean AND cleared_at IS NULL)
ORDER BY due_at DESC LIMIT $5::integer;

-- name: remove_old_misses :one
-- locks: misses        index: miss_age
-- Of all tenants.
-- $1 days, $2 limit
WITH old AS (
    DELETE FROM ondot.miss WHERE id = ANY (ARRAY(
        SELECT id FROM ondot.miss WHERE seen_at < ondot.clock() - make_interval(days => $1::integer) LIMIT $2::integer))
    RETURNING id
)
SELECT count(*)::integer AS count FROM old;
