-- name: list_changed_tenants :many
-- index: tenant_changed
-- $1 the oldest transaction that was open at the last reading
SELECT s.oldest_open::text AS oldest_open, t.tenant_no, t.name, t.state, t.weight, t.pools, t.quotas::text AS quotas, t.version,
       t.targets::text AS targets
FROM (SELECT pg_snapshot_xmin(pg_current_snapshot()) AS oldest_open) s
LEFT JOIN ondot.tenant t ON t.changed_xid >= $1::text::xid8 AND t.tenant_no > 0;
