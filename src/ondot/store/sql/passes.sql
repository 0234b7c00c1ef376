-- name: write_pass :many
-- transition: plan        locks: the runs are locked already; then gates        index: step_pkey, run_pkey
-- All that a pass over runs leaves, in one round trip: the executions of steps whose turn it is, steps, runs. The job_id of
-- such an execution is its run. Steps and runs are found by a subquery, as in complete_executions; only the transaction
-- that has the run locked changes them.
-- Executions: $1 run_ids, $2 tenant_nos, $3 job_versions, $4 fire_ats, $5 execution_ids, $6 step_nos, $7 item_nos,
-- $8 pool_nos, $9 classes, $10 gates (NULL: none), $11 payloads (NULL: that of the spec).
-- Steps: $12 run_ids, $13 step_nos, $14 states, $15 reasons, $16 execution_ids, $17 parents_succeeded, $18 parents_failed,
-- $19 parents_skipped, $20 whether it is released now, as a new generation, $21 whether it ends now.
-- Runs: $22 ids, $23 states, $24 verdicts, $25 reasons, $26 look_ats, $27 waiting, $28 active, $29 succeeded, $30 failed,
-- $31 skipped, $32 blocked, $33 superseded, $34 is_counted, $35 blocked_ats, $36 started_ats, $37 whether it has ended,
-- $38 is_paused
WITH fire AS (
    SELECT f.execution_id, f.run_id AS job_id, f.fire_at, ondot.clock() AS ready_at, f.tenant_no, f.job_version,
           f.pool_no, f.class, 'step' AS origin, f.stages, false AS is_fire, NULL::timestamptz AS start_by,
           f.payload::json AS payload, NULL::uuid AS replay_of, f.run_id AS awaited_by, f.step_no, f.item_no
    FROM unnest($1::uuid[], $2::integer[], $3::integer[], $4::timestamptz[], $5::uuid[], $6::integer[], $7::integer[],
                $8::integer[], $9::smallint[], $10::text[], $11::text[])
         AS f(run_id, tenant_no, job_version, fire_at, execution_id, step_no, item_no, pool_no, class, stages, payload)
),
{{plan}},
changed_steps AS (
    UPDATE ondot.step s
    SET state = c.state, reason = c.reason, execution_id = c.execution_id,
        generation = s.generation + c.is_released::integer, parents_succeeded = c.parents_succeeded,
        parents_failed = c.parents_failed, parents_skipped = c.parents_skipped,
        released_at = CASE WHEN c.is_released THEN ondot.clock() ELSE s.released_at END,
        ended_at = CASE WHEN c.has_ended THEN coalesce(s.ended_at, ondot.clock()) END
    FROM unnest($12::uuid[], $13::integer[], $14::text[], $15::text[], $16::uuid[], $17::integer[], $18::integer[],
                $19::integer[], $20::boolean[], $21::boolean[])
         AS c(run_id, step_no, state, reason, execution_id, parents_succeeded, parents_failed, parents_skipped,
              is_released, has_ended)
    WHERE s.ctid = (SELECT x.ctid FROM ondot.step x WHERE x.run_id = c.run_id AND x.step_no = c.step_no)
), changed_runs AS (
    UPDATE ondot.run r
    SET state = c.state, verdict = c.verdict, reason = c.reason, look_at = c.look_at, waiting = c.waiting,
        active = c.active, succeeded = c.succeeded, failed = c.failed, skipped = c.skipped, blocked = c.blocked,
        superseded = c.superseded, is_counted = c.is_counted, blocked_at = c.blocked_at, started_at = c.started_at,
        ended_at = CASE WHEN c.has_ended THEN ondot.clock() END, is_paused = c.is_paused
    FROM unnest($22::uuid[], $23::text[], $24::text[], $25::text[], $26::timestamptz[], $27::integer[], $28::integer[],
                $29::integer[], $30::integer[], $31::integer[], $32::integer[], $33::integer[], $34::boolean[],
                $35::timestamptz[], $36::timestamptz[], $37::boolean[], $38::boolean[])
         AS c(id, state, verdict, reason, look_at, waiting, active, succeeded, failed, skipped, blocked, superseded,
              is_counted, blocked_at, started_at, has_ended, is_paused)
    WHERE r.ctid = (SELECT x.ctid FROM ondot.run x WHERE x.id = c.id)
)
SELECT pool_no, min(ready_at) AS ready_at FROM planned GROUP BY pool_no;
