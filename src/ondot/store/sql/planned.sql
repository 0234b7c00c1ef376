-- name: lock_gates_of_job :one
-- locks: gates        index: execution_fire, execution_other, gated_pkey
-- All gates that the executions of a job pass, and those that they will pass: until the end of the transaction no
-- execution is admitted there. All at once: two transactions that lock some and then others would deadlock.
-- $1 tenant_no, $2 job_id, $3 ids of gates that they will pass
SELECT ondot.lock_gates($3::uuid[] || ARRAY(
    SELECT (s->>'gate')::uuid
    FROM (
        SELECT id FROM ondot.execution
        WHERE job_id = $2::uuid AND tenant_no = $1::integer AND origin IN ('fire', 'backfill') AND gated
        UNION ALL
        SELECT id FROM ondot.execution
        WHERE job_id = $2 AND tenant_no = $1 AND origin NOT IN ('fire', 'backfill') AND gated
    ) e
    JOIN ondot.gated d ON d.execution_id = e.id CROSS JOIN jsonb_array_elements(d.stages) s
));

-- name: make_gates :one
-- locks: none (new rows)
-- $1 tenant_no, $2 stages
SELECT ondot.make_gates($1::integer, $2::text::jsonb);

-- name: carry_tokens :none
-- locks: gates, held already        index: gate_pkey
-- The bucket of a rate that replaces another starts with the tokens that the other had used: a change of the rate does
-- not let a job start sooner.
-- $1 tenant_no, $2 old gates, $3 new gates, $4 seconds between tokens of the old, $5 of the new
UPDATE ondot.gate n SET token_at = greatest(n.token_at, ondot.token_carried(o.token_at, c.old_every_s, c.new_every_s))
FROM unnest($2::uuid[], $3::uuid[], $4::double precision[], $5::double precision[])
     AS c(old_id, new_id, old_every_s, new_every_s)
JOIN ondot.gate o ON o.id = c.old_id AND o.token_at > ondot.clock()
WHERE n.id = c.new_id AND n.tenant_no = $1::integer;

-- name: take_back_waiting :many
-- locks: waiting rows        index: execution_fire, waiting_execution
-- As take_back_ready, out of the lines before gates: first, because an admitted execution goes from there to the queue.
-- $1 tenant_no, $2 job_id, $3 the fire of a one-time job (NULL: it recurs), $4 after which instant, $5 class of catch-up
DELETE FROM ondot.waiting w
USING ondot.execution e
WHERE e.job_id = $2::uuid AND e.tenant_no = $1::integer AND e.origin IN ('fire', 'backfill') AND e.origin = 'fire'
  AND e.attempt_no = 0 AND e.gated
  AND (e.fire_at > $4::timestamptz AND e.class <> $5::smallint OR e.fire_at = $3::timestamptz)
  AND w.execution_id = e.id
RETURNING w.execution_id;

-- name: take_back_ready :many
-- locks: ready rows        index: execution_fire, ready_pkey
-- The first half of taking back the coming fires of a changed job: it takes them out of the queue. It waits for a lease
-- that is taking one of them, and then leaves that one alone. For a one-time job also the fire that is due, its only one.
-- Not catch-up executions: they are of the past, even if the clock was set back since.
-- $1 tenant_no, $2 job_id, $3 the fire of a one-time job (NULL: it recurs), $4 after which instant, $5 class of catch-up
DELETE FROM ondot.ready r
USING ondot.execution e
WHERE e.job_id = $2::uuid AND e.tenant_no = $1::integer AND e.origin IN ('fire', 'backfill') AND e.origin = 'fire'
  AND e.attempt_no = 0
  AND (e.fire_at > $4::timestamptz AND e.class <> $5::smallint OR e.fire_at = $3::timestamptz)
  AND r.pool_no = e.pool_no AND r.class = e.class AND r.tenant_no = e.tenant_no AND r.ready_at = e.ready_at
  AND r.execution_id = e.id
RETURNING r.execution_id;

-- name: find_newest_begun :one
-- index: execution_fire, history_job
-- The newest fire after an instant that has started or ended: there is one if the clock was set back. Fires that were
-- cancelled before they were due do not count.
-- $1 tenant_no, $2 job_id, $3 after which instant, $4 no execution of such a fire has a smaller id
SELECT greatest(
    (SELECT max(fire_at) FROM ondot.execution
     WHERE job_id = $2::uuid AND tenant_no = $1::integer AND origin IN ('fire', 'backfill') AND attempt_no > 0
       AND fire_at > $3::timestamptz),
    (SELECT max(fire_at) FROM ondot.history
     WHERE job_id = $2 AND tenant_no = $1 AND origin IN ('fire', 'backfill') AND fire_at > $3 AND id >= $4::uuid
       AND NOT (state = 'CANCELLED' AND attempt_no = 0 AND ended_at < fire_at))
) AS fire_at;

-- name: find_cancelled_ahead :one
-- index: history_job
-- The first and the last of the coming fires that were cancelled before they were due.
-- $1 tenant_no, $2 job_id, $3 after which instant, $4 no execution of such a fire has a smaller id
SELECT min(fire_at) AS first_at, max(fire_at) AS last_at FROM ondot.history
WHERE job_id = $2::uuid AND tenant_no = $1::integer AND origin IN ('fire', 'backfill') AND fire_at > $3::timestamptz
  AND id >= $4::uuid AND state = 'CANCELLED' AND attempt_no = 0 AND ended_at < fire_at;

-- name: take_back_executions :many
-- transition: take back        locks: executions        index: execution_pkey
-- The second half: it removes the executions themselves, without a record.
-- $1 tenant_no, $2 ids
WITH taken AS (
    DELETE FROM ondot.execution
    WHERE id = ANY ($2::uuid[]) AND tenant_no = $1::integer AND state = 'PENDING' AND attempt_no = 0
    RETURNING id, fire_at, gated
), passed AS (
    DELETE FROM ondot.gated WHERE execution_id = ANY (ARRAY(SELECT id FROM taken WHERE gated))
)
SELECT id, fire_at FROM taken;

-- name: renew_due :many
-- locks: ready rows, held already, then executions        index: execution_fire, ready_pkey
-- A due fire that has not started runs the new version. One that was leased and given back before its call has not started
-- either, and is PENDING again. It keeps its place in the queue, unless the new version has another pool or priority: then
-- it moves there, as of now, because nothing enters a queue with an instant of the past. Executions in line follow by their
-- row of gated. Only classes of priorities change: catch-up, recovered and suspect executions keep their class. A run that
-- was BLOCKED and is retried has started, and keeps its version.
-- $1 tenant_no, $2 job_id, $3 job_version, $4 its start deadline in seconds (NULL: none), with its jitter, $5 the class
-- of catch-up, which has no deadline, $6 pool_no, $7 class, $8 the classes of priorities
WITH old AS MATERIALIZED (
    SELECT id, pool_no, class, tenant_no, ready_at, $6::integer AS new_pool_no,
           CASE WHEN class = ANY ($8::smallint[]) THEN $7::smallint ELSE class END AS new_class
    FROM ondot.execution e
    WHERE job_id = $2::uuid AND tenant_no = $1::integer AND origin IN ('fire', 'backfill') AND state = 'PENDING'
      AND NOT EXISTS (SELECT FROM ondot.run r WHERE r.id = e.id AND r.started_at IS NOT NULL)
    FOR UPDATE
), unqueued AS (
    DELETE FROM ondot.ready r USING old o
    WHERE (o.pool_no, o.class) <> (o.new_pool_no, o.new_class)
      AND r.pool_no = o.pool_no AND r.class = o.class AND r.tenant_no = o.tenant_no AND r.ready_at = o.ready_at
      AND r.execution_id = o.id
    RETURNING r.execution_id
), renewed AS (
    UPDATE ondot.execution e
    SET job_version = $3::integer, pool_no = o.new_pool_no, class = o.new_class,
        start_by = CASE WHEN e.origin = 'fire' AND e.class <> $5::smallint
                        THEN e.fire_at + make_interval(secs => $4::double precision) END,
        ready_at = CASE WHEN u.execution_id IS NULL THEN e.ready_at ELSE greatest(e.ready_at, ondot.clock()) END
    FROM old o LEFT JOIN unqueued u ON u.execution_id = o.id
    WHERE e.id = o.id AND e.tenant_no = $1
    RETURNING e.id, e.pool_no, e.class, e.tenant_no, e.ready_at, u.execution_id IS NOT NULL AS is_moved,
              o.pool_no <> o.new_pool_no AS is_elsewhere
), queued AS (
    INSERT INTO ondot.ready (pool_no, class, tenant_no, ready_at, execution_id)
    SELECT pool_no, class, tenant_no, ready_at, id FROM renewed WHERE is_moved
)
SELECT id, ready_at, is_elsewhere FROM renewed;

-- name: lock_ready_of_job :many
-- locks: ready rows        index: execution_fire, execution_other, ready_pkey
-- Locked before the executions, as a lease does.
-- $1 tenant_no, $2 job_id
SELECT r.execution_id FROM ondot.ready r JOIN ondot.execution e
  ON r.pool_no = e.pool_no AND r.class = e.class AND r.tenant_no = e.tenant_no AND r.ready_at = e.ready_at
 AND r.execution_id = e.id
WHERE e.job_id = $2::uuid AND e.tenant_no = $1::integer
ORDER BY r.execution_id FOR UPDATE OF r;

-- name: gated_of_job :many
-- index: execution_fire, execution_other
-- Live executions of a job that keep their version, because they have started or a person asked for them: they count at
-- the gates of the new version. Executions that are being completed at this moment are left out: that statement may wait
-- for the gates that are locked here.
-- $1 tenant_no, $2 job_id
SELECT id, state FROM ondot.execution
WHERE job_id = $2::uuid AND tenant_no = $1::integer
  AND (state IN ('RUNNING', 'RETRYING') OR state = 'PENDING' AND origin NOT IN ('fire', 'backfill'))
ORDER BY id FOR UPDATE SKIP LOCKED;

-- name: slot_begun :none
-- locks: slots (gates are held)        index: gated_pkey, slot_pkey
-- Running executions have passed the gates that they have now, whether there is room or not.
-- $1 tenant_no, $2 ids
INSERT INTO ondot.slot (gate_id, execution_id, tenant_no, until_end, held_at)
SELECT (s->>'gate')::uuid, d.execution_id, d.tenant_no, (s->>'until_end')::boolean, ondot.clock()
FROM ondot.gated d CROSS JOIN jsonb_array_elements(d.stages) s
WHERE d.execution_id = ANY ($2::uuid[]) AND d.tenant_no = $1::integer AND s->>'kind' <> 'rate'
ON CONFLICT DO NOTHING;

-- name: regate_executions :none
-- locks: ready rows, executions, gated rows, then gates        index: execution_pkey, ready_pkey, gated_pkey
-- Executions pass other gates from now on: they leave the queue and enter the line, in the order in which they were due.
-- $1 tenant_no, $2 ids, $3 gates, $4 class of catch-up
WITH old AS MATERIALIZED (
    SELECT id, ready_at, pool_no, class, origin FROM ondot.execution
    WHERE id = ANY ($2::uuid[]) AND tenant_no = $1::integer FOR UPDATE
), moved AS (
    UPDATE ondot.execution e SET gated = true FROM old o WHERE e.id = o.id AND e.tenant_no = $1
), unqueued AS (
    DELETE FROM ondot.ready r USING old o
    WHERE r.pool_no = o.pool_no AND r.class = o.class AND r.tenant_no = $1 AND r.ready_at = o.ready_at
      AND r.execution_id = o.id
)
INSERT INTO ondot.gated (execution_id, ready_at, tenant_no, pool_no, class, is_fire, stages)
SELECT id, ready_at, $1, pool_no, class, origin IN ('fire', 'event') AND class <> $4::smallint, $3::text::jsonb FROM old
ON CONFLICT (execution_id) DO UPDATE
SET stages = excluded.stages, ready_at = excluded.ready_at, pool_no = excluded.pool_no, class = excluded.class;

-- name: ungate_executions :none
-- locks: executions, gated rows, then gates        index: execution_pkey, ready_pkey, gated_pkey
-- Waiting executions pass no gates any more: they leave the line and enter the queue, as of now if they are due.
-- $1 tenant_no, $2 ids
WITH old AS MATERIALIZED (
    SELECT id, ready_at, greatest(ready_at, ondot.clock()) AS then_at, pool_no, class FROM ondot.execution
    WHERE id = ANY ($2::uuid[]) AND tenant_no = $1::integer AND gated FOR UPDATE
), freed AS (
    UPDATE ondot.execution e SET gated = false, ready_at = o.then_at FROM old o WHERE e.id = o.id AND e.tenant_no = $1
), passed AS (
    DELETE FROM ondot.gated WHERE execution_id = ANY (ARRAY(SELECT id FROM old))
), unqueued AS (
    DELETE FROM ondot.ready r USING old o
    WHERE r.pool_no = o.pool_no AND r.class = o.class AND r.tenant_no = $1 AND r.ready_at = o.ready_at
      AND r.execution_id = o.id AND o.then_at > o.ready_at
)
INSERT INTO ondot.ready (pool_no, class, tenant_no, ready_at, execution_id)
SELECT pool_no, class, $1, then_at, id FROM old
ON CONFLICT DO NOTHING;

-- name: has_begun :one
-- index: execution_fire, execution_other, history_job
-- Whether the fire of a one-time job runs or has ended: then it can no longer be changed. By its instant, because the job
-- may have recurred before. A job whose fire waits for its next attempt may still be deleted, but not changed.
-- $1 tenant_no, $2 job_id, $3 fire_at, $4 waiting ones too, $5 ended ones too, $6 no execution of the job has a smaller
-- id: a replaced one was made long before its fire
SELECT EXISTS (SELECT FROM ondot.execution WHERE job_id = $2::uuid AND tenant_no = $1::integer
               AND origin IN ('fire', 'backfill') AND fire_at = $3::timestamptz
               AND (state = 'RUNNING' OR $4::boolean AND state <> 'BLOCKED'))
    OR $5::boolean
       AND EXISTS (SELECT FROM ondot.history WHERE job_id = $2 AND tenant_no = $1 AND origin = 'fire' AND fire_at = $3
                   AND id >= $6::uuid)
       AS begun;
