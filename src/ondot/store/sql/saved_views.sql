-- fragment: view_columns
v.id, v.kind, v.name, v.q, v.owner, v.created_at, v.created_by, v.updated_at

-- name: add_view :one
-- index: saved_view_tenant_no_owner_kind_name_key
-- $1 id, $2 tenant_no, $3 owner, $4 kind, $5 name, $6 q, $7 created_by
INSERT INTO ondot.saved_view AS v (id, tenant_no, owner, kind, name, q, created_by)
VALUES ($1::uuid, $2::integer, $3::text, $4::text, $5::text, $6::text, $7::text)
ON CONFLICT (tenant_no, owner, kind, name) DO NOTHING
RETURNING {{view_columns}};

-- name: count_views :one
-- index: saved_view_tenant_no_owner_kind_name_key
-- $1 tenant_no, $2 owner
SELECT count(*) FROM ondot.saved_view WHERE tenant_no = $1::integer AND owner = $2::text;

-- name: list_views :many
-- index: saved_view_tenant_no_owner_kind_name_key
-- By id. $1 tenant_no, $2 owners, $3 kind or NULL, $4 name or NULL, $5 after id or NULL, $6 limit
SELECT {{view_columns}} FROM ondot.saved_view v
WHERE v.tenant_no = $1::integer AND v.owner = ANY ($2::text[]) AND ($3::text IS NULL OR v.kind = $3)
  AND ($4::text IS NULL OR v.name = $4) AND ($5::uuid IS NULL OR v.id > $5)
ORDER BY v.id LIMIT $6::integer;

-- name: find_view :one
-- index: saved_view_pkey
-- $1 tenant_no, $2 id
SELECT {{view_columns}} FROM ondot.saved_view v WHERE v.tenant_no = $1::integer AND v.id = $2::uuid;

-- name: lock_view :one
-- locks: the view        index: saved_view_pkey
-- $1 tenant_no, $2 id
SELECT {{view_columns}} FROM ondot.saved_view v WHERE v.tenant_no = $1::integer AND v.id = $2::uuid FOR UPDATE;

-- name: change_view :one
-- locks: the view        index: saved_view_pkey
-- $1 tenant_no, $2 id, $3 owner, $4 name, $5 q
UPDATE ondot.saved_view v SET owner = $3::text, name = $4::text, q = $5::text, updated_at = ondot.clock()
WHERE v.tenant_no = $1::integer AND v.id = $2::uuid
RETURNING {{view_columns}};

-- name: delete_view :none
-- locks: the view        index: saved_view_pkey
-- $1 tenant_no, $2 id
DELETE FROM ondot.saved_view v WHERE v.tenant_no = $1::integer AND v.id = $2::uuid;
