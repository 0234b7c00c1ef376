-- name: find_due_timers :many
-- locks: none        index: timer_due
-- One range of the index for each partition; from_at skips the dead rows of fires planned before. Jobs are spread evenly
-- over partitions: four times the share of each has the earliest of all, except a few that the next scan finds.
-- $1 partition_nos, $2 from_ats, $3 horizon in seconds, $4 limit, $5 jobs to leave out
SELECT t.job_id, t.tenant_no, t.partition_no, t.version, t.job_version, t.next_fire_at, t.fired_through, t.fires_left,
       t.guard_until, ondot.clock() AS now
FROM unnest($1::smallint[], $2::timestamptz[]) AS p(partition_no, from_at)
CROSS JOIN LATERAL (
    SELECT * FROM ondot.timer t
    WHERE t.partition_no = p.partition_no AND t.next_fire_at >= p.from_at
      AND t.next_fire_at <= ondot.clock() + make_interval(secs => $3::double precision)
      AND t.job_id <> ALL ($5::uuid[])
    ORDER BY t.next_fire_at LIMIT least($4::integer, greatest($4 * 4 / cardinality($1), 100))
) t
ORDER BY t.next_fire_at LIMIT $4;

-- name: is_crowded :one
-- locks: none        index: timer_due
-- Whether at least a number of fires are due within a stretch of time further ahead.
-- $1 partition_nos, $2 from and $3 to, in seconds from now, $4 how many are a crowd
SELECT count(*) >= $4::integer AS is_crowded
FROM (
    SELECT FROM unnest($1::smallint[]) AS p(partition_no)
    CROSS JOIN LATERAL (
        SELECT FROM ondot.timer t
        WHERE t.partition_no = p.partition_no
          AND t.next_fire_at > ondot.clock() + make_interval(secs => $2::double precision)
          AND t.next_fire_at <= ondot.clock() + make_interval(secs => $3::double precision)
        LIMIT $4
    ) ahead
    LIMIT $4
) many;

-- name: plan_fires :one
-- transition: plan        locks: timer rows, SKIP LOCKED, then gates        index: timer_pkey, execution_fire
-- Advances timers by compare-and-set on (next_fire_at, version), and makes the executions of those that moved. A fire
-- that has an execution already is left out, also one that was cancelled ahead and has ended; its timer moves all the
-- same. LIMIT makes the planner probe once for each timer, and ctid makes it use what was found: otherwise it scans the
-- whole table, unless that is very large. An array of NULLs only may be passed empty: unnest fills it up.
-- timers: $1 job_ids, $2 versions, $3 expected next_fire_ats, $4 next_fire_ats (NULL: none), $5 fired_throughs,
--         $6 fires_left, $7 ends (a one-time job: its timer goes; NULL: no)
-- fires: $8 execution_ids, $9 job_ids, $10 fire_ats, $11 ready_ats (NULL: at the fire), $12 pool_nos, $13 classes
-- skipped: $14 job_ids, $15 from_ats, $16 to_ats, $17 reasons, $18 counts
-- owed: $19 ids, $20 job_ids, $21 from_ats, $22 to_ats, $23 counts, $24 how many of each may be live at once
-- fires: $25 their gates (NULL: none), $26 start_bys (NULL: none), $27 whether it may be skipped where it would have to
--        wait (NULL: yes)
-- guarded timers: $28 no execution of their fires has a smaller id, $29 whether there are any. History has a table for
--        each day, and a statement that might read them all locks and plans them all (1,500 locks and 17 ms after a
--        year). With NULL the plan reads none of them, with a bound those since then. A timer that was guarded after
--        the caller read it is not taken.
WITH step AS (
    SELECT * FROM unnest($1::uuid[], $2::integer[], $3::timestamptz[], $4::timestamptz[], $5::timestamptz[],
                         $6::integer[], $7::boolean[])
         AS s(job_id, version, expected_at, next_fire_at, fired_through, fires_left, ends)
), taken AS MATERIALIZED (
    SELECT t.row_at, t.job_id, t.tenant_no, t.job_version, t.partition_no, t.guard_until, s.next_fire_at,
           s.fired_through, s.fires_left, coalesce(s.ends, false) AS ends
    FROM step s CROSS JOIN LATERAL (
        SELECT ctid AS row_at, job_id, tenant_no, job_version, partition_no, guard_until FROM ondot.timer
        WHERE job_id = s.job_id AND version = s.version AND next_fire_at = s.expected_at
          AND ($29::boolean OR guard_until IS NULL OR guard_until < s.expected_at)
        LIMIT 1 FOR UPDATE SKIP LOCKED
    ) t
), moved AS (
    UPDATE ondot.timer t
    SET next_fire_at = coalesce(k.next_fire_at, 'infinity'), fired_through = k.fired_through, fires_left = k.fires_left
    FROM taken k WHERE t.ctid = ANY (ARRAY(SELECT row_at FROM taken WHERE NOT ends)) AND t.job_id = k.job_id
), dropped AS (
    DELETE FROM ondot.timer WHERE ctid = ANY (ARRAY(SELECT row_at FROM taken WHERE ends))
), fire AS (
    SELECT f.execution_id, f.job_id, f.fire_at, greatest(coalesce(f.ready_at, f.fire_at), ondot.clock()) AS ready_at,
           f.pool_no, f.class, f.stages, f.start_by, coalesce(f.is_fire, true) AS is_fire, k.tenant_no, k.job_version,
           'fire' AS origin, NULL::json AS payload, NULL::uuid AS replay_of, {{not_awaited}}
    FROM unnest($8::uuid[], $9::uuid[], $10::timestamptz[], $11::timestamptz[], $12::integer[], $13::smallint[],
                $25::text[], $26::timestamptz[], $27::boolean[])
         AS f(execution_id, job_id, fire_at, ready_at, pool_no, class, stages, start_by, is_fire)
    JOIN taken k ON k.job_id = f.job_id
    -- CASE: history is read for guarded timers only. LIMIT: EXISTS might hash the whole of it.
    WHERE CASE WHEN k.guard_until >= f.fire_at THEN (
        SELECT true FROM ondot.history h
        WHERE h.job_id = f.job_id AND h.fire_at = f.fire_at AND h.origin IN ('fire', 'backfill') AND h.id >= $28::uuid
        LIMIT 1
    ) END IS NULL
),
{{plan}},
skipped AS (
    INSERT INTO ondot.skipped (job_id, from_at, to_at, tenant_no, reason, count, at, job_version)
    SELECT s.job_id, s.from_at, s.to_at, k.tenant_no, s.reason, s.count, ondot.clock(), k.job_version
    FROM unnest($14::uuid[], $15::timestamptz[], $16::timestamptz[], $17::text[], $18::integer[])
         AS s(job_id, from_at, to_at, reason, count)
    JOIN taken k ON k.job_id = s.job_id
    ON CONFLICT DO NOTHING
), owed AS (
    INSERT INTO ondot.owed (id, job_id, from_at, to_at, turn_at, count, tenant_no, job_version, concurrency,
                            partition_no, newest_first, origin)
    SELECT o.id, o.job_id, o.from_at, o.to_at, ondot.clock(), o.count, k.tenant_no, k.job_version, $24::integer,
           k.partition_no, false, 'fire'
    FROM unnest($19::uuid[], $20::uuid[], $21::timestamptz[], $22::timestamptz[], $23::integer[])
         AS o(id, job_id, from_at, to_at, count)
    JOIN taken k ON k.job_id = o.job_id
), pools AS (
    SELECT pool_no, min(ready_at) AS ready_at FROM planned GROUP BY pool_no
)
SELECT (SELECT count(*) FROM taken) AS moved, (SELECT count(*) FROM planned) AS planned,
       ARRAY(SELECT pool_no FROM pools ORDER BY pool_no) AS pool_nos,
       ARRAY(SELECT ready_at FROM pools ORDER BY pool_no) AS ready_ats;

-- name: list_timers_after :many
-- locks: none        index: timer_pkey
-- Timers in the order of their jobs' ids: to read all of them, some at a time.
-- $1 after job_id, $2 limit
SELECT job_id, tenant_no, partition_no, version, job_version, nullif(next_fire_at, 'infinity') AS next_fire_at,
       fired_through, fires_left, guard_until
FROM ondot.timer WHERE job_id > $1::uuid ORDER BY job_id LIMIT $2::integer;

-- name: get_timer :one
-- locks: none        index: timer_pkey
-- $1 tenant_no, $2 job_id
SELECT job_id, tenant_no, partition_no, version, job_version, nullif(next_fire_at, 'infinity') AS next_fire_at,
       fired_through, fires_left, guard_until
FROM ondot.timer WHERE job_id = $2::uuid AND tenant_no = $1::integer;

-- name: lock_timer :one
-- locks: the timer row        index: timer_pkey
-- $1 job_id
SELECT job_id, tenant_no, partition_no, version, job_version, nullif(next_fire_at, 'infinity') AS next_fire_at,
       fired_through, fires_left, guard_until
FROM ondot.timer WHERE job_id = $1::uuid FOR UPDATE;

-- name: set_timer :none
-- locks: the timer row, held already
-- Writes the timer of a changed job; inserts it if the job had none (a one-time job that was due at once).
-- $1 tenant_no, $2 job_id, $3 partition_no, $4 version, $5 job_version, $6 next_fire_at (NULL: none), $7 fired_through,
-- $8 fires_left
INSERT INTO ondot.timer (job_id, next_fire_at, fired_through, version, job_version, fires_left, tenant_no, partition_no)
VALUES ($2::uuid, coalesce($6::timestamptz, 'infinity'), $7::timestamptz, $4::integer, $5::integer, $8::integer,
        $1::integer, $3::smallint)
ON CONFLICT (job_id) DO UPDATE
SET next_fire_at = excluded.next_fire_at, fired_through = excluded.fired_through, version = excluded.version,
    job_version = excluded.job_version, fires_left = excluded.fires_left;

-- name: guard_timer :none
-- locks: the timer row, held already        index: timer_pkey
-- $1 tenant_no, $2 job_id, $3 until
UPDATE ondot.timer SET guard_until = greatest(guard_until, $3::timestamptz)
WHERE job_id = $2::uuid AND tenant_no = $1::integer;

-- name: record_skipped :none
-- $1 tenant_no, $2 job_id, $3 from_ats, $4 to_ats, $5 reasons, $6 counts (NULL: more than were counted), $7 job_version,
-- $8 when it was recorded first (NULL: now)
INSERT INTO ondot.skipped (job_id, from_at, to_at, tenant_no, reason, count, at, job_version)
SELECT $2::uuid, s.from_at, s.to_at, $1::integer, s.reason, s.count, coalesce($8::timestamptz, ondot.clock()), $7::integer
FROM unnest($3::timestamptz[], $4::timestamptz[], $5::text[], $6::integer[]) AS s(from_at, to_at, reason, count)
ON CONFLICT DO NOTHING;

-- name: take_skipped :many
-- locks: skipped rows        index: skipped_pkey
-- Removes the ranges that contain one of these fires: the rest of each range is written again.
-- $1 tenant_no, $2 job_id, $3 fire_ats
DELETE FROM ondot.skipped s
WHERE s.job_id = $2::uuid AND s.tenant_no = $1::integer
  AND EXISTS (SELECT FROM unnest($3::timestamptz[]) AS f(fire_at) WHERE f.fire_at BETWEEN s.from_at AND s.to_at)
RETURNING s.from_at, s.to_at, s.reason, s.count, s.job_version, s.at;

-- name: take_calendar :many
-- locks: skipped rows        index: skipped_pkey
-- Removes ranges that the calendar skips and that overlap an interval: they were recorded ahead and are no longer true.
-- $1 tenant_no, $2 job_id, $3 from_at, $4 to_at (NULL: for ever)
DELETE FROM ondot.skipped
WHERE job_id = $2::uuid AND tenant_no = $1::integer AND reason = 'calendar' AND to_at >= $3::timestamptz
  AND ($4::timestamptz IS NULL OR from_at <= $4)
RETURNING from_at, to_at, reason, count, job_version, at;
