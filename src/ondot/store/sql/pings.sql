-- fragment: ping_columns
p.id, p.tenant_no, p.name, p.schedule::text AS schedule, p.period_s, p.grace_s, p.state, p.due_at, p.started_at,
p.pinged_at, p.took_s, p.created_at, p.created_by, p.hash

-- name: add_ping :one
-- $1 id, $2 tenant_no, $3 name, $4 hash, $5 schedule, $6 period_s, $7 grace_s, $8 created_by
INSERT INTO ondot.ping AS p (id, tenant_no, name, hash, schedule, period_s, grace_s, created_by)
VALUES ($1::uuid, $2::integer, $3::text, $4::bytea, $5::text::jsonb, $6::double precision, $7::double precision, $8::text)
ON CONFLICT (tenant_no, name) DO NOTHING
RETURNING {{ping_columns}};

-- name: count_pings :one
-- index: ping_tenant_no_name_key
-- $1 tenant_no
SELECT count(*) AS count FROM ondot.ping WHERE tenant_no = $1::integer;

-- name: list_pings :many
-- index: ping_tenant_no_name_key
-- $1 tenant_no, $2 after which name, $3 limit
SELECT {{ping_columns}} FROM ondot.ping p
WHERE p.tenant_no = $1::integer AND p.name > $2::text ORDER BY p.name LIMIT $3::integer;

-- name: get_ping :one
-- index: ping_tenant_no_name_key
-- $1 tenant_no, $2 name
SELECT {{ping_columns}} FROM ondot.ping p WHERE p.tenant_no = $1::integer AND p.name = $2::text;

-- name: find_pings :many
-- index: ping_hash
-- $1 hashes of tokens
SELECT {{ping_columns}} FROM ondot.ping p WHERE p.hash = ANY ($1::bytea[]);

-- name: lock_ping :one
-- locks: the ping        index: ping_pkey
-- $1 tenant_no, $2 id
SELECT {{ping_columns}}, ondot.clock() AS now FROM ondot.ping p
WHERE p.id = $2::uuid AND p.tenant_no = $1::integer FOR UPDATE;

-- name: change_ping :none
-- locks: the ping, held already        index: ping_pkey
-- $1 tenant_no, $2 id, $3 state, $4 due_at, $5 started_at, $6 took_s
UPDATE ondot.ping
SET state = $3::text, due_at = $4::timestamptz, started_at = $5::timestamptz, took_s = $6::double precision,
    pinged_at = ondot.clock()
WHERE id = $2::uuid AND tenant_no = $1::integer;

-- name: add_ping_call :none
-- index: ping_call_ping
-- And forgets all but the newest of the ping.
-- $1 id, $2 tenant_no, $3 ping_id, $4 kind, $5 exit_code, $6 took_s, $7 body, $8 address, $9 how many are kept
WITH old AS (
    DELETE FROM ondot.ping_call WHERE tenant_no = $2::integer AND ping_id = $3::uuid AND id <= (
        SELECT id FROM ondot.ping_call WHERE ping_id = $3 AND tenant_no = $2 ORDER BY id DESC OFFSET $9::integer - 1 LIMIT 1
    )
)
INSERT INTO ondot.ping_call (id, tenant_no, ping_id, kind, exit_code, took_s, body, address)
VALUES ($1::uuid, $2, $3, $4::text, $5::integer, $6::double precision, $7::text, $8::text);

-- name: list_ping_calls :many
-- index: ping_call_ping
-- Newest first.
-- $1 tenant_no, $2 ping_id, $3 limit
SELECT id, kind, exit_code, took_s, body, address FROM ondot.ping_call
WHERE ping_id = $2::uuid AND tenant_no = $1::integer ORDER BY id DESC LIMIT $3::integer;

-- name: list_latest_calls :many
-- index: ping_call_ping
-- The latest calls of each of these pings, newest first.
-- $1 tenant_no, $2 ping_ids, $3 how many of each
SELECT c.ping_id, c.id, c.kind, c.exit_code, c.took_s, c.body, c.address
FROM unnest($2::uuid[]) AS p(id) CROSS JOIN LATERAL (
    SELECT * FROM ondot.ping_call WHERE ping_id = p.id AND tenant_no = $1::integer ORDER BY id DESC LIMIT $3::integer
) c;

-- name: rotate_ping :one
-- locks: the ping        index: ping_tenant_no_name_key
-- $1 tenant_no, $2 name, $3 hash
UPDATE ondot.ping p SET hash = $3::bytea WHERE p.tenant_no = $1::integer AND p.name = $2::text RETURNING {{ping_columns}};

-- name: delete_ping :one
-- locks: the ping, then its calls        index: ping_tenant_no_name_key, ping_call_ping
-- $1 tenant_no, $2 name
WITH gone AS (
    DELETE FROM ondot.ping p WHERE p.tenant_no = $1::integer AND p.name = $2::text RETURNING {{ping_columns}}
), calls AS (
    DELETE FROM ondot.ping_call WHERE tenant_no = $1 AND ping_id = ANY (ARRAY(SELECT id FROM gone))
)
SELECT * FROM gone;

-- name: mark_late_pings :many
-- locks: pings, SKIP LOCKED        index: ping_due
-- $1 limit
UPDATE ondot.ping p SET state = 'LATE', due_at = NULL
FROM (
    SELECT id, due_at FROM ondot.ping WHERE due_at IS NOT NULL AND due_at <= ondot.clock()
    ORDER BY due_at LIMIT $1::integer FOR UPDATE SKIP LOCKED
) l
WHERE p.id = l.id
RETURNING p.tenant_no, p.id, p.name, p.pinged_at, p.started_at, l.due_at;
