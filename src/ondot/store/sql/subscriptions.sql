-- Which jobs events start. A sender shares the tenant's advisory lock from its first statement to its commit; a change of a
-- subscription holds it alone. So no execution is committed after a delete that was acknowledged, and none is missed after
-- a create.

-- name: share_subscriptions :one
-- locks: the tenant's subscriptions, shared
-- $1 tenant_no
SELECT pg_advisory_xact_lock_shared({{event_lock}}, $1::integer) AS locked;

-- name: lock_subscriptions :one
-- locks: the tenant's subscriptions, alone: waits for senders that are under way, and later ones wait
-- $1 tenant_no
SELECT pg_advisory_xact_lock({{event_lock}}, $1::integer) AS locked;

-- name: raise_generation :one
-- locks: the row of the generation (subscriptions are locked)        index: subscription_generation_pkey
-- $1 tenant_no
INSERT INTO ondot.subscription_generation AS g (tenant_no, generation) VALUES ($1::integer, 1)
ON CONFLICT (tenant_no) DO UPDATE SET generation = g.generation + 1
RETURNING generation;

-- name: read_generation :one
-- index: subscription_generation_pkey
-- $1 tenant_no
SELECT coalesce((SELECT generation FROM ondot.subscription_generation WHERE tenant_no = $1::integer), 0) AS generation;

-- name: count_unindexed :many
-- index: subscription_type
-- $1 tenant_no, $2 types, $3 without these
SELECT type, count(*) AS count FROM ondot.subscription
WHERE tenant_no = $1::integer AND type = ANY ($2::text[]) AND NOT is_indexed AND id <> ALL ($3::uuid[])
GROUP BY type;

-- name: put_subscriptions :none
-- locks: subscription rows (all are locked)        index: subscription_pkey
-- $1 tenant_no, $2 ids, $3 versions, $4 types, $5 are indexed, $6 generation, $7 whether they are paused
INSERT INTO ondot.subscription AS s (id, generation, tenant_no, version, paused_at, is_indexed, type)
SELECT id, $6::bigint, $1::integer, version, CASE WHEN $7::boolean THEN ondot.clock() END, is_indexed, type
FROM unnest($2::uuid[], $3::integer[], $4::text[], $5::boolean[]) AS n(id, version, type, is_indexed)
ON CONFLICT (id) DO UPDATE
SET generation = excluded.generation, version = excluded.version, is_indexed = excluded.is_indexed, type = excluded.type,
    paused_at = CASE WHEN $7 THEN coalesce(s.paused_at, excluded.paused_at) END;

-- name: remove_subscription :none
-- locks: the subscription row (all are locked)        index: subscription_pkey
-- $1 tenant_no, $2 id
DELETE FROM ondot.subscription WHERE id = $2::uuid AND tenant_no = $1::integer;

-- name: list_generations :many
-- index: subscription_tenant
-- All of a tenant, each with the generation in which it changed last: a process loads those that are new to it.
-- $1 tenant_no
SELECT id, generation FROM ondot.subscription WHERE tenant_no = $1::integer;

-- name: find_subscriptions :many
-- index: subscription_pkey
-- $1 tenant_no, $2 ids
SELECT id, version, paused_at FROM ondot.subscription WHERE tenant_no = $1::integer AND id = ANY ($2::uuid[]);
