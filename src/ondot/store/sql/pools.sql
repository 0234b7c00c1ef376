-- name: find_pools :many
-- index: pool_tenant_no_name_key
-- `committed` is false for those that this very transaction has made.
-- $1 tenant_no, $2 names
SELECT pool_no, name, coalesce(xmin <> pg_current_xact_id_if_assigned()::xid, true) AS committed
FROM ondot.pool WHERE tenant_no = $1::integer AND name = ANY($2::text[]);

-- name: add_pools :none
-- $1 tenant_no, $2 names, sorted so that two who add the same ones do not deadlock
INSERT INTO ondot.pool (tenant_no, name)
SELECT $1::integer, name FROM unnest($2::text[]) AS name
ON CONFLICT DO NOTHING;
