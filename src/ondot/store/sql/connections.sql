-- fragment: connection_columns
c.name, c.spec::text AS spec, c.version, c.created_at, c.created_by, c.updated_at, c.updated_by, c.tested_at, c.test_error

-- name: find_connections :many
-- index: connection_pkey
-- $1 tenant_no, $2 names
SELECT {{connection_columns}} FROM ondot.connection c WHERE c.tenant_no = $1::integer AND c.name = ANY ($2::text[]);

-- name: list_connections :many
-- index: connection_pkey
-- $1 tenant_no, $2 after which name, $3 limit
SELECT {{connection_columns}} FROM ondot.connection c
WHERE c.tenant_no = $1::integer AND c.name > $2::text
ORDER BY c.name LIMIT $3::integer;

-- name: count_connections :one
-- index: connection_pkey
-- $1 tenant_no
SELECT count(*) AS count FROM ondot.connection WHERE tenant_no = $1::integer;

-- name: lock_connection :one
-- locks: the connection        index: connection_pkey
-- $1 tenant_no, $2 name
SELECT {{connection_columns}} FROM ondot.connection c WHERE c.tenant_no = $1::integer AND c.name = $2::text FOR UPDATE;

-- name: write_connection :one
-- locks: the connection        index: connection_pkey
-- Another address or other credentials are not tested yet.
-- $1 tenant_no, $2 name, $3 spec, $4 by
INSERT INTO ondot.connection AS c (tenant_no, name, spec, created_by, updated_by)
VALUES ($1::integer, $2::text, $3::text::jsonb, $4::text, $4)
ON CONFLICT (tenant_no, name) DO UPDATE
SET spec = EXCLUDED.spec, version = c.version + 1, updated_at = ondot.clock(), updated_by = EXCLUDED.updated_by,
    tested_at = NULL, test_error = NULL
RETURNING {{connection_columns}};

-- name: delete_connection :none
-- index: connection_pkey
-- $1 tenant_no, $2 name
DELETE FROM ondot.connection WHERE tenant_no = $1::integer AND name = $2::text;

-- name: record_test :one
-- locks: the connection        index: connection_pkey
-- Nothing if it was changed while it was tested.
-- $1 tenant_no, $2 name, $3 version, $4 error (NULL: it works)
UPDATE ondot.connection c SET tested_at = ondot.clock(), test_error = $4::text
WHERE c.tenant_no = $1::integer AND c.name = $2::text AND c.version = $3::integer
RETURNING {{connection_columns}};

-- name: list_all_connections :many
-- Of the installation, for `ondot doctor`.
-- $1 limit
SELECT c.tenant_no, {{connection_columns}} FROM ondot.connection c ORDER BY c.tenant_no, c.name LIMIT $1::integer;

-- name: find_jobs_of_connection :many
-- index: connection_use_pkey, job_pkey
-- $1 tenant_no, $2 name, $3 limit
SELECT j.id, j.name FROM ondot.connection_use u JOIN ondot.job j ON j.id = u.job_id AND j.tenant_no = u.tenant_no
WHERE u.tenant_no = $1::integer AND u.name = $2::text AND j.state <> 'DELETED'
ORDER BY j.id DESC LIMIT $3::integer;

-- name: forget_connection_uses :none
-- index: connection_use_job
-- $1 tenant_no, $2 job ids
DELETE FROM ondot.connection_use WHERE tenant_no = $1::integer AND job_id = ANY ($2::uuid[]);

-- name: add_connection_uses :none
-- $1 tenant_no, $2 job ids, $3 names
INSERT INTO ondot.connection_use (tenant_no, job_id, name)
SELECT $1::integer, u.job_id, u.name FROM unnest($2::uuid[], $3::text[]) AS u(job_id, name) ON CONFLICT DO NOTHING;
