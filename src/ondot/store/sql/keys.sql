-- name: add_key :none
-- $1 id, $2 tenant_no, $3 name, $4 hash
INSERT INTO ondot.key (id, tenant_no, name, hash) VALUES ($1::uuid, $2::integer, $3::text, $4::bytea);

-- name: find_owners :many
-- index: key_hash_key
-- $1 hashes
SELECT hash, tenant_no, name FROM ondot.key WHERE hash = ANY($1::bytea[]) AND revoked_at IS NULL;

-- name: list_keys :many
-- $1 tenant_no
SELECT id, name, created_at, revoked_at FROM ondot.key WHERE tenant_no = $1::integer ORDER BY id;

-- name: revoke_key :one
-- $1 tenant_no, $2 id
UPDATE ondot.key SET revoked_at = coalesce(revoked_at, ondot.clock())
WHERE id = $2::uuid AND tenant_no = $1::integer RETURNING id;
