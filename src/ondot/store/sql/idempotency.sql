-- name: take_key :one
-- locks: the key's row; a concurrent twin waits here until the first has committed
-- $1 tenant_no, $2 key, $3 request_hash
INSERT INTO ondot.idempotency (tenant_no, key, request_hash, created_at)
VALUES ($1::integer, $2::text, $3::bytea, ondot.clock())
ON CONFLICT DO NOTHING
RETURNING key;

-- name: wait_briefly :none
-- For this transaction only: many requests wait behind it.
SET LOCAL lock_timeout = '100ms';

-- name: take_keys :many
-- locks: the keys' rows, in the order they are given
-- One order for all, so that two transactions that take the same keys do not deadlock.
-- $1 tenant_no, $2 keys, sorted, $3 request_hashes, $4 answers
INSERT INTO ondot.idempotency (tenant_no, key, request_hash, answer, created_at)
SELECT $1::integer, n.key, n.request_hash, n.answer::json, ondot.clock()
FROM unnest($2::text[], $3::bytea[], $4::text[]) AS n(key, request_hash, answer)
ON CONFLICT DO NOTHING
RETURNING key;

-- name: find_key :one
-- index: idempotency_pkey
-- $1 tenant_no, $2 key
SELECT request_hash, answer FROM ondot.idempotency WHERE tenant_no = $1::integer AND key = $2::text;

-- name: store_answer :none
-- $1 tenant_no, $2 key, $3 answer
UPDATE ondot.idempotency SET answer = $3::text::json WHERE tenant_no = $1::integer AND key = $2::text;

-- name: forget_keys :one
-- index: idempotency_age
-- In small batches: a large DELETE would hold its locks for long and write much WAL at once.
-- $1 limit
WITH gone AS (
    DELETE FROM ondot.idempotency WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM ondot.idempotency WHERE created_at < ondot.clock() - interval '7 days'
        ORDER BY created_at LIMIT $1::integer FOR UPDATE SKIP LOCKED
    ))
    RETURNING 1
)
SELECT count(*) AS count FROM gone;

-- name: has_key :one
-- index: idempotency_pkey
-- $1 tenant_no, $2 key
SELECT EXISTS (SELECT FROM ondot.idempotency WHERE tenant_no = $1::integer AND key = $2::text) AS found;

-- name: find_keys_in_use :many
-- index: job_key
-- $1 tenant_no, $2 keys
SELECT key FROM ondot.job
WHERE tenant_no = $1::integer AND key = ANY ($2::text[]) AND key IS NOT NULL AND state <> 'DELETED';
