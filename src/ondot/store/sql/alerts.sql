-- fragment: alert_columns
a.id, a.tenant_no, a.name, a."when", a.scope, a.for_s, a.repeat_s, a.notify, a.muted_until, a.version, a.created_at,
a.created_by, a.updated_at

-- name: raise_alert_generation :none
-- locks: the row of the state, before alerts, incidents and causes        index: alert_state_pkey
-- The first statement of each change: the evaluation writes nothing meanwhile, and reads everything again afterwards.
UPDATE ondot.alert_state SET generation = generation + 1;

-- name: read_alert_state :one
-- index: alert_state_pkey
SELECT generation, evaluator, ondot.clock() AS now FROM ondot.alert_state;

-- name: take_over_alerts :one
-- locks: the row of the state        index: alert_state_pkey
-- $1 the id of the evaluator
UPDATE ondot.alert_state SET evaluator = $1::uuid RETURNING generation;

-- name: hold_alerts :one
-- locks: the row of the state, before incidents and causes        index: alert_state_pkey
-- False: another scheduler evaluates, or something changed since this one read it; nothing may be written.
-- $1 the id of the evaluator, $2 generation
SELECT evaluator = $1::uuid AND generation = $2::bigint AS is_held FROM ondot.alert_state FOR UPDATE;

-- name: load_alerts :many
-- index: alert_pkey
-- Of all tenants but deleted ones.
SELECT {{alert_columns}}, t.name AS tenant, t.state = 'ACTIVE' AS is_active
FROM ondot.alert a JOIN ondot.tenant t ON t.tenant_no = a.tenant_no AND t.state <> 'DELETED'
ORDER BY a.id;

-- name: add_alert :one
-- $1 tenant_no, $2 id, $3 name, $4 when, $5 scope, $6 for_s, $7 repeat_s, $8 notify, $9 muted_until, $10 created_by
INSERT INTO ondot.alert AS a (id, tenant_no, name, "when", scope, for_s, repeat_s, notify, muted_until, created_by, created_at,
                              updated_at)
VALUES ($2::uuid, $1::integer, $3::text, $4::jsonb, $5::jsonb, $6::double precision, $7::double precision, $8::text[],
        $9::timestamptz, $10::text, ondot.clock(), ondot.clock())
ON CONFLICT (tenant_no, name) DO NOTHING
RETURNING {{alert_columns}};

-- name: change_alert :one
-- locks: the alert's row        index: alert_pkey
-- $1 tenant_no, $2 id, $3 name, $4 when, $5 scope, $6 for_s, $7 repeat_s, $8 notify, $9 muted_until
UPDATE ondot.alert a
SET name = $3::text, "when" = $4::jsonb, scope = $5::jsonb, for_s = $6::double precision, repeat_s = $7::double precision,
    notify = $8::text[], muted_until = $9::timestamptz, version = version + 1, updated_at = ondot.clock()
WHERE a.id = $2::uuid AND a.tenant_no = $1::integer
RETURNING {{alert_columns}};

-- name: delete_alert :one
-- locks: the alert's row        index: alert_pkey
-- $1 tenant_no, $2 id
DELETE FROM ondot.alert a WHERE a.id = $2::uuid AND a.tenant_no = $1::integer RETURNING {{alert_columns}};

-- name: count_alerts :one
-- index: alert_tenant_no_name_key
-- $1 tenant_no
SELECT count(*) FROM ondot.alert WHERE tenant_no = $1::integer;

-- name: list_alerts :many
-- index: alert_tenant_no_name_key
-- By name.
-- $1 tenant_no, $2 after, $3 limit
SELECT {{alert_columns}} FROM ondot.alert a
WHERE a.tenant_no = $1::integer AND a.name > $2::text ORDER BY a.name LIMIT $3::integer;

-- name: find_alert :one
-- index: alert_pkey or alert_tenant_no_name_key
-- $1 tenant_no, $2 id (NULL: by its name), $3 name
SELECT {{alert_columns}} FROM ondot.alert a
WHERE a.tenant_no = $1::integer AND ($2::uuid IS NULL OR a.id = $2) AND ($3::text IS NULL OR a.name = $3);

-- name: lock_alert :one
-- locks: the alert's row        index: alert_pkey
-- $1 tenant_no, $2 id
SELECT {{alert_columns}} FROM ondot.alert a WHERE a.id = $2::uuid AND a.tenant_no = $1::integer FOR UPDATE;
