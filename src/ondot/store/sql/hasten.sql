-- name: lock_gates_of :one
-- locks: the gates of an execution, in the order of their ids        index: gated_pkey
-- Before its place is moved, as a cancel does: a transaction that waits for gates while it holds executions may deadlock.
-- $1 tenant_no, $2 execution_id
SELECT ondot.lock_gates(ARRAY(
    SELECT (s.stage->>'gate')::uuid FROM ondot.gated d, jsonb_array_elements(d.stages) AS s(stage)
    WHERE d.execution_id = $2::uuid AND d.tenant_no = $1::integer
));

-- name: hasten :one
-- locks: the ready row, then the execution; gates are held        index: execution_pkey, ready_pkey
-- Moves the next attempt of an execution that waits in this state to now. Waits for a lease or a sweep that is taking its
-- row in the queue, and then changes nothing. For one with gates, hasten_gated moves the place in line. An attempt that is
-- due within a second is left alone: admission may have taken its tokens, and they would be taken twice.
-- $1 tenant_no, $2 execution_id, $3 state
WITH found AS (
    SELECT e.id, e.pool_no, e.class, e.tenant_no, e.ready_at,
           EXISTS (SELECT FROM ondot.gated g WHERE g.execution_id = e.id) AS is_gated
    FROM ondot.execution e
    WHERE e.id = $2::uuid AND e.tenant_no = $1::integer AND e.state = $3::text
      AND e.ready_at > ondot.clock() + interval '1 second'
), taken AS (
    DELETE FROM ondot.ready r USING found f
    WHERE r.pool_no = f.pool_no AND r.class = f.class AND r.tenant_no = f.tenant_no AND r.ready_at = f.ready_at
      AND r.execution_id = f.id
    RETURNING r.execution_id
), moved AS (
    UPDATE ondot.execution e SET ready_at = ondot.clock()
    FROM found f
    WHERE e.id = f.id AND e.state = $3 AND e.ready_at = f.ready_at
      AND (f.is_gated OR EXISTS (SELECT FROM taken))
    RETURNING e.id, e.pool_no, e.class, e.tenant_no, e.ready_at, f.is_gated
), queued AS (
    INSERT INTO ondot.ready (pool_no, class, tenant_no, ready_at, execution_id)
    SELECT pool_no, class, tenant_no, ready_at, id FROM moved WHERE NOT is_gated
)
SELECT pool_no, ready_at, is_gated FROM moved;

-- name: hasten_gated :none
-- locks: the row of gated, then gates by its trigger        index: gated_pkey
-- The trigger puts it into the line of its first gate, or into the queue if it has passed all.
-- $1 tenant_no, $2 execution_id, $3 ready_at
UPDATE ondot.gated SET ready_at = $3::timestamptz WHERE execution_id = $2::uuid AND tenant_no = $1::integer;
