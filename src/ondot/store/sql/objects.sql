-- name: add_objects :none
-- index: object_pkey
-- $1 execution_ids, $2 attempt_nos, $3 kinds, $4 tenant_nos, $5 keys, $6 bytes, $7 cut
INSERT INTO ondot.object (execution_id, attempt_no, kind, tenant_no, key, bytes, cut)
SELECT * FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::integer[], $5::text[], $6::bigint[], $7::boolean[])
ON CONFLICT (execution_id, attempt_no, kind) DO UPDATE
SET key = excluded.key, bytes = excluded.bytes, cut = excluded.cut;

-- name: find_object :one
-- index: object_pkey
-- $1 tenant_no, $2 execution_id, $3 attempt_no, $4 kind
SELECT execution_id, attempt_no, kind, tenant_no, key, bytes, cut FROM ondot.object
WHERE execution_id = $2::uuid AND attempt_no = $3::integer AND kind = $4::text AND tenant_no = $1::integer;

-- name: find_result :one
-- index: history_pkey, object_pkey
-- The result of an ended execution, with its key if it is in object storage.
-- $1 tenant_no, $2 execution_id
SELECT h.attempt_no, h.result::text AS result, o.key
FROM ondot.history h
LEFT JOIN ondot.object o
  ON o.execution_id = h.id AND o.attempt_no = h.attempt_no AND o.kind = 'result' AND o.tenant_no = h.tenant_no
WHERE h.id = $2::uuid AND h.tenant_no = $1::integer;

-- name: find_writer :one
-- index: history_pkey, attempt_pkey, worker_pkey
-- Which worker ran an ended attempt, and where; the worker's row may be gone by now.
-- $1 tenant_no, $2 execution_id, $3 attempt_no
SELECT a.worker_id, w.host
FROM (
    SELECT worker_id FROM ondot.attempt
    WHERE execution_id = $2::uuid AND attempt_no = $3::integer AND tenant_no = $1::integer
    UNION ALL
    SELECT worker_id FROM ondot.history WHERE id = $2 AND attempt_no = $3 AND tenant_no = $1
) a
LEFT JOIN ondot.worker w ON w.id = a.worker_id
LIMIT 1;
