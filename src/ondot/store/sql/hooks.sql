-- fragment: hook_columns
id, tenant_no, name, type, source, signature, header, hash, hash_before, key_no, sealed, key_no_before,
CASE WHEN sealed_until > ondot.clock() THEN sealed_before END AS sealed_before,
CASE WHEN hash_until > ondot.clock() THEN hash_until END AS hash_until,
CASE WHEN sealed_until > ondot.clock() THEN sealed_until END AS sealed_until,
created_at, created_by, rotated_at, last_used_at,
extract(epoch FROM hash_until - ondot.clock())::double precision AS hash_left_s

-- name: add_hook :one
-- $1 id, $2 tenant_no, $3 name, $4 type, $5 source, $6 signature, $7 header, $8 hash, $9 key_no, $10 sealed, $11 created_by
INSERT INTO ondot.hook (id, tenant_no, name, type, source, signature, header, hash, key_no, sealed, created_by)
VALUES ($1::uuid, $2::integer, $3::text, $4::text, $5::text, $6::text, $7::text, $8::bytea, $9::integer, $10::bytea,
        $11::text)
ON CONFLICT (tenant_no, name) DO NOTHING
RETURNING {{hook_columns}};

-- name: count_hooks :one
-- index: hook_tenant_no_name_key
-- $1 tenant_no
SELECT count(*) FROM ondot.hook WHERE tenant_no = $1::integer;

-- name: list_hooks :many
-- index: hook_tenant_no_name_key
-- By name.
-- $1 tenant_no, $2 after, $3 limit
SELECT {{hook_columns}} FROM ondot.hook
WHERE tenant_no = $1::integer AND name > $2::text ORDER BY name LIMIT $3::integer;

-- name: get_hook :one
-- index: hook_pkey
-- $1 tenant_no, $2 id
SELECT {{hook_columns}} FROM ondot.hook WHERE id = $2::uuid AND tenant_no = $1::integer;

-- name: lock_hook :one
-- locks: the hook's row        index: hook_pkey
-- $1 tenant_no, $2 id
SELECT {{hook_columns}} FROM ondot.hook WHERE id = $2::uuid AND tenant_no = $1::integer FOR UPDATE;

-- name: find_hooks :many
-- index: hook_hash, hook_hash_before
-- $1 hashes
SELECT {{hook_columns}} FROM (
    SELECT * FROM ondot.hook WHERE hash = ANY ($1::bytea[])
    UNION ALL
    SELECT * FROM ondot.hook WHERE hash_before = ANY ($1::bytea[]) AND hash_until > ondot.clock()
) h
WHERE EXISTS (SELECT FROM ondot.tenant t WHERE t.tenant_no = h.tenant_no AND t.state <> 'DELETED');

-- name: rotate_hook :one
-- A new token, or a new signing secret. The one before works for the overlap.
-- $1 tenant_no, $2 id, $3 hash (NULL: as it is), $4 key_no, $5 sealed (NULL: as it is), $6 overlap_s
UPDATE ondot.hook
SET hash = coalesce($3::bytea, hash),
    hash_before = CASE WHEN $3 IS NULL THEN hash_before ELSE hash END,
    hash_until = CASE WHEN $3 IS NULL THEN hash_until
                      ELSE ondot.clock() + make_interval(secs => $6::double precision) END,
    key_no = coalesce($4::integer, key_no),
    sealed = coalesce($5::bytea, sealed),
    key_no_before = CASE WHEN $5 IS NULL THEN key_no_before ELSE key_no END,
    sealed_before = CASE WHEN $5 IS NULL THEN sealed_before ELSE sealed END,
    sealed_until = CASE WHEN $5 IS NULL THEN sealed_until ELSE ondot.clock() + make_interval(secs => $6) END,
    rotated_at = ondot.clock()
WHERE id = $2::uuid AND tenant_no = $1::integer
RETURNING {{hook_columns}};

-- name: delete_hook :one
-- $1 tenant_no, $2 id
DELETE FROM ondot.hook WHERE id = $2::uuid AND tenant_no = $1::integer RETURNING {{hook_columns}};

-- name: record_hook_use :none
-- locks: the hook's row, SKIP LOCKED        index: hook_pkey
-- At most once a minute, over all processes.
-- $1 tenant_no, $2 id
UPDATE ondot.hook SET last_used_at = ondot.clock()
WHERE tenant_no = $1::integer AND id = (SELECT id FROM ondot.hook
            WHERE id = $2::uuid AND tenant_no = $1
              AND (last_used_at IS NULL OR last_used_at <= ondot.clock() - interval '1 minute')
            FOR UPDATE SKIP LOCKED);
