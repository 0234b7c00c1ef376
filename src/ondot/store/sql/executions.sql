-- name: insert_execution :one
-- transition: plan        locks: none (new rows), then gates
-- A run-now or a replay: no fire, so the unique key of fires does not count it.
-- $1 tenant_no, $2 id, $3 job_id, $4 job_version, $5 pool_no, $6 class, $7 origin, $8 payload (NULL: the job's own),
-- $9 the execution it runs again (NULL: none), $10 its gates (NULL: none), $11 start_by (NULL: any time)
WITH queued AS (
    INSERT INTO ondot.ready (pool_no, class, tenant_no, ready_at, execution_id)
    SELECT $5::integer, $6::smallint, $1::integer, ondot.clock(), $2::uuid WHERE $10::text IS NULL
), gated AS (
    INSERT INTO ondot.gated (execution_id, ready_at, tenant_no, pool_no, class, is_fire, stages)
    SELECT $2, ondot.clock(), $1, $5, $6, false, $10::jsonb WHERE $10 IS NOT NULL
)
INSERT INTO ondot.execution (id, job_id, fire_at, ready_at, tenant_no, job_version, pool_no, class, state, origin, payload,
                             replay_of, gated, start_by)
VALUES ($2, $3::uuid, ondot.clock(), ondot.clock(), $1, $4::integer, $5, $6, 'PENDING', $7::text, $8::text::json,
        $9::uuid, $10 IS NOT NULL, $11::timestamptz)
RETURNING id, fire_at;

-- name: complete_executions :many
-- transition: succeed, fail, stop, expire, retry, recover, return
-- locks: executions, then leases, then gates by the trigger on gated        index: execution_pkey, gated_pkey
-- Fenced: an outcome counts only for the worker and attempt that the row names while it is RUNNING; the others change
-- nothing and are missing from the answer. Ended ones move to history, failed ones also to dead_letter; the others get
-- their place in the queue, or in the line before their gates. One that was to be cancelled and would have gone on ends
-- CANCELLED instead. Rows are found by a subquery for each: of a join on the id the planner, once it has seen the table
-- empty, takes the table for the short side, and compares every row with every outcome (480 ms instead of 12 for a
-- thousand). A row that is changed at the same moment changes nothing, or is looked at again by all other conditions:
-- releases of PostgreSQL differ. Who is missing from the answer and is held still (find_outcomes) is written again.
-- $1 worker_id, $2 ids (sorted), $3 attempt_nos, $4 states, $5 outcomes, $6 results, $7 errors, $8 reasons,
-- $9 delays in seconds, $10 classes, $11 leases of which this is the last, $12 failures in a row after which the job is
-- paused (NULL: it is not)
WITH outcome AS (
    SELECT * FROM unnest($2::uuid[], $3::integer[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
                         $9::double precision[], $10::smallint[], $12::integer[])
         AS o(id, attempt_no, new_state, outcome, result, error, reason, delay_s, new_class, pause_after)
), finished AS (
    DELETE FROM ondot.execution e USING outcome o
    WHERE e.ctid = (SELECT x.ctid FROM ondot.execution x WHERE x.id = o.id) AND e.attempt_no = o.attempt_no
      AND e.worker_id = $1::uuid AND e.state = 'RUNNING'
      AND o.new_state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'SKIPPED')
    RETURNING e.*, o.new_state, o.outcome, o.result, o.error, o.pause_after,
              CASE WHEN o.new_state = 'CANCELLED' THEN coalesce(e.cancel_reason, o.reason) ELSE o.reason END AS reason
), stopped AS (
    -- Apart: one condition on both rows is none on the outcomes alone, and the planner, which then expects many of them,
    -- goes through the whole table for each (330 ms instead of 20 for a thousand).
    DELETE FROM ondot.execution e USING outcome o
    WHERE e.ctid = (SELECT x.ctid FROM ondot.execution x WHERE x.id = o.id) AND e.attempt_no = o.attempt_no
      AND e.worker_id = $1 AND e.state = 'RUNNING' AND e.cancel_at IS NOT NULL
      AND o.new_state IN ('RETRYING', 'PENDING')
    RETURNING e.*, 'CANCELLED', o.outcome, o.result, o.error, o.pause_after, coalesce(e.cancel_reason, o.reason)
), ended AS (
    SELECT * FROM finished UNION ALL SELECT * FROM stopped
), again AS (
    UPDATE ondot.execution e
    SET state = o.new_state, class = o.new_class, worker_id = NULL,
        ready_at = ondot.clock() + make_interval(secs => o.delay_s),
        failures = e.failures + (o.outcome IN ('FAILED', 'TIMED_OUT'))::integer,
        losses = e.losses + (o.outcome = 'WORKER_LOST')::integer,
        gated = e.gated AND EXISTS (SELECT FROM ondot.gated d WHERE d.execution_id = e.id)
    FROM outcome o
    WHERE e.ctid = (SELECT x.ctid FROM ondot.execution x WHERE x.id = o.id) AND e.attempt_no = o.attempt_no
      AND e.worker_id = $1 AND e.state = 'RUNNING' AND e.cancel_at IS NULL
      AND o.new_state IN ('RETRYING', 'PENDING')
    RETURNING e.id, e.tenant_no, e.pool_no, e.class, e.ready_at, e.attempt_no, e.started_at, e.state, e.gated, o.outcome,
              o.error
), recorded AS (
    INSERT INTO ondot.history (id, job_id, worker_id, fire_at, ready_at, started_at, ended_at, tenant_no, job_version,
        pool_no, attempt_no, failures, losses, class, state, origin, reason, payload, result, error, replay_of)
    SELECT id, job_id, worker_id, fire_at, ready_at, started_at, ondot.clock(), tenant_no, job_version,
           pool_no, attempt_no, failures + (outcome IN ('FAILED', 'TIMED_OUT'))::integer,
           losses + (outcome = 'WORKER_LOST')::integer, class, new_state, origin, reason, payload,
           result::json, error::jsonb, replay_of
    FROM ended
), buried AS (
    INSERT INTO ondot.dead_letter (execution_id, tenant_no, job_id, job_version, failed_at, reason, error, payload)
    SELECT id, tenant_no, job_id, job_version, ondot.clock(), reason, error::jsonb, payload
    FROM ended WHERE new_state = 'FAILED'
), tried AS (
    INSERT INTO ondot.attempt (execution_id, attempt_no, tenant_no, worker_id, outcome, started_at, ended_at, error)
    SELECT id, attempt_no, tenant_no, $1, outcome, started_at, ondot.clock(), error::jsonb
    FROM (SELECT id, attempt_no, tenant_no, outcome, started_at, error FROM ended WHERE outcome <> 'SUCCEEDED'
          UNION ALL
          SELECT id, attempt_no, tenant_no, outcome, started_at, error FROM again) a
    ON CONFLICT DO NOTHING
), queued AS (
    INSERT INTO ondot.ready (pool_no, class, tenant_no, ready_at, execution_id)
    SELECT pool_no, class, tenant_no, ready_at, id FROM again WHERE NOT gated
), through AS MATERIALIZED (
    SELECT id, pool_no, class, ready_at, true AS is_over FROM ended WHERE gated
    UNION ALL
    SELECT id, pool_no, class, ready_at, false FROM again
), pool_slots AS (
    DELETE FROM ondot.slot WHERE ctid = ANY (ARRAY(
        SELECT s.row_at FROM through t CROSS JOIN LATERAL (
            SELECT ctid AS row_at FROM ondot.slot
            WHERE gate_id = ondot.pool_gate(t.pool_no) AND execution_id = t.id LIMIT 1
        ) s
    ))
), passed AS (
    -- The trigger does the rest: slots are given back, who goes on stands in line again.
    UPDATE ondot.gated d SET is_over = t.is_over, ready_at = t.ready_at, class = t.class
    FROM through t
    WHERE d.execution_id = t.id AND d.ctid = ANY (ARRAY(
        SELECT g.row_at FROM through t CROSS JOIN LATERAL (
            SELECT ctid AS row_at FROM ondot.gated WHERE execution_id = t.id LIMIT 1 FOR UPDATE
        ) g
    ))
), given_back AS (
    -- Not while one of the outcomes has changed nothing: it may still run, and is found by its lease alone.
    DELETE FROM ondot.lease WHERE id = ANY ($11::uuid[]) AND worker_id = $1
      AND (SELECT count(*) FROM ended) + (SELECT count(*) FROM again) = cardinality($2)
), counted AS (
    -- Failures in a row, in the order of their ids within a batch: those since the last success, or so many more.
    INSERT INTO ondot.streak (job_id, tenant_no, failures, pause_after, succeeded)
    SELECT job_id, tenant_no, count(*) FILTER (WHERE new_state = 'FAILED' AND no > coalesce(last_success, 0)),
           min(pause_after), last_success IS NOT NULL
    FROM (
        SELECT *, max(no) FILTER (WHERE new_state = 'SUCCEEDED') OVER (PARTITION BY job_id) AS last_success
        FROM (SELECT job_id, tenant_no, new_state, pause_after, row_number() OVER (PARTITION BY job_id ORDER BY id) AS no
              FROM ended WHERE pause_after IS NOT NULL AND new_state IN ('SUCCEEDED', 'FAILED')) e
    ) e
    GROUP BY job_id, tenant_no, last_success
    ORDER BY job_id
    ON CONFLICT (job_id) DO UPDATE
    SET failures = CASE WHEN excluded.succeeded THEN excluded.failures ELSE streak.failures + excluded.failures END,
        pause_after = excluded.pause_after, succeeded = excluded.succeeded
    WHERE streak.failures > 0 OR excluded.failures > 0
)
SELECT id, new_state, CASE WHEN gated THEN pool_no END, NULL::timestamptz, gated FROM ended
UNION ALL
SELECT id, state, pool_no, ready_at, gated FROM again;

-- name: succeed_executions :one
-- transition: succeed        locks: executions, then leases        index: execution_pkey
-- What complete_executions does with a success of an execution that has no gates, of a job whose failures nobody counts:
-- a third of the columns, and none of the parts that have nothing to do. Those that are not such any more change nothing.
-- Gives the ids that counted; NULL: all.
-- $1 worker_id, $2 ids (sorted), $3 attempt_nos, $4 results (each once if equal for all), $5 leases of which this is the
-- last
WITH outcome AS (
    SELECT o.id, coalesce(o.attempt_no, ($3)[1]) AS attempt_no,
           CASE WHEN cardinality($4) = 1 THEN ($4)[1] ELSE o.result END AS result
    FROM unnest($2::uuid[], $3::integer[], $4::text[]) AS o(id, attempt_no, result)
), ended AS (
    DELETE FROM ondot.execution e USING outcome o
    WHERE e.ctid = (SELECT x.ctid FROM ondot.execution x WHERE x.id = o.id) AND e.attempt_no = o.attempt_no
      AND e.worker_id = $1::uuid AND e.state = 'RUNNING' AND NOT e.gated
    RETURNING e.id, e.job_id, e.fire_at, e.ready_at, e.started_at, e.tenant_no, e.job_version, e.pool_no, e.attempt_no,
              e.failures, e.losses, e.class, e.origin, e.payload, e.replay_of, o.result
), recorded AS (
    INSERT INTO ondot.history (id, job_id, worker_id, fire_at, ready_at, started_at, ended_at, tenant_no, job_version,
        pool_no, attempt_no, failures, losses, class, state, origin, payload, result, replay_of)
    SELECT id, job_id, $1, fire_at, ready_at, started_at, ondot.clock(), tenant_no, job_version,
           pool_no, attempt_no, failures, losses, class, 'SUCCEEDED', origin, payload, result::json, replay_of
    FROM ended
), given_back AS (
    DELETE FROM ondot.lease WHERE id = ANY ($5::uuid[]) AND worker_id = $1
      AND (SELECT count(*) FROM ended) = cardinality($2)
)
SELECT CASE WHEN (SELECT count(*) FROM ended) < cardinality($2) THEN ARRAY(SELECT id FROM ended) END AS counted;

-- name: find_outcomes :many
-- index: history_pkey, attempt_pkey
-- Of outcomes that changed nothing: whether this worker had recorded them already, its reply lost. What recovery wrote
-- in its name (WORKER_LOST) is not its own record. And whether the attempt is still its own: a cancel that is written at
-- the same moment makes of a row that was to be tried again one that is to end, which the statement, having looked
-- before, does neither with.
-- $1 worker_id, $2 ids, $3 attempt_nos
SELECT o.id, coalesce(a.outcome <> 'WORKER_LOST', h.id IS NOT NULL) AS recorded, e.id IS NOT NULL AS is_held
FROM unnest($2::uuid[], $3::integer[]) AS o(id, attempt_no)
LEFT JOIN ondot.history h ON h.id = o.id AND h.attempt_no = o.attempt_no AND h.worker_id = $1::uuid
LEFT JOIN ondot.attempt a ON a.execution_id = o.id AND a.attempt_no = o.attempt_no AND a.worker_id = $1
LEFT JOIN ondot.execution e ON e.id = o.id AND e.attempt_no = o.attempt_no AND e.worker_id = $1 AND e.state = 'RUNNING';

-- name: find_payloads :many
-- index: execution_pkey
-- $1 ids
SELECT id, payload FROM ondot.execution WHERE id = ANY ($1::uuid[]);

-- name: lock_gates_of_job :one
-- locks: gates        index: execution_fire, execution_other, gated_pkey
-- All gates that the executions of a job pass, and those that they will: until the end of the transaction nobody is
-- admitted there. All at once: who took some and then others would wait for somebody who does it the other way round.
-- $1 tenant_no, $2 job_id, $3 ids of gates to come
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

-- name: take_back_waiting :many
-- locks: waiting rows        index: execution_fire, waiting_execution
-- As take_back_ready, from the lines before gates: first, since who is admitted goes from there to the queue.
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
-- The first half of taking back the fires still to come of a changed job: their places in the queue. Waits for a lease
-- that is taking one of them, and then leaves it alone. Of a one-time job also its fire that is due: nothing comes after.
-- Not what is caught up: that is of the past, also if the clock was set back since.
-- $1 tenant_no, $2 job_id, $3 the fire of a one-time job (NULL: it recurs), $4 after which instant, $5 class of catch-up
DELETE FROM ondot.ready r
USING ondot.execution e
WHERE e.job_id = $2::uuid AND e.tenant_no = $1::integer AND e.origin IN ('fire', 'backfill') AND e.origin = 'fire'
  AND e.attempt_no = 0
  AND (e.fire_at > $4::timestamptz AND e.class <> $5::smallint OR e.fire_at = $3::timestamptz)
  AND r.pool_no = e.pool_no AND r.class = e.class AND r.tenant_no = e.tenant_no AND r.ready_at = e.ready_at
  AND r.execution_id = e.id
RETURNING r.execution_id;

-- name: newest_begun :one
-- index: execution_fire, history_job
-- The newest fire after an instant that has begun or ended: there is one if the clock was set back. Not those that were
-- cancelled before they were due.
-- $1 tenant_no, $2 job_id, $3 after which instant
SELECT greatest(
    (SELECT max(fire_at) FROM ondot.execution
     WHERE job_id = $2::uuid AND tenant_no = $1::integer AND origin IN ('fire', 'backfill') AND attempt_no > 0
       AND fire_at > $3::timestamptz),
    (SELECT max(fire_at) FROM ondot.history
     WHERE job_id = $2 AND tenant_no = $1 AND origin IN ('fire', 'backfill') AND fire_at > $3
       AND NOT (state = 'CANCELLED' AND attempt_no = 0 AND ended_at < fire_at))
) AS fire_at;

-- name: cancelled_ahead :one
-- index: history_job
-- The first and the last of the fires to come that were cancelled before they were due.
-- $1 tenant_no, $2 job_id, $3 after which instant
SELECT min(fire_at) AS first_at, max(fire_at) AS last_at FROM ondot.history
WHERE job_id = $2::uuid AND tenant_no = $1::integer AND origin IN ('fire', 'backfill') AND fire_at > $3::timestamptz
  AND state = 'CANCELLED' AND attempt_no = 0 AND ended_at < fire_at;

-- name: take_back_executions :many
-- transition: take back        locks: executions        index: execution_pkey
-- The second half: the executions themselves, which were never to be.
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
-- locks: executions        index: execution_fire
-- A due fire that has not begun runs the new version, in its place in the queue; one that was leased and given back
-- before its call has not begun either, and is PENDING again.
-- $1 tenant_no, $2 job_id, $3 job_version, $4 its start deadline in seconds (NULL: none), with its jitter, $5 the class
-- of catch-up: what is of the past has no deadline
UPDATE ondot.execution
SET job_version = $3::integer,
    start_by = CASE WHEN origin = 'fire' AND class <> $5::smallint THEN fire_at + make_interval(secs => $4::double precision)
               END
WHERE job_id = $2::uuid AND tenant_no = $1::integer AND origin IN ('fire', 'backfill') AND state = 'PENDING'
RETURNING id;

-- name: lock_ready_of_job :many
-- locks: ready rows        index: execution_fire, execution_other, ready_pkey
-- Before the executions, as a lease does.
-- $1 tenant_no, $2 job_id
SELECT r.execution_id FROM ondot.ready r JOIN ondot.execution e
  ON r.pool_no = e.pool_no AND r.class = e.class AND r.tenant_no = e.tenant_no AND r.ready_at = e.ready_at
 AND r.execution_id = e.id
WHERE e.job_id = $2::uuid AND e.tenant_no = $1::integer
ORDER BY r.execution_id FOR UPDATE OF r;

-- name: gated_of_job :many
-- index: execution_fire, execution_other
-- What of a job lives and has begun: it keeps its version, and counts at the gates of the new one. But for what is being
-- completed at this moment, whose statement may wait for the gates that are held here.
-- $1 tenant_no, $2 job_id
SELECT id, state FROM ondot.execution
WHERE job_id = $2::uuid AND tenant_no = $1::integer AND state IN ('RUNNING', 'RETRYING')
ORDER BY id FOR UPDATE SKIP LOCKED;

-- name: slot_begun :none
-- locks: slots (gates are held)        index: gated_pkey, slot_pkey
-- What runs is through the gates that it has now, whether there is room or not.
-- $1 tenant_no, $2 ids
INSERT INTO ondot.slot (gate_id, execution_id, tenant_no, until_end, held_at)
SELECT (s->>'gate')::uuid, d.execution_id, d.tenant_no, (s->>'until_end')::boolean, ondot.clock()
FROM ondot.gated d CROSS JOIN jsonb_array_elements(d.stages) s
WHERE d.execution_id = ANY ($2::uuid[]) AND d.tenant_no = $1::integer AND s->>'kind' <> 'rate'
ON CONFLICT DO NOTHING;

-- name: regate_executions :none
-- locks: ready rows, executions, gated rows, then gates        index: execution_pkey, ready_pkey, gated_pkey
-- Executions pass other gates from now on: out of the queue, into the line, in the order in which they were due.
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
SELECT id, ready_at, $1, pool_no, class, origin = 'fire' AND class <> $4::smallint, $3::text::jsonb FROM old
ON CONFLICT (execution_id) DO UPDATE SET stages = excluded.stages, ready_at = excluded.ready_at;

-- name: ungate_executions :none
-- locks: executions, gated rows, then gates        index: execution_pkey, ready_pkey, gated_pkey
-- Executions that wait pass no gates any more: out of the line, into the queue, where nothing comes in with an instant of
-- the past.
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

-- name: unqueue_job :many
-- locks: ready rows        index: execution_fire, execution_other, ready_pkey
-- The places in the queue of what a job has waiting: fires that have not begun (pause), those of its backfill, or all
-- that is not running.
-- $1 tenant_no, $2 job_id, $3 fires, backfill or all
DELETE FROM ondot.ready r
USING (
    SELECT id, pool_no, class, tenant_no, ready_at FROM ondot.execution
    WHERE job_id = $2::uuid AND tenant_no = $1::integer AND origin IN ('fire', 'backfill')
      AND ($3::text = 'all' OR state = 'PENDING' AND ($3 = 'fires' OR origin = 'backfill'))
    UNION ALL
    SELECT id, pool_no, class, tenant_no, ready_at FROM ondot.execution
    WHERE job_id = $2 AND tenant_no = $1 AND origin NOT IN ('fire', 'backfill') AND $3 = 'all'
) e
WHERE r.pool_no = e.pool_no AND r.class = e.class AND r.tenant_no = e.tenant_no AND r.ready_at = e.ready_at
  AND r.execution_id = e.id
RETURNING r.execution_id;

-- name: unline_job :many
-- locks: waiting rows        index: execution_fire, execution_other, waiting_execution
-- As unqueue_job, from the lines before gates.
-- $1 tenant_no, $2 job_id, $3 fires, backfill or all
DELETE FROM ondot.waiting w
USING (
    SELECT id FROM ondot.execution
    WHERE job_id = $2::uuid AND tenant_no = $1::integer AND origin IN ('fire', 'backfill') AND gated
      AND ($3::text = 'all' OR state = 'PENDING' AND ($3 = 'fires' OR origin = 'backfill'))
    UNION ALL
    SELECT id FROM ondot.execution
    WHERE job_id = $2 AND tenant_no = $1 AND origin NOT IN ('fire', 'backfill') AND gated AND $3 = 'all'
) e
WHERE w.execution_id = e.id
RETURNING w.execution_id;

-- name: unqueue_executions :many
-- locks: gates, then waiting rows, then ready rows        index: gated_pkey, waiting_execution, execution_pkey, ready_pkey
-- Takes executions out of the queue and of the lines. What a worker is leasing at this moment is waited for, and then is
-- not there any more.
-- $1 tenant_no (NULL: of any), $2 ids
WITH unlined AS (
    DELETE FROM ondot.waiting WHERE execution_id = ANY ($2::uuid[]) AND ($1::integer IS NULL OR tenant_no = $1)
    RETURNING execution_id
), unqueued AS (
    DELETE FROM ondot.ready r USING ondot.execution e
    WHERE e.id = ANY ($2) AND ($1 IS NULL OR e.tenant_no = $1)
      AND r.pool_no = e.pool_no AND r.class = e.class AND r.tenant_no = e.tenant_no AND r.ready_at = e.ready_at
      AND r.execution_id = e.id
    RETURNING r.execution_id
)
SELECT execution_id FROM unlined UNION SELECT execution_id FROM unqueued;

-- name: lock_gates_of_executions :one
-- locks: gates        index: gated_pkey
-- $1 ids of executions
SELECT ondot.lock_gates(ARRAY(
    SELECT (s->>'gate')::uuid FROM ondot.gated d CROSS JOIN jsonb_array_elements(d.stages) s
    WHERE d.execution_id = ANY ($1::uuid[])
));

-- name: request_cancels :many
-- locks: executions        index: execution_pkey
-- Asks what runs to end: its worker looks for such requests. The first reason stays.
-- $1 tenant_no (NULL: of any), $2 ids, $3 reason
UPDATE ondot.execution SET cancel_at = coalesce(cancel_at, ondot.clock()), cancel_reason = coalesce(cancel_reason, $3::text)
WHERE id = ANY ($2::uuid[]) AND ($1::integer IS NULL OR tenant_no = $1) AND state = 'RUNNING'
RETURNING id;

-- name: find_cancels :many
-- index: execution_cancel
-- What this worker runs and was asked to end.
-- $1 worker_id
SELECT id, attempt_no FROM ondot.execution
WHERE cancel_at IS NOT NULL AND worker_id = $1::uuid AND state = 'RUNNING';

-- name: past_deadline :many
-- index: execution_start_by
-- What was not started by its deadline, and is still to be.
-- $1 limit
SELECT id FROM ondot.execution
WHERE start_by IS NOT NULL AND start_by < ondot.clock() AND state = 'PENDING'
ORDER BY start_by LIMIT $1::integer;

-- name: has_waiting :one
-- index: execution_fire, execution_other
-- Whether a job still has anything that unqueue_job is for.
-- $1 tenant_no, $2 job_id, $3 fires, backfill or all
SELECT EXISTS (SELECT FROM ondot.execution WHERE job_id = $2::uuid AND tenant_no = $1::integer
               AND origin IN ('fire', 'backfill') AND state IN ('PENDING', 'RETRYING')
               AND ($3::text = 'all' OR state = 'PENDING' AND ($3 = 'fires' OR origin = 'backfill')))
    OR $3 = 'all' AND EXISTS (SELECT FROM ondot.execution WHERE job_id = $2 AND tenant_no = $1
                          AND origin NOT IN ('fire', 'backfill') AND state IN ('PENDING', 'RETRYING')) AS waiting;

-- name: end_executions :many
-- transition: cancel, skip        locks: executions        index: execution_pkey
-- Ends what was taken out of the queue, with its reason, into history.
-- $1 tenant_no (NULL: of any), $2 ids, $3 state, $4 reason
WITH ended AS (
    DELETE FROM ondot.execution
    WHERE id = ANY ($2::uuid[]) AND ($1::integer IS NULL OR tenant_no = $1) AND state IN ('PENDING', 'RETRYING', 'BLOCKED')
    RETURNING *
), passed AS (
    DELETE FROM ondot.gated WHERE execution_id = ANY (ARRAY(SELECT id FROM ended WHERE gated))
)
INSERT INTO ondot.history (id, job_id, worker_id, fire_at, ready_at, started_at, ended_at, tenant_no, job_version,
    pool_no, attempt_no, failures, losses, class, state, origin, reason, payload, replay_of)
SELECT id, job_id, worker_id, fire_at, ready_at, started_at, ondot.clock(), tenant_no, job_version,
       pool_no, attempt_no, failures, losses, class, $3::text, origin, $4::text, payload, replay_of
FROM ended
RETURNING id;

-- name: has_begun :one
-- index: execution_fire, execution_other, history_job
-- Whether the fire of a one-time job is running or has ended: then it can no longer be changed. By its instant, since
-- the job may have recurred before. One that waits for its next attempt may still be deleted, but not changed.
-- $1 tenant_no, $2 job_id, $3 fire_at, $4 waiting ones too
SELECT EXISTS (SELECT FROM ondot.execution WHERE job_id = $2::uuid AND tenant_no = $1::integer
               AND origin IN ('fire', 'backfill') AND fire_at = $3::timestamptz AND (state = 'RUNNING' OR $4::boolean))
    OR EXISTS (SELECT FROM ondot.history WHERE job_id = $2 AND tenant_no = $1 AND origin = 'fire' AND fire_at = $3)
       AS begun;

-- name: get_execution :one
-- index: execution_pkey, history_pkey
-- $1 tenant_no, $2 id
SELECT e.*, p.name AS pool, c.progress, c.message AS progress_message, c.checkpoint
FROM (
    SELECT id, job_id, job_version, worker_id, fire_at, ready_at, started_at, NULL::timestamptz AS ended_at, tenant_no,
           pool_no, attempt_no, failures, losses, class, state, origin, NULL AS reason, payload, NULL::json AS result,
           NULL::jsonb AS error, cancel_at, cancel_reason, start_by, replay_of
    FROM ondot.execution WHERE id = $2::uuid AND tenant_no = $1::integer
    UNION ALL
    SELECT id, job_id, job_version, worker_id, fire_at, ready_at, started_at, ended_at, tenant_no,
           pool_no, attempt_no, failures, losses, class, state, origin, reason, payload, result, error, NULL, NULL, NULL,
           replay_of
    FROM ondot.history WHERE id = $2 AND tenant_no = $1
) e
JOIN ondot.pool p ON p.pool_no = e.pool_no
LEFT JOIN ondot.checkpoint c ON c.execution_id = e.id;

-- name: list_executions :many
-- index: execution_pkey, history_pkey, backwards
-- Newest first, live and ended as one; a page is cut by id. Fires still to come are the schedule's: they are listed only
-- if PENDING is asked for.
-- $1 tenant_no, $2 before id (NULL: from the newest), $3 limit, $4 state, $5 from_at, $6 to_at, $7 pool_no
SELECT e.*, p.name AS pool
FROM (
    (SELECT id, job_id, job_version, worker_id, fire_at, ready_at, started_at, NULL::timestamptz AS ended_at,
            pool_no, attempt_no, failures, losses, class, state, origin, NULL AS reason, payload, NULL::json AS result,
            NULL::jsonb AS error
     FROM ondot.execution
     WHERE tenant_no = $1::integer AND ($2::uuid IS NULL OR id < $2)
       AND CASE WHEN $4::text IS NULL THEN ready_at <= ondot.clock() OR attempt_no > 0 ELSE state = $4 END
       AND ($5::timestamptz IS NULL OR fire_at >= $5) AND ($6::timestamptz IS NULL OR fire_at < $6)
       AND ($7::integer IS NULL OR pool_no = $7)
     ORDER BY id DESC LIMIT $3::integer)
    UNION ALL
    (SELECT id, job_id, job_version, worker_id, fire_at, ready_at, started_at, ended_at,
            pool_no, attempt_no, failures, losses, class, state, origin, reason, payload, result, error
     FROM ondot.history
     WHERE tenant_no = $1 AND ($2 IS NULL OR id < $2) AND ($4 IS NULL OR state = $4)
       AND ($5 IS NULL OR fire_at >= $5) AND ($6 IS NULL OR fire_at < $6)
       AND ($7 IS NULL OR pool_no = $7)
     ORDER BY id DESC LIMIT $3)
) e
JOIN ondot.pool p ON p.pool_no = e.pool_no
ORDER BY e.id DESC LIMIT $3;

-- name: list_job_executions :many
-- index: execution_fire, execution_other, history_job
-- The same for one job.
-- $1 tenant_no, $2 before id, $3 limit, $4 state, $5 job_id
SELECT e.*, p.name AS pool
FROM (
    SELECT id, job_id, job_version, worker_id, fire_at, ready_at, started_at, NULL::timestamptz AS ended_at,
           pool_no, attempt_no, failures, losses, class, state, origin, NULL AS reason, payload, NULL::json AS result,
           NULL::jsonb AS error
    FROM ondot.execution WHERE job_id = $5::uuid AND tenant_no = $1::integer AND origin IN ('fire', 'backfill')
    UNION ALL
    SELECT id, job_id, job_version, worker_id, fire_at, ready_at, started_at, NULL,
           pool_no, attempt_no, failures, losses, class, state, origin, NULL, payload, NULL, NULL
    FROM ondot.execution WHERE job_id = $5 AND tenant_no = $1 AND origin NOT IN ('fire', 'backfill')
    UNION ALL
    SELECT id, job_id, job_version, worker_id, fire_at, ready_at, started_at, ended_at,
           pool_no, attempt_no, failures, losses, class, state, origin, reason, payload, result, error
    FROM ondot.history WHERE job_id = $5 AND tenant_no = $1
) e
JOIN ondot.pool p ON p.pool_no = e.pool_no
WHERE ($2::uuid IS NULL OR e.id < $2)
  AND CASE WHEN $4::text IS NULL THEN e.ready_at <= ondot.clock() OR e.attempt_no > 0 OR e.ended_at IS NOT NULL
           ELSE e.state = $4 END
ORDER BY e.id DESC LIMIT $3::integer;

-- name: latest_execution :one
-- index: execution_fire, execution_other, history_job
-- The latest one that is due, for a job's status; retry_count counts its further attempts, with one that is waited for.
-- $1 tenant_no, $2 job_id
SELECT state, started_at, greatest(attempt_no - 1, 0) + (state = 'RETRYING')::integer AS retry_count
FROM (
    SELECT fire_at, id, state, started_at, attempt_no FROM ondot.execution
    WHERE job_id = $2::uuid AND tenant_no = $1::integer AND origin IN ('fire', 'backfill')
      AND (fire_at <= ondot.clock() OR attempt_no > 0)
    UNION ALL
    SELECT fire_at, id, state, started_at, attempt_no FROM ondot.execution
    WHERE job_id = $2 AND tenant_no = $1 AND origin NOT IN ('fire', 'backfill')
    UNION ALL
    (SELECT fire_at, id, state, started_at, attempt_no FROM ondot.history
     WHERE job_id = $2 AND tenant_no = $1 ORDER BY fire_at DESC LIMIT 1)
) e
ORDER BY fire_at DESC, id DESC LIMIT 1;

-- name: list_attempts :many
-- index: attempt_pkey
-- $1 tenant_no, $2 execution_id
SELECT attempt_no, outcome, worker_id, started_at, ended_at, error
FROM ondot.attempt WHERE execution_id = $2::uuid AND tenant_no = $1::integer ORDER BY attempt_no;

-- name: list_skipped :many
-- index: skipped_pkey
-- $1 tenant_no, $2 job_id, $3 limit
SELECT from_at, to_at, reason, count FROM ondot.skipped
WHERE job_id = $2::uuid AND tenant_no = $1::integer ORDER BY from_at DESC LIMIT $3::integer;
