-- name: is_running :one
-- index: execution_pkey
-- Whether an attempt still counts: it was not recovered, ended or leased again meanwhile. On a connection of ondot's own,
-- the planner gets the server's usual settings until the end of the transaction: a handler's statements follow.
-- $1 tenant_no, $2 execution_id, $3 attempt_no, $4 worker_id, $5 whether the connection is ondot's own
SELECT EXISTS (
    SELECT FROM ondot.execution
    WHERE id = $2::uuid AND tenant_no = $1::integer AND attempt_no = $3::integer AND worker_id = $4::uuid
      AND state = 'RUNNING'
) AS is_running,
CASE WHEN $5::boolean THEN
    set_config('enable_seqscan', 'on', true) || set_config('enable_bitmapscan', 'on', true)
    || set_config('plan_cache_mode', 'auto', true)
END AS planner;

-- name: wait_for_execution :one
-- locks: the execution row        index: execution_pkey
-- Waits until a transaction that is ending this execution is over, if its backend is still alive. Before that, the result of a
-- COMMIT whose reply was lost is not known.
-- $1 tenant_no, $2 execution_id
SELECT id FROM ondot.execution WHERE id = $2::uuid AND tenant_no = $1::integer FOR KEY SHARE;
