-- name: add_log_lines :none
-- $1 execution_ids, $2 attempt_nos, $3 line_nos, $4 tenant_nos, $5 ats, $6 streams, $7 lines
INSERT INTO ondot.log (execution_id, attempt_no, line_no, tenant_no, at, stream, line)
SELECT * FROM unnest($1::uuid[], $2::integer[], $3::integer[], $4::integer[], $5::timestamptz[], $6::text[], $7::text[])
ON CONFLICT DO NOTHING;

-- name: list_log_lines :many
-- index: log_pkey
-- $1 tenant_no, $2 execution_id, $3 after attempt_no, $4 after line_no, $5 limit, $6 attempt_no (NULL: all),
-- $7 a part of the line, in lower case (NULL: any line)
SELECT attempt_no, line_no, at, stream, line FROM ondot.log
WHERE execution_id = $2::uuid AND tenant_no = $1::integer AND (attempt_no, line_no) > ($3::integer, $4::integer)
  AND ($6::integer IS NULL OR attempt_no = $6) AND ($7::text IS NULL OR strpos(lower(line), $7) > 0)
ORDER BY attempt_no, line_no LIMIT $5::integer;

-- name: is_under_way :one
-- index: execution_pkey
-- Whether more lines may follow.
-- $1 tenant_no, $2 execution_id
SELECT EXISTS (SELECT FROM ondot.execution WHERE id = $2::uuid AND tenant_no = $1::integer) AS is_under_way;

-- name: save_progress :none
-- index: checkpoint_pkey
-- Only of attempts that still run under this worker: a stale one overwrites nothing.
-- $1 worker_id, $2 execution_ids, $3 attempt_nos, $4 checkpoints (NULL: as it was), $5 progress, $6 messages
INSERT INTO ondot.checkpoint (execution_id, tenant_no, checkpoint, progress, message, at)
SELECT e.id, e.tenant_no, n.checkpoint::json, n.progress, n.message, ondot.clock()
FROM unnest($2::uuid[], $3::integer[], $4::text[], $5::real[], $6::text[])
     AS n(execution_id, attempt_no, checkpoint, progress, message)
JOIN ondot.execution e
  ON e.id = n.execution_id AND e.attempt_no = n.attempt_no AND e.worker_id = $1::uuid AND e.state = 'RUNNING'
ON CONFLICT (execution_id) DO UPDATE
SET checkpoint = coalesce(excluded.checkpoint, ondot.checkpoint.checkpoint),
    progress = coalesce(excluded.progress, ondot.checkpoint.progress),
    message = coalesce(excluded.message, ondot.checkpoint.message), at = excluded.at;

-- name: find_checkpoint :one
-- $1 execution_id
SELECT checkpoint FROM ondot.checkpoint WHERE execution_id = $1::uuid;

-- name: forget_checkpoints :one
-- locks: checkpoints, SKIP LOCKED        index: checkpoint_pkey, execution_pkey
-- Of ended executions, which will not use them again. A few at a time, in the order of their ids. Returns the last id looked at
-- (NULL: none) and how many there were.
-- $1 after execution_id, $2 limit
WITH seen AS MATERIALIZED (
    SELECT execution_id FROM ondot.checkpoint WHERE execution_id > $1::uuid ORDER BY execution_id LIMIT $2::integer
), gone AS (
    DELETE FROM ondot.checkpoint WHERE ctid = ANY (ARRAY(
        SELECT c.row_at FROM seen s CROSS JOIN LATERAL (
            SELECT c.ctid AS row_at FROM ondot.checkpoint c
            WHERE c.execution_id = s.execution_id
              AND (SELECT true FROM ondot.execution e WHERE e.id = c.execution_id LIMIT 1) IS NULL
            LIMIT 1 FOR UPDATE SKIP LOCKED
        ) c
    ))
)
SELECT (SELECT execution_id FROM seen ORDER BY execution_id DESC LIMIT 1) AS through, (SELECT count(*) FROM seen) AS count;
