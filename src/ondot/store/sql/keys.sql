-- name: add_key :none
-- $1 id, $2 tenant_no, $3 name, $4 hash
INSERT INTO ondot.key (id, tenant_no, name, hash) VALUES ($1::uuid, $2::integer, $3::text, $4::bytea);

-- name: find_callers :many
-- index: key_hash_key
-- $1 hashes
SELECT k.hash, k.id, k.tenant_no, k.name, k.role, k.scopes, k.pools
FROM ondot.key k JOIN ondot.tenant t ON t.tenant_no = k.tenant_no
WHERE k.hash = ANY($1::bytea[]) AND k.revoked_at IS NULL
  AND (k.expires_at IS NULL OR k.expires_at > ondot.clock()) AND t.state <> 'DELETED';

-- name: list_keys :many
-- $1 tenant_no
SELECT id, name, created_at, revoked_at FROM ondot.key WHERE tenant_no = $1::integer ORDER BY id;

-- name: revoke_key :one
-- $1 tenant_no, $2 id
UPDATE ondot.key SET revoked_at = coalesce(revoked_at, ondot.clock())
WHERE id = $2::uuid AND tenant_no = $1::integer RETURNING id;
