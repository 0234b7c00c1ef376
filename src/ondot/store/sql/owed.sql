-- name: take_owed :many
-- locks: timer rows, SKIP LOCKED        index: owed_turn, timer_pkey, execution_fire
-- The ranges whose turn it is, with the timers of their jobs locked: until the end of the transaction no change and no
-- other node comes between. `live`: how many executions of the range there are now.
-- $1 partition_nos, $2 limit, $3 the class of catch-up
SELECT o.id, o.job_id, o.tenant_no, o.job_version AS schedule_version, o.origin, o.from_at, o.to_at, o.count,
       o.newest_first, o.concurrency, t.job_version, j.state, e.live, ondot.clock() AS now
FROM (
    SELECT o.* FROM unnest($1::smallint[]) AS p(partition_no)
    CROSS JOIN LATERAL (
        SELECT * FROM ondot.owed o
        WHERE o.partition_no = p.partition_no AND o.turn_at <= ondot.clock()
        ORDER BY o.turn_at LIMIT $2::integer
    ) o
    ORDER BY o.turn_at LIMIT $2
) o
CROSS JOIN LATERAL (
    SELECT job_version FROM ondot.timer WHERE job_id = o.job_id LIMIT 1 FOR UPDATE SKIP LOCKED
) t
CROSS JOIN LATERAL (SELECT state FROM ondot.job WHERE id = o.job_id LIMIT 1) j
CROSS JOIN LATERAL (
    SELECT count(*) AS live FROM ondot.execution e
    WHERE e.job_id = o.job_id AND e.origin IN ('fire', 'backfill') AND e.origin = o.origin
      AND (o.origin = 'backfill' OR e.class = $3::smallint) AND e.state <> 'BLOCKED'
) e
ORDER BY o.turn_at;

-- name: make_owed :many
-- transition: plan        locks: owed rows (timers are held), then new executions        index: owed_pkey, execution_fire, history_job
-- Makes executions for fires of owed ranges, and moves the ranges past them, by compare-and-set on their bounds and only
-- while their job is ACTIVE. A fire that has an execution, live or ended, gets none: both are read in one snapshot, which
-- is younger than the lock on the timer, so that an execution that is being completed is seen in one of them.
-- LIMIT makes the planner probe once for each, as in plan_fires.
-- ranges: $1 ids, $2 expected from_ats, $3 expected to_ats, $4 from_ats, $5 to_ats, $6 counts, $7 over (it goes),
--         $8 seconds to the next turn
-- fires: $9 execution_ids, $10 ids of their ranges, $11 fire_ats, $12 delays in seconds, $13 pool_nos, $14 classes,
--        $15 their gates (NULL: none), $16 no execution of theirs has a smaller id (NULL: there are none)
WITH step AS (
    SELECT * FROM unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[], $4::timestamptz[], $5::timestamptz[],
                         $6::integer[], $7::boolean[])
         AS s(id, expected_from, expected_to, from_at, to_at, count, is_over)
), taken AS MATERIALIZED (
    SELECT o.id, o.job_id, o.tenant_no, o.origin, t.job_version, s.from_at, s.to_at, s.count, s.is_over
    FROM step s
    CROSS JOIN LATERAL (
        SELECT * FROM ondot.owed WHERE id = s.id AND from_at = s.expected_from AND to_at = s.expected_to LIMIT 1
    ) o
    CROSS JOIN LATERAL (SELECT job_version FROM ondot.timer WHERE job_id = o.job_id LIMIT 1) t
    CROSS JOIN LATERAL (SELECT FROM ondot.job WHERE id = o.job_id AND state = 'ACTIVE' LIMIT 1) j
), asked AS (
    SELECT f.*, k.job_id, k.tenant_no, k.job_version, k.origin
    FROM unnest($9::uuid[], $10::uuid[], $11::timestamptz[], $12::double precision[], $13::integer[], $14::smallint[],
                $15::text[])
         AS f(execution_id, owed_id, fire_at, delay_s, pool_no, class, stages)
    JOIN taken k ON k.id = f.owed_id
), fire AS (
    -- is_fire: they are of the past and wanted, so they wait where a fire of now would be skipped.
    SELECT f.*, ondot.clock() + make_interval(secs => f.delay_s) AS ready_at, false AS is_fire,
           NULL::timestamptz AS start_by, NULL::json AS payload, NULL::uuid AS replay_of,
           {{not_awaited}}
    FROM asked f
    LEFT JOIN LATERAL (
        SELECT true AS is_there FROM ondot.execution
        WHERE job_id = f.job_id AND fire_at = f.fire_at AND origin IN ('fire', 'backfill') LIMIT 1
    ) e ON true
    LEFT JOIN LATERAL (
        SELECT true AS is_there FROM ondot.history
        WHERE job_id = f.job_id AND fire_at = f.fire_at AND origin IN ('fire', 'backfill') AND id >= $16::uuid LIMIT 1
    ) h ON true
    WHERE e.is_there IS NULL AND h.is_there IS NULL
),
{{plan}},
moved AS (
    UPDATE ondot.owed o
    SET from_at = k.from_at, to_at = k.to_at, count = k.count,
        turn_at = ondot.clock() + make_interval(secs => $8::double precision)
    FROM taken k WHERE o.id = k.id AND NOT k.is_over
), dropped AS (
    DELETE FROM ondot.owed o USING taken k WHERE o.id = k.id AND k.is_over
), counted AS (
    UPDATE ondot.backfill b
    SET made = b.made + n.made, existing = b.existing + n.asked - n.made,
        state = CASE WHEN n.is_over THEN 'DONE' ELSE b.state END,
        ended_at = CASE WHEN n.is_over THEN ondot.clock() END
    FROM (
        SELECT k.id, k.is_over, count(f.execution_id) AS asked, count(p.execution_id) AS made
        FROM taken k LEFT JOIN asked f ON f.owed_id = k.id LEFT JOIN planned p USING (execution_id)
        WHERE k.origin = 'backfill' GROUP BY k.id, k.is_over
    ) n
    WHERE b.id = n.id AND b.state = 'RUNNING'
)
SELECT f.owed_id, f.fire_at, p.pool_no, p.ready_at FROM planned p JOIN asked f USING (execution_id);

-- name: put_off_owed :none
-- locks: owed rows        index: owed_pkey
-- For ranges with nothing to do now: their job is paused, or this node cannot compute them.
-- $1 ids, $2 seconds to the next turn
UPDATE ondot.owed SET turn_at = ondot.clock() + make_interval(secs => $2::double precision) WHERE id = ANY ($1::uuid[]);

-- name: drop_owed :many
-- locks: owed rows        index: owed_job
-- The fires that a job still owes from an outage are not run after all.
-- $1 tenant_no, $2 job_id
DELETE FROM ondot.owed WHERE job_id = $2::uuid AND tenant_no = $1::integer AND origin = 'fire'
RETURNING from_at, to_at, count, job_version;

-- name: insert_backfill :one
-- locks: none (new rows)
-- A range without a fire is done at once.
-- $1 tenant_no, $2 id, $3 job_id, $4 job_version, $5 from_at, $6 to_at, $7 newest_first, $8 concurrency, $9 total,
-- $10 partition_no, $11 traceparent of the request (NULL: none)
WITH owed AS (
    INSERT INTO ondot.owed (id, job_id, from_at, to_at, turn_at, count, tenant_no, job_version, concurrency,
                            partition_no, newest_first, origin)
    SELECT $2::uuid, $3::uuid, $5::timestamptz, $6::timestamptz, ondot.clock(), $9::integer, $1::integer, $4::integer,
           $8::integer, $10::smallint, $7::boolean, 'backfill'
    WHERE $9 > 0
)
INSERT INTO ondot.backfill (id, job_id, from_at, to_at, created_at, ended_at, tenant_no, job_version, concurrency, total,
                            newest_first, state, traceparent)
SELECT $2, $3, $5, $6, ondot.clock(), CASE WHEN $9 = 0 THEN ondot.clock() END, $1, $4, $8, $9, $7,
       CASE WHEN $9 = 0 THEN 'DONE' ELSE 'RUNNING' END, $11::text
RETURNING id;

-- name: end_backfill :one
-- locks: owed row, backfill row        index: backfill_open, owed_pkey
-- Ends the running backfill of a job, if there is one.
-- $1 tenant_no, $2 job_id, $3 state, $4 id (NULL: any)
WITH ended AS (
    UPDATE ondot.backfill SET state = $3::text, ended_at = ondot.clock()
    WHERE job_id = $2::uuid AND tenant_no = $1::integer AND state = 'RUNNING' AND ($4::uuid IS NULL OR id = $4)
    RETURNING id
), dropped AS (
    DELETE FROM ondot.owed o USING ended e WHERE o.id = e.id AND o.tenant_no = $1
)
SELECT id FROM ended;

-- name: list_backfills :many
-- index: backfill_job
-- Newest first.
-- $1 tenant_no, $2 job_id, $3 id (NULL: all), $4 limit
SELECT b.id, b.job_id, b.job_version, b.from_at, b.to_at, b.newest_first, b.concurrency, b.total, b.made, b.existing,
       b.state, j.state AS job_state, b.created_at, b.ended_at
FROM (
    SELECT * FROM ondot.backfill
    WHERE job_id = $2::uuid AND tenant_no = $1::integer AND ($3::uuid IS NULL OR id = $3)
    ORDER BY id DESC LIMIT $4::integer
) b
JOIN ondot.job j ON j.id = b.job_id AND j.tenant_no = $1
ORDER BY b.id DESC;

-- name: count_backfilled :one
-- index: execution_fire, history_job
-- Counts the executions of a backfill by state: those with instants in its range, and ids from its own to its end.
-- $1 tenant_no, $2 job_id, $3 from_at, $4 to_at, $5 the backfill's id, $6 the first id after it (NULL: it goes on)
SELECT count(*) FILTER (WHERE state IN ('PENDING', 'RUNNING', 'RETRYING', 'BLOCKED')) AS live,
       count(*) FILTER (WHERE state = 'SUCCEEDED') AS succeeded,
       count(*) FILTER (WHERE state = 'FAILED') AS failed,
       count(*) FILTER (WHERE state IN ('CANCELLED', 'SKIPPED')) AS stopped
FROM (
    SELECT state FROM ondot.execution
    WHERE job_id = $2::uuid AND tenant_no = $1::integer AND origin IN ('fire', 'backfill') AND origin = 'backfill'
      AND fire_at BETWEEN $3::timestamptz AND $4::timestamptz AND id > $5::uuid AND ($6::uuid IS NULL OR id < $6)
    UNION ALL
    SELECT state FROM ondot.history
    WHERE job_id = $2 AND tenant_no = $1 AND origin = 'backfill' AND fire_at BETWEEN $3 AND $4 AND id > $5
      AND ($6 IS NULL OR id < $6)
) e;

-- name: find_executed_fires :many
-- index: execution_fire, history_job
-- The instants of a range for which a job has an execution, live or ended.
-- $1 tenant_no, $2 job_id, $3 from_at, $4 to_at, $5 limit, $6 no execution of such a fire has a smaller id
SELECT fire_at FROM ondot.execution
WHERE job_id = $2::uuid AND tenant_no = $1::integer AND origin IN ('fire', 'backfill')
  AND fire_at BETWEEN $3::timestamptz AND $4::timestamptz
UNION
SELECT fire_at FROM ondot.history
WHERE job_id = $2 AND tenant_no = $1 AND origin IN ('fire', 'backfill') AND fire_at BETWEEN $3 AND $4 AND id >= $6::uuid
LIMIT $5::integer;
