-- fragment: has_not_begun
-- Whether an execution `e` is no run that has begun: one that was BLOCKED and is retried waits as any execution does, and
-- neither a pause nor a delete of its job ends it.
NOT EXISTS (SELECT FROM ondot.run r WHERE r.id = e.id AND r.started_at IS NOT NULL)

-- name: unqueue_job :many
-- locks: ready rows        index: execution_fire, execution_other, ready_pkey
-- Takes executions of a job out of the queue: fires that have not started (pause), those of its backfill, or all that do
-- not run.
-- $1 tenant_no, $2 job_id, $3 fires, backfill or all
DELETE FROM ondot.ready r
USING (
    SELECT id, pool_no, class, tenant_no, ready_at FROM ondot.execution e
    WHERE job_id = $2::uuid AND tenant_no = $1::integer AND origin IN ('fire', 'backfill')
      AND ($3::text = 'all' OR state = 'PENDING' AND ($3 = 'fires' OR origin = 'backfill')) AND {{has_not_begun}}
    UNION ALL
    SELECT id, pool_no, class, tenant_no, ready_at FROM ondot.execution e
    WHERE job_id = $2 AND tenant_no = $1 AND origin NOT IN ('fire', 'backfill') AND $3 = 'all' AND {{has_not_begun}}
) e
WHERE r.pool_no = e.pool_no AND r.class = e.class AND r.tenant_no = e.tenant_no AND r.ready_at = e.ready_at
  AND r.execution_id = e.id
RETURNING r.execution_id;

-- name: unline_job :many
-- locks: waiting rows        index: execution_fire, execution_other, waiting_execution
-- As unqueue_job, out of the lines before gates.
-- $1 tenant_no, $2 job_id, $3 fires, backfill or all
DELETE FROM ondot.waiting w
USING (
    SELECT id FROM ondot.execution e
    WHERE job_id = $2::uuid AND tenant_no = $1::integer AND origin IN ('fire', 'backfill') AND gated
      AND ($3::text = 'all' OR state = 'PENDING' AND ($3 = 'fires' OR origin = 'backfill')) AND {{has_not_begun}}
    UNION ALL
    SELECT id FROM ondot.execution e
    WHERE job_id = $2 AND tenant_no = $1 AND origin NOT IN ('fire', 'backfill') AND gated AND $3 = 'all'
      AND {{has_not_begun}}
) e
WHERE w.execution_id = e.id
RETURNING w.execution_id;

-- name: unqueue_executions :many
-- locks: gates, then waiting rows, then ready rows        index: gated_pkey, waiting_execution, execution_pkey, ready_pkey
-- Takes executions out of the queue and out of the lines. It waits for a worker that is leasing one of them, and then
-- leaves that one alone.
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
-- Asks running executions to end: their workers look for such requests. The first reason stays.
-- $1 tenant_no (NULL: of any), $2 ids, $3 reason
UPDATE ondot.execution SET cancel_at = coalesce(cancel_at, ondot.clock()), cancel_reason = coalesce(cancel_reason, $3::text)
WHERE id = ANY ($2::uuid[]) AND ($1::integer IS NULL OR tenant_no = $1) AND state = 'RUNNING'
RETURNING id;

-- name: find_cancels :many
-- index: execution_cancel
-- Attempts of this worker that were asked to end.
-- $1 worker_id
SELECT id, attempt_no FROM ondot.execution
WHERE cancel_at IS NOT NULL AND worker_id = $1::uuid AND state = 'RUNNING';

-- name: find_past_deadline :many
-- index: execution_start_by
-- Executions that were not started by their deadline, and still wait.
-- $1 limit
SELECT id FROM ondot.execution
WHERE start_by IS NOT NULL AND start_by < ondot.clock() AND state = 'PENDING'
ORDER BY start_by LIMIT $1::integer;

-- name: has_waiting :one
-- index: execution_fire, execution_other
-- Whether a job still has executions that unqueue_job looks for.
-- $1 tenant_no, $2 job_id, $3 fires, backfill or all
SELECT EXISTS (SELECT FROM ondot.execution e WHERE job_id = $2::uuid AND tenant_no = $1::integer
               AND origin IN ('fire', 'backfill') AND state IN ('PENDING', 'RETRYING')
               AND ($3::text = 'all' OR state = 'PENDING' AND ($3 = 'fires' OR origin = 'backfill'))
               AND {{has_not_begun}})
    OR $3 = 'all' AND EXISTS (SELECT FROM ondot.execution e WHERE job_id = $2 AND tenant_no = $1
                          AND origin NOT IN ('fire', 'backfill') AND state IN ('PENDING', 'RETRYING')
                          AND {{has_not_begun}}) AS waiting;

-- name: end_executions :many
-- transition: cancel, skip        locks: executions        index: execution_pkey
-- Ends executions that were taken out of the queue, each with its reason.
-- $1 tenant_no (NULL: of any), $2 ids, $3 reasons, $4 the state they end in, $5 the states that it may follow
WITH unqueued AS (
    DELETE FROM ondot.execution
    WHERE id = ANY ($2::uuid[]) AND ($1::integer IS NULL OR tenant_no = $1) AND state = ANY ($5::text[])
    RETURNING *
), ended AS (
    SELECT u.*, 0 AS failed, 0 AS lost, $4::text AS new_state, r.reason, NULL AS result, NULL AS error,
           ondot.labels_of(u.tenant_no, u.job_id) AS labels
    FROM unqueued u JOIN unnest($2, $3::text[]) AS r(id, reason) USING (id)
),
{{end}},
passed AS (
    DELETE FROM ondot.gated WHERE execution_id = ANY (ARRAY(SELECT id FROM ended WHERE gated))
)
SELECT id FROM ended;
