-- fragment: key_columns
id, tenant_no, name, role, scopes, pools, created_at, created_by, expires_at, last_used_at, revoked_at, replaced_by,
coalesce(expires_at <= ondot.clock(), false) AS is_expired

-- name: add_key :one
-- $1 id, $2 tenant_no, $3 name, $4 hash, $5 role, $6 scopes, $7 pools, $8 expires_in_s, $9 created_by
INSERT INTO ondot.key (id, tenant_no, name, hash, role, scopes, pools, created_at, expires_at, created_by)
VALUES ($1::uuid, $2::integer, $3::text, $4::bytea, $5::text, $6::text[], $7::text[], ondot.clock(),
        ondot.clock() + make_interval(secs => $8::double precision), $9::text)
RETURNING {{key_columns}};

-- name: find_callers :many
-- index: key_pkey, key_hash_key
-- Keys by their ids, and those of earlier releases, which have none in them, by their hashes.
-- $1 ids, $2 hashes
SELECT k.hash, k.id, k.tenant_no, k.name, k.role, k.scopes, k.pools,
       extract(epoch FROM k.expires_at - ondot.clock())::double precision AS left_s
FROM (
    SELECT * FROM ondot.key WHERE id = ANY ($1::uuid[])
    UNION ALL
    SELECT * FROM ondot.key WHERE hash = ANY ($2::bytea[])
) k
JOIN ondot.tenant t ON t.tenant_no = k.tenant_no
WHERE k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > ondot.clock()) AND t.state <> 'DELETED';

-- name: list_keys :many
-- index: key_of_tenant
-- Newest first.
-- $1 tenant_no, $2 before, $3 limit
SELECT {{key_columns}} FROM ondot.key
WHERE tenant_no = $1::integer AND ($2::uuid IS NULL OR id < $2) ORDER BY id DESC LIMIT $3::integer;

-- name: get_key :one
-- index: key_pkey
-- $1 tenant_no, $2 id
SELECT {{key_columns}} FROM ondot.key WHERE id = $2::uuid AND tenant_no = $1::integer;

-- name: lock_key :one
-- locks: the key's row        index: key_pkey
-- $1 tenant_no, $2 id
SELECT {{key_columns}} FROM ondot.key WHERE id = $2::uuid AND tenant_no = $1::integer FOR UPDATE;

-- name: replace_key :none
-- The key ends after the overlap, or earlier if it ends by itself.
-- $1 tenant_no, $2 id, $3 replaced_by, $4 overlap_s
UPDATE ondot.key
SET replaced_by = $3::uuid,
    expires_at = least(expires_at, ondot.clock() + make_interval(secs => $4::double precision))
WHERE id = $2::uuid AND tenant_no = $1::integer;

-- name: revoke_key :one
-- $1 tenant_no, $2 id
UPDATE ondot.key SET revoked_at = coalesce(revoked_at, ondot.clock())
WHERE id = $2::uuid AND tenant_no = $1::integer RETURNING id;

-- name: lock_owner_keys :many
-- locks: the keys of owners, in the order of their ids
-- Keys of owners that work, also for a while yet. Locked, so that two requests do not each revoke the last but one.
-- $1 tenant_no
SELECT id FROM ondot.key
WHERE tenant_no = $1::integer AND role = 'owner' AND revoked_at IS NULL
  AND (expires_at IS NULL OR expires_at > ondot.clock()) AND replaced_by IS NULL
ORDER BY id FOR UPDATE;

-- name: record_uses :none
-- locks: rows of keys, SKIP LOCKED        index: key_pkey
-- At most once a minute for a key, over all processes.
-- $1 ids
UPDATE ondot.key SET last_used_at = ondot.clock()
WHERE id = ANY (ARRAY(
    SELECT id FROM ondot.key
    WHERE id = ANY ($1::uuid[]) AND (last_used_at IS NULL OR last_used_at <= ondot.clock() - interval '1 minute')
    FOR UPDATE SKIP LOCKED
));

-- name: read_access :one
-- Whether there are several tenants or people who sign in, how many owners there are, and the keys that expire within two weeks and
-- have no successor, the next one first.
-- $1 at most so many of these
WITH live AS (
    SELECT k.name, k.role, k.expires_at, t.name AS tenant, k.replaced_by IS NOT NULL AS is_replaced
    FROM ondot.key k JOIN ondot.tenant t ON t.tenant_no = k.tenant_no
    WHERE k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > ondot.clock()) AND t.state <> 'DELETED'
), soon AS (
    SELECT name, tenant, expires_at FROM live
    WHERE expires_at < ondot.clock() + interval '14 days' AND NOT is_replaced
    ORDER BY expires_at LIMIT $1::integer
)
SELECT EXISTS (SELECT FROM ondot.person)
       OR (SELECT count(*) FROM ondot.tenant WHERE tenant_no > 0 AND state <> 'DELETED') > 1 AS is_shared,
       (SELECT count(*) FROM live WHERE role = 'owner')
       + (SELECT count(*) FROM ondot.person WHERE state = 'ACTIVE' AND role = 'owner') AS owners,
       ARRAY(SELECT name FROM soon) AS names,
       ARRAY(SELECT tenant FROM soon) AS tenants,
       ARRAY(SELECT expires_at FROM soon) AS expiries;
