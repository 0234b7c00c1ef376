-- fragment: succeed
-- transition: succeed. Ends the executions of the CTE `outcome`.
ended AS (
    DELETE FROM ondot.execution e USING outcome o
    WHERE e.ctid = (SELECT x.ctid FROM ondot.execution x WHERE x.id = o.id) AND e.attempt_no = o.attempt_no
      AND e.worker_id = $1::uuid AND e.state = 'RUNNING' AND NOT {{has_more_at_end}}
    RETURNING e.id, e.job_id, e.fire_at, e.ready_at, e.started_at, e.tenant_no, e.job_version, e.pool_no, e.attempt_no,
              e.failures, e.losses, e.class, e.origin, e.payload, e.replay_of, o.result, o.labels
), recorded AS (
    {{insert_into_history}}
    FROM (SELECT *, $1 AS worker_id, 0 AS failed, 0 AS lost, 'SUCCEEDED' AS new_state, NULL AS reason, NULL AS error,
                 NULL::integer AS step_no, NULL::integer AS item_no
          FROM ended) e
), given_back AS (
    DELETE FROM ondot.lease WHERE id = ANY ($5::uuid[]) AND worker_id = $1
      AND (SELECT count(*) FROM ended) = cardinality($2)
)

-- fragment: post_successes
posted AS (
    {{insert_into_outbox}}
    FROM (SELECT *, 'succeeded' AS event FROM ended WHERE origin <> 'step') e
    WHERE {{wants}} ARRAY['ondot.execution.succeeded'])
    GROUP BY e.tenant_no, event
)

-- fragment: ids_that_counted
SELECT CASE WHEN (SELECT count(*) FROM ended) < cardinality($2) THEN ARRAY(SELECT id FROM ended) END AS counted

-- name: complete_executions :many
-- transition: succeed, fail, stop, expire, retry, recover, return
-- locks: executions, then counts of tenants, then leases, then gates by the trigger on gated
-- index: execution_pkey, gated_pkey, tenant_running_pkey, run_tenant
-- Fenced: an outcome counts only for the worker and attempt that the row names while it is RUNNING; others change nothing
-- and are missing from the answer. Ended executions move to history, failed ones also to dead_letter; the others go back
-- into the queue, or into the line before their gates. One that was cancelled and would have gone on ends CANCELLED.
-- Each row is found by a subquery: if it were joined by id, the planner, which may have seen the table empty, would
-- compare every row with every outcome (480 ms instead of 12 for 1,000). If a row is changed at the same moment, the
-- outcome changes nothing, or all other conditions are checked again: releases of PostgreSQL differ. An outcome that is
-- missing from the answer and still the worker's own (find_outcomes) is written again.
-- $1 worker_id, $2 ids (sorted), $3 attempt_nos, $4 states, $5 outcomes, $6 results, $7 errors, $8 reasons,
-- $9 delays in seconds, $10 classes, $11 leases of which these are the last, $12 failures in a row after which the job
-- is paused (NULL: never), $13 instants before which it is not retried (NULL: none; a year away at most), $14 labels of the
-- jobs (NULL: none; none at all if no job has any)
WITH outcome AS (
    SELECT *, (outcome IN ('FAILED', 'TIMED_OUT'))::integer AS failed, (outcome = 'WORKER_LOST')::integer AS lost
    FROM unnest($2::uuid[], $3::integer[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
                $9::double precision[], $10::smallint[], $12::integer[], $13::timestamptz[], $14::text[])
         AS o(id, attempt_no, new_state, outcome, result, error, reason, delay_s, new_class, pause_after, retry_at, labels)
), finished AS (
    DELETE FROM ondot.execution e USING outcome o
    WHERE e.ctid = (SELECT x.ctid FROM ondot.execution x WHERE x.id = o.id) AND e.attempt_no = o.attempt_no
      AND e.worker_id = $1::uuid AND e.state = 'RUNNING'
      AND o.new_state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'SKIPPED')
    RETURNING e.*, o.new_state, o.outcome, o.failed, o.lost, o.result, o.error, o.pause_after, o.labels,
              CASE WHEN o.new_state = 'CANCELLED' THEN coalesce(e.cancel_reason, o.reason) ELSE o.reason END AS reason
), stopped AS (
    -- Separate from `finished`: with one condition on both rows the planner cannot filter the outcomes alone, expects
    -- many of them, and reads the whole table for each (330 ms instead of 20 for 1,000).
    DELETE FROM ondot.execution e USING outcome o
    WHERE e.ctid = (SELECT x.ctid FROM ondot.execution x WHERE x.id = o.id) AND e.attempt_no = o.attempt_no
      AND e.worker_id = $1 AND e.state = 'RUNNING' AND e.cancel_at IS NOT NULL
      AND o.new_state IN ('RETRYING', 'PENDING')
    RETURNING e.*, 'CANCELLED', o.outcome, o.failed, o.lost, o.result, o.error, o.pause_after, o.labels,
              coalesce(e.cancel_reason, o.reason)
), ended AS (
    SELECT * FROM finished UNION ALL SELECT * FROM stopped
), again AS (
    UPDATE ondot.execution e
    SET state = o.new_state, class = o.new_class, worker_id = NULL,
        ready_at = greatest(ondot.clock() + make_interval(secs => o.delay_s),
                            CASE WHEN o.retry_at IS NOT NULL
                                 THEN least(o.retry_at, ondot.clock() + interval '366 days') END),
        failures = e.failures + o.failed, losses = e.losses + o.lost,
        gated = e.gated AND EXISTS (SELECT FROM ondot.gated d WHERE d.execution_id = e.id)
    FROM outcome o
    WHERE e.ctid = (SELECT x.ctid FROM ondot.execution x WHERE x.id = o.id) AND e.attempt_no = o.attempt_no
      AND e.worker_id = $1 AND e.state = 'RUNNING' AND e.cancel_at IS NULL
      AND o.new_state IN ('RETRYING', 'PENDING')
    RETURNING e.id AS execution_id, e.job_id, e.tenant_no, e.pool_no, e.class, e.ready_at, e.attempt_no, e.started_at,
              e.state, e.origin, e.gated, o.outcome, o.error
),
{{end}},
buried AS (
    -- The letter of a step is one of its workflow's job. Items of a map share one letter, which the run writes.
    INSERT INTO ondot.dead_letter (execution_id, tenant_no, job_id, job_version, failed_at, reason, error, payload, run_id,
                                   step_no)
    SELECT id, tenant_no,
           CASE WHEN origin = 'step'
                THEN (SELECT r.job_id FROM ondot.run r WHERE r.tenant_no = ended.tenant_no AND r.id = ended.job_id)
                ELSE job_id END,
           job_version, ondot.clock(), reason, error::jsonb, payload, CASE WHEN origin = 'step' THEN job_id END,
           CASE WHEN origin = 'step' THEN step_no END
    FROM ended WHERE new_state = 'FAILED' AND NOT (origin = 'step' AND item_no IS NOT NULL)
), tried AS (
    INSERT INTO ondot.attempt (execution_id, attempt_no, tenant_no, worker_id, outcome, started_at, ended_at, error)
    SELECT id, attempt_no, tenant_no, $1, outcome, started_at, ondot.clock(), error::jsonb
    FROM (SELECT id, attempt_no, tenant_no, outcome, started_at, error FROM ended WHERE outcome <> 'SUCCEEDED'
          UNION ALL
          SELECT execution_id, attempt_no, tenant_no, outcome, started_at, error FROM again) a
    ON CONFLICT DO NOTHING
), posted_again AS (
    INSERT INTO ondot.outbox (tenant_no, type, job_ids, execution_ids, attempt_nos, retry_ats)
    SELECT e.tenant_no, 'ondot.execution.retrying', array_agg(e.job_id), array_agg(e.execution_id),
           array_agg(e.attempt_no), array_agg(e.ready_at)
    FROM again e
    WHERE {{has_sinks}} AND e.state = 'RETRYING' AND e.origin <> 'step' AND {{wants}} ARRAY['ondot.execution.retrying'])
    GROUP BY e.tenant_no
), queued AS (
    {{insert_into_ready}}
    FROM again WHERE NOT gated
), unknown AS (
    INSERT INTO ondot.unknown_call (tenant_no, function, pool_no, execution_id)
    SELECT tenant_no, error::jsonb->>'function', pool_no, execution_id FROM again
    WHERE outcome = 'PREEMPTED' AND error::jsonb->>'code' = 'unknown_function'
    ON CONFLICT DO NOTHING
), through AS MATERIALIZED (
    SELECT id, tenant_no, pool_no, class, ready_at, true AS is_over FROM ended WHERE gated
    UNION ALL
    SELECT execution_id, tenant_no, pool_no, class, ready_at, false FROM again
), uncounted AS (
    -- In the order of the key: two statements of a worker change the same rows.
    INSERT INTO ondot.tenant_running AS r (tenant_no, worker_id, pool_no, running)
    SELECT t.tenant_no, $1, t.pool_no, -count(*) FROM through t
    WHERE EXISTS (SELECT FROM ondot.tenant_limit l WHERE l.tenant_no = t.tenant_no AND l.is_counted)
    GROUP BY t.tenant_no, t.pool_no ORDER BY t.tenant_no, t.pool_no
    ON CONFLICT (tenant_no, worker_id, pool_no) DO UPDATE SET running = r.running + excluded.running
), pool_slots AS (
    DELETE FROM ondot.slot WHERE ctid = ANY (ARRAY(
        SELECT s.row_at FROM through t CROSS JOIN LATERAL (
            SELECT ctid AS row_at FROM ondot.slot
            WHERE gate_id = ondot.pool_gate(t.pool_no) AND execution_id = t.id LIMIT 1
        ) s
    ))
), passed AS (
    -- The trigger returns slots, and puts executions that go on into line again: recovered ones (class 0) at their old
    -- place, ahead of all that became due since.
    UPDATE ondot.gated d
    SET is_over = t.is_over, class = t.class,
        ready_at = CASE WHEN t.class = 0 THEN least(d.ready_at, t.ready_at) ELSE t.ready_at END
    FROM through t
    WHERE d.execution_id = t.id AND d.ctid = ANY (ARRAY(
        SELECT g.row_at FROM through t CROSS JOIN LATERAL (
            SELECT ctid AS row_at FROM ondot.gated WHERE execution_id = t.id LIMIT 1 FOR UPDATE
        ) g
    ))
), given_back AS (
    -- Not if one of the outcomes has changed nothing: its execution may still run, and only its lease leads to it.
    DELETE FROM ondot.lease WHERE id = ANY ($11::uuid[]) AND worker_id = $1
      AND (SELECT count(*) FROM ended) + (SELECT count(*) FROM again) = cardinality($2)
), counted AS (
    -- Failures in a row, by id within a batch: those since the last success of the batch, else added to the count.
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
SELECT id, new_state, CASE WHEN gated THEN pool_no END, NULL::timestamptz, gated, awaited_by FROM ended
UNION ALL
SELECT execution_id, state, pool_no, ready_at, gated, NULL FROM again;

-- name: succeed_executions :one
-- transition: succeed        locks: executions, then leases        index: execution_pkey
-- The fast path of complete_executions for successes of executions that have nothing more to do at their end, of jobs
-- whose failures are not counted: a third of the columns, and none of the idle parts. Not used while any job starts by
-- successes of others, or a sink sends them (flow.events.followed). It leaves executions alone that have more to do
-- meanwhile. Returns the ids that counted; NULL: all.
-- $1 worker_id, $2 ids (sorted), $3 attempt_nos, $4 results (each once if equal for all), $5 leases of which these are the
-- last
WITH outcome AS (
    SELECT o.id, coalesce(o.attempt_no, ($3)[1]) AS attempt_no,
           CASE WHEN cardinality($4) = 1 THEN ($4)[1] ELSE o.result END AS result, NULL::jsonb AS labels
    FROM unnest($2::uuid[], $3::integer[], $4::text[]) AS o(id, attempt_no, result)
),
{{succeed}}
{{ids_that_counted}};

-- name: succeed_and_post :one
-- transition: succeed        locks: executions, then leases        index: execution_pkey
-- The same while a sink sends successes, with or without labels.
-- $1 to $5 as in succeed_executions, $6 labels (once if equal for all; empty: no job has any)
WITH outcome AS (
    SELECT o.id, coalesce(o.attempt_no, ($3)[1]) AS attempt_no,
           CASE WHEN cardinality($4) = 1 THEN ($4)[1] ELSE o.result END AS result,
           CASE WHEN cardinality($6) = 1 THEN ($6)[1] ELSE o.labels END AS labels
    FROM unnest($2::uuid[], $3::integer[], $4::text[], $6::text[]) AS o(id, attempt_no, result, labels)
),
{{succeed}},
{{post_successes}}
{{ids_that_counted}};

-- name: succeed_labelled :one
-- transition: succeed        locks: executions, then leases        index: execution_pkey
-- The same for a batch in which a job has labels.
-- $1 to $5 as in succeed_executions, $6 labels (once if equal for all)
WITH outcome AS (
    SELECT o.id, coalesce(o.attempt_no, ($3)[1]) AS attempt_no,
           CASE WHEN cardinality($4) = 1 THEN ($4)[1] ELSE o.result END AS result,
           CASE WHEN cardinality($6) = 1 THEN ($6)[1] ELSE o.labels END AS labels
    FROM unnest($2::uuid[], $3::integer[], $4::text[], $6::text[]) AS o(id, attempt_no, result, labels)
),
{{succeed}}
{{ids_that_counted}};

-- name: find_outcomes :many
-- index: history_pkey, attempt_pkey
-- For outcomes that changed nothing: whether this worker has recorded them before and the reply was lost. A record that
-- recovery wrote in its name (WORKER_LOST) does not count. And whether the attempt is still its own: if a cancel is written
-- at the same moment, the row that was to be retried is now one to end, and the statement, which had looked before, did
-- neither. The bounds of the ids are written into the text (store.day_bounds), so that only the tables of their days are
-- planned and locked.
-- $1 worker_id, $2 ids, $3 attempt_nos, $4 from id, $5 before id
SELECT o.id, coalesce(a.outcome <> 'WORKER_LOST', h.id IS NOT NULL) AS recorded, e.id IS NOT NULL AS is_current
FROM unnest($2::uuid[], $3::integer[]) AS o(id, attempt_no)
LEFT JOIN ondot.history h
  ON h.id = o.id AND h.attempt_no = o.attempt_no AND h.worker_id = $1::uuid AND h.id >= $4::uuid AND h.id < $5::uuid
LEFT JOIN ondot.attempt a
  ON a.execution_id = o.id AND a.attempt_no = o.attempt_no AND a.worker_id = $1 AND a.execution_id >= $4::uuid
 AND a.execution_id < $5::uuid
LEFT JOIN ondot.execution e ON e.id = o.id AND e.attempt_no = o.attempt_no AND e.worker_id = $1 AND e.state = 'RUNNING';
