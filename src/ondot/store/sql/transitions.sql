-- The SQL that makes executions and ends them: each text exists once, here, and {{name}} includes it in the statements
-- of the other files and in functions. Plain jobs have a fast path of their own (insert_due_jobs, submit_specs,
-- succeed_executions), which includes the same INSERT without the parts that have nothing to do.

-- fragment: insert_into_execution
-- transition: plan. FROM follows. Its rows have the columns that are selected here; stages: its gates (NULL: none).
INSERT INTO ondot.execution (id, job_id, fire_at, ready_at, tenant_no, job_version, pool_no, class, state, origin, gated,
                             start_by, payload, replay_of, awaited_by, step_no, item_no)
SELECT execution_id, job_id, fire_at, ready_at, tenant_no, job_version, pool_no, class, 'PENDING', origin,
       stages IS NOT NULL, start_by, payload, replay_of, awaited_by, step_no, item_no

-- fragment: not_awaited
-- The columns of an execution that is no step of a run, and whose end nothing waits for.
NULL::uuid AS awaited_by, NULL::integer AS step_no, NULL::integer AS item_no

-- fragment: insert_blocked_into_execution
-- transition: block. FROM follows. The execution of a one-time job that waits for other jobs.
INSERT INTO ondot.execution (id, job_id, fire_at, ready_at, tenant_no, job_version, pool_no, class, state, origin)
SELECT execution_id, job_id, fire_at, ready_at, tenant_no, 1, pool_no, class, 'BLOCKED', 'fire'

-- fragment: insert_into_ready
-- FROM follows.
INSERT INTO ondot.ready (pool_no, class, tenant_no, ready_at, execution_id)
SELECT pool_no, class, tenant_no, ready_at, execution_id

-- fragment: plan
-- transition: plan. Makes the executions of the CTE `fire`, and puts each into the queue, or into the line before its
-- gates. `is_fire`: it may be skipped where it would have to wait. A fire that has an execution already is left out.
planned AS (
    {{insert_into_execution}}
    FROM fire
    ON CONFLICT (job_id, fire_at) WHERE origin IN ('fire', 'backfill') DO NOTHING
    RETURNING id AS execution_id, pool_no, class, tenant_no, ready_at, fire_at, gated
), queued AS (
    {{insert_into_ready}}
    FROM planned WHERE NOT gated
), gated AS (
    INSERT INTO ondot.gated (execution_id, ready_at, tenant_no, pool_no, class, is_fire, stages)
    SELECT execution_id, p.ready_at, p.tenant_no, p.pool_no, p.class, f.is_fire, f.stages::jsonb
    FROM planned p JOIN fire f USING (execution_id) WHERE p.gated
)

-- fragment: insert_into_history
-- Any transition to an end. FROM follows. Its rows are those of `execution`, with new_state, reason, result, error, and
-- with failed and lost: what the last attempt adds to failures and losses. labels: of its job, NULL if that has none.
INSERT INTO ondot.history (id, job_id, worker_id, fire_at, ready_at, started_at, ended_at, tenant_no, job_version,
    pool_no, attempt_no, failures, losses, class, state, origin, reason, payload, result, error, replay_of, step_no,
    item_no, labels)
SELECT id, job_id, worker_id, fire_at, ready_at, started_at, ondot.clock(), tenant_no, job_version,
       pool_no, attempt_no, failures + failed, losses + lost, class, new_state, origin, reason, payload, result::json,
       error::jsonb, replay_of, step_no, item_no, labels::jsonb

-- fragment: has_more_at_end
-- Whether the end of an execution `e` has more to do than to record it. A lease returns it, and succeed_executions leaves
-- such rows to complete_executions, so that plain successes stay fast: slots of its gates or its pool are returned (a plan
-- with gates and a lease in a limited pool set `gated`), or a run or another job waits for its end.
(e.gated OR e.awaited_by IS NOT NULL)

-- fragment: has_own_subscriptions
-- Whether any job of the installation starts by ondot's own events: looked up once for a statement, in an index that is
-- empty where none does.
(SELECT EXISTS (SELECT FROM ondot.subscription WHERE type LIKE 'ondot.%'))

-- fragment: has_sinks
-- Whether any tenant of the installation has a sink.
(SELECT EXISTS (SELECT FROM ondot.sink))

-- fragment: wants
-- Whether a sink of the tenant of `e` wants this type of event: `ARRAY[type])` follows.
EXISTS (SELECT FROM ondot.sink s WHERE s.tenant_no = e.tenant_no AND s.types @>

-- fragment: insert_into_outbox
-- One row for a tenant and a type. FROM follows, and GROUP BY tenant_no. Steps have no events: their run has.
INSERT INTO ondot.outbox (tenant_no, type, job_ids, execution_ids, attempt_nos)
SELECT e.tenant_no, 'ondot.execution.' || event, array_agg(e.job_id), array_agg(e.id), array_agg(e.attempt_no)

-- fragment: end
-- Every statement that ends executions includes this, except succeed_executions, which leaves rows that have more to do
-- alone. Work that must happen at every end belongs here, as one more CTE over `ended`. An arrival says that an execution
-- has ended for which a run, or a job that depends on it, waits. It locks no row of the run: see flow.workflows.advance.
recorded AS (
    {{insert_into_history}}
    FROM ended
), arrived AS (
    INSERT INTO ondot.arrival (run_id, execution_id, at, tenant_no, step_no, item_no, state)
    SELECT awaited_by, id, ondot.clock(), tenant_no, step_no, item_no, new_state FROM ended
    WHERE awaited_by IS NOT NULL
    -- A child run that was BLOCKED has reported that before.
    ON CONFLICT (run_id, execution_id) DO UPDATE SET state = excluded.state, at = excluded.at
), emitted AS (
    -- An event of ondot's own (flow.events.own). Steps have none: their run has one.
    INSERT INTO ondot.own_event (at, tenant_no, type, job_id, execution_id)
    SELECT ondot.clock(), e.tenant_no, 'ondot.execution.' || lower(e.new_state), e.job_id, e.id FROM ended e
    WHERE {{has_own_subscriptions}} AND e.origin <> 'step'
      AND EXISTS (SELECT FROM ondot.subscription s
                  WHERE s.tenant_no = e.tenant_no AND s.type = 'ondot.execution.' || lower(e.new_state)
                    AND s.type LIKE 'ondot.%')
    ORDER BY e.id
), posted AS (
    {{insert_into_outbox}}
    FROM (SELECT *, lower(new_state) AS event FROM ended WHERE {{has_sinks}} AND origin <> 'step') e
    WHERE {{wants}} ARRAY['ondot.execution.' || event])
    GROUP BY e.tenant_no, event
)

-- fragment: never_made
-- transition: refuse. The columns of `ended` for a fire that ends before it has an execution.
NULL::uuid AS worker_id, NULL::timestamptz AS started_at, 0 AS attempt_no, 0 AS failures, 0 AS losses, 0 AS failed,
0 AS lost, 'SKIPPED' AS new_state, 'fire' AS origin, NULL::json AS payload, NULL::text AS result, NULL::text AS error,
NULL::uuid AS replay_of, {{not_awaited}}

-- fragment: pool_routes
-- The pools whose transport was ever set, as text: number, transport, the one before, and when it changed. NULL: none.
(SELECT jsonb_agg(jsonb_build_array(pool_no, transport, transport_was, transport_at))::text FROM ondot.pool
 WHERE transport_at IS NOT NULL)

-- fragment: tenant_lock
-- The first key of the advisory locks of tenants with quotas; the second is the tenant's number.
1869505652

-- fragment: event_lock
-- The first key of the advisory locks of subscriptions to events; the second is the tenant's number.
1869505653

-- fragment: is_delivery_due
-- Whether a delivery of a message may start by some instant: `<= instant)` follows. All of them belong to the installation.
EXISTS (SELECT FROM ondot.ready
        WHERE pool_no = (SELECT pool_no FROM ondot.pool WHERE name = ':deliveries')
          AND class = ANY ('{0,1,2,3,4,5}'::smallint[]) AND tenant_no = 0 AND ready_at
