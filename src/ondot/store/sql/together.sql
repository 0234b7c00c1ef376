-- name: wait_briefly :none
-- For the transaction only: many wait behind it.
SET LOCAL lock_timeout = '100ms';

-- name: take_keys :many
-- locks: the keys' rows, in the order they are given
-- In one order for all, so that two who take the same keys do not wait for each other.
-- $1 tenant_no, $2 keys, sorted, $3 request_hashes, $4 answers
INSERT INTO ondot.idempotency (tenant_no, key, request_hash, answer, created_at)
SELECT $1::integer, n.key, n.request_hash, n.answer::json, ondot.clock()
FROM unnest($2::text[], $3::bytea[], $4::text[]) AS n(key, request_hash, answer)
ON CONFLICT DO NOTHING
RETURNING key;
