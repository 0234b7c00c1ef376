-- name: has_key :one
-- index: idempotency_pkey
-- $1 tenant_no, $2 key
SELECT EXISTS (SELECT FROM ondot.idempotency WHERE tenant_no = $1::integer AND key = $2::text) AS found;

-- name: keys_in_use :many
-- index: job_key
-- $1 tenant_no, $2 keys
SELECT key FROM ondot.job
WHERE tenant_no = $1::integer AND key = ANY ($2::text[]) AND key IS NOT NULL AND state <> 'DELETED';
