-- name: is_running :one
-- index: execution_pkey
-- Whether an attempt still counts: nobody has recovered, ended or taken it meanwhile.
-- $1 tenant_no, $2 execution_id, $3 attempt_no, $4 worker_id
SELECT EXISTS (
    SELECT FROM ondot.execution
    WHERE id = $2::uuid AND tenant_no = $1::integer AND attempt_no = $3::integer AND worker_id = $4::uuid
      AND state = 'RUNNING'
) AS is_running;

-- name: wait_for_execution :one
-- locks: the execution row        index: execution_pkey
-- Waits until a transaction that is ending this execution is over, if its backend still lives: before that nobody can say
-- what became of a COMMIT whose reply was lost.
-- $1 tenant_no, $2 execution_id
SELECT id FROM ondot.execution WHERE id = $2::uuid AND tenant_no = $1::integer FOR KEY SHARE;
