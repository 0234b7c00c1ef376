-- fragment: columns
-- Of a tenant `t`, as it is shown.
t.tenant_no, t.name, t.state, t.weight, t.pools, t.quotas::text AS quotas, t.version, t.created_at, t.updated_at,
t.deleted_at, t.purged_at, t.removed, t.removed_share, t.targets::text AS targets, t.retention_days

-- name: list_changed_tenants :many
-- index: tenant_changed
-- $1 the oldest transaction that was open at the last reading
SELECT s.oldest_open::text AS oldest_open, t.tenant_no, t.name, t.state, t.weight, t.pools, t.quotas::text AS quotas, t.version,
       t.targets::text AS targets, t.retention_days
FROM (SELECT pg_snapshot_xmin(pg_current_snapshot()) AS oldest_open) s
LEFT JOIN ondot.tenant t ON t.changed_xid >= $1::text::xid8 AND t.tenant_no > 0;

-- name: list_tenants :many
-- index: tenant_pkey, job_count_pkey
-- Deleted ones only if they are asked for.
-- $1 state (NULL: all that are not deleted), $2 after tenant_no, $3 limit
SELECT {{columns}}
FROM ondot.tenant t
WHERE t.tenant_no > $2::integer AND t.tenant_no > 0
  AND CASE WHEN $1::text IS NULL THEN t.state <> 'DELETED' ELSE t.state = $1 END
ORDER BY t.tenant_no LIMIT $3::integer;

-- name: find_tenant :one
-- index: tenant_name, tenant_chores
-- The tenant of a name; else the one of that name that was deleted last.
-- $1 name
SELECT {{columns}}
FROM ondot.tenant t
WHERE t.name = $1::text AND t.tenant_no > 0
ORDER BY t.state = 'DELETED', t.tenant_no DESC LIMIT 1;

-- name: lock_tenant :one
-- locks: the tenant row        index: tenant_name
-- $1 name
SELECT {{columns}}
FROM ondot.tenant t WHERE t.name = $1::text AND t.state <> 'DELETED' AND t.tenant_no > 0 FOR UPDATE;

-- name: add_tenant :one
-- $1 name, $2 weight, $3 pools, $4 quotas, $5 targets, $6 retention_days (NULL: the installation's)
INSERT INTO ondot.tenant (name, weight, pools, quotas, targets, created_at, retention_days)
VALUES ($1::text, $2::double precision, $3::text[], $4::text::jsonb, $5::text::jsonb, ondot.clock(), $6::integer)
RETURNING tenant_no;

-- name: change_tenant :none
-- locks: the tenant row, held already        index: tenant_pkey
-- A suspension may park timers; they are brought back after a resume (sql/parking.sql).
-- $1 tenant_no, $2 state, $3 weight, $4 pools, $5 quotas, $6 targets, $7 retention_days
UPDATE ondot.tenant
SET state = $2::text, weight = $3::double precision, pools = $4::text[], quotas = $5::text::jsonb,
    targets = $6::text::jsonb, retention_days = $7::integer, version = version + 1, updated_at = ondot.clock(),
    deleted_at = CASE WHEN $2 = 'DELETED' THEN ondot.clock() END, has_parked = has_parked OR $2 <> 'ACTIVE'
WHERE tenant_no = $1::integer;

-- name: revoke_keys_of_tenant :none
-- locks: keys
-- $1 tenant_no
UPDATE ondot.key SET revoked_at = ondot.clock() WHERE tenant_no = $1::integer AND revoked_at IS NULL;
