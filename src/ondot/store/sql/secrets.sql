-- name: find_data_keys :many
-- index: data_key_pkey
-- $1 tenant_no
SELECT key_no, master, wrapped FROM ondot.data_key WHERE tenant_no = $1::integer ORDER BY key_no;

-- name: add_data_key :none
-- locks: none; of two at once the first one's key stays
-- $1 tenant_no, $2 key_no, $3 master, $4 wrapped
INSERT INTO ondot.data_key (tenant_no, key_no, master, wrapped)
VALUES ($1::integer, $2::integer, $3::text, $4::bytea) ON CONFLICT DO NOTHING;

-- name: count_masters :many
-- Of the installation: how many data keys are wrapped with each master key.
SELECT master, count(*) AS keys FROM ondot.data_key GROUP BY master ORDER BY master;

-- name: find_other_masters :many
-- Of the installation: data keys that are wrapped with another master key than $1, after (tenant, key), up to a limit.
-- $1 master, $2 after tenant_no, $3 after key_no, $4 limit
SELECT tenant_no, key_no, master, wrapped FROM ondot.data_key
WHERE master <> $1::text AND (tenant_no, key_no) > ($2::integer, $3::integer)
ORDER BY tenant_no, key_no LIMIT $4::integer;

-- name: rewrap_data_key :one
-- locks: one data key. Not if another process wrapped it again meanwhile.
-- $1 tenant_no, $2 key_no, $3 master before, $4 master, $5 wrapped
UPDATE ondot.data_key SET master = $4::text, wrapped = $5::bytea, wrapped_at = ondot.clock()
WHERE tenant_no = $1::integer AND key_no = $2::integer AND master = $3::text RETURNING key_no;

-- name: find_secrets :many
-- index: secret_pkey
-- $1 tenant_no, $2 names
SELECT name, version, key_no, sealed, mark, hosts, functions, pools, created_at, created_by, updated_at, updated_by
FROM ondot.secret WHERE tenant_no = $1::integer AND name = ANY($2::text[]);

-- name: lock_secret :one
-- locks: the row of one secret        index: secret_pkey
-- $1 tenant_no, $2 name
SELECT name, version, key_no, sealed, mark, hosts, functions, pools, created_at, created_by, updated_at, updated_by
FROM ondot.secret WHERE tenant_no = $1::integer AND name = $2::text FOR UPDATE;

-- name: list_secrets :many
-- index: secret_pkey
-- With up to 20 of the jobs that refer to each.
-- $1 tenant_no, $2 after name, $3 limit, $4 name (NULL: all)
SELECT s.name, s.version, s.key_no, s.sealed, s.mark, s.hosts, s.functions, s.pools, s.created_at, s.created_by,
       s.updated_at, s.updated_by,
       (SELECT json_agg(json_build_object('id', u.id, 'name', u.name))::text
        FROM (SELECT j.id, j.name FROM ondot.secret_use u JOIN ondot.job j ON j.id = u.job_id AND j.tenant_no = u.tenant_no
              WHERE u.tenant_no = s.tenant_no AND u.name = s.name AND j.state <> 'DELETED'
              ORDER BY j.id DESC LIMIT 20) u) AS used_by
FROM ondot.secret s
WHERE s.tenant_no = $1::integer AND s.name > $2::text AND ($4::text IS NULL OR s.name = $4)
ORDER BY s.name LIMIT $3::integer;

-- name: count_secrets :one
-- $1 tenant_no
SELECT count(*) FROM ondot.secret WHERE tenant_no = $1::integer;

-- name: list_secret_names :many
-- $1 tenant_no, $2 limit
SELECT name FROM ondot.secret WHERE tenant_no = $1::integer ORDER BY name LIMIT $2::integer;

-- name: add_secret :none
-- $1 tenant_no, $2 name, $3 version, $4 key_no, $5 sealed, $6 mark, $7 hosts, $8 functions, $9 pools, $10 by
INSERT INTO ondot.secret (tenant_no, name, version, key_no, sealed, mark, hosts, functions, pools, created_by, updated_by)
VALUES ($1::integer, $2::text, $3::integer, $4::integer, $5::bytea, $6::bytea, $7::text[], $8::text[], $9::text[],
        $10::text, $10::text);

-- name: change_secret :none
-- $1 tenant_no, $2 name, $3 version, $4 key_no, $5 sealed, $6 mark, $7 hosts, $8 functions, $9 pools, $10 by
UPDATE ondot.secret
SET version = $3::integer, key_no = $4::integer, sealed = $5::bytea, mark = $6::bytea, hosts = $7::text[],
    functions = $8::text[], pools = $9::text[], updated_at = ondot.clock(), updated_by = $10::text
WHERE tenant_no = $1::integer AND name = $2::text;

-- name: delete_secret :one
-- $1 tenant_no, $2 name
DELETE FROM ondot.secret WHERE tenant_no = $1::integer AND name = $2::text RETURNING version;

-- name: forget_uses :none
-- index: secret_use_job
-- $1 tenant_no, $2 job ids
DELETE FROM ondot.secret_use WHERE tenant_no = $1::integer AND job_id = ANY($2::uuid[]);

-- name: add_uses :none
-- $1 tenant_no, $2 job ids, $3 names
INSERT INTO ondot.secret_use (tenant_no, job_id, name)
SELECT $1::integer, u.job_id, u.name FROM unnest($2::uuid[], $3::text[]) AS u(job_id, name) ON CONFLICT DO NOTHING;

-- name: count_plain_credentials :one
-- Of the installation, for `ondot doctor`: of the newest jobs, those with a header of credentials that is not encrypted.
-- $1 how many jobs are looked at, $2 ends of names
SELECT count(*) FROM (
    SELECT v.spec FROM (SELECT id, version FROM ondot.job WHERE state <> 'DELETED' ORDER BY id DESC LIMIT $1::integer) j
    JOIN ondot.job_version v ON v.job_id = j.id AND v.version = j.version
) s
WHERE EXISTS (
    SELECT FROM (
        SELECT s.spec -> 'target' AS target
        UNION ALL
        SELECT step.value -> 'target' FROM json_each(
            CASE WHEN s.spec #>> '{target,kind}' = 'workflow' THEN s.spec #> '{target,steps}' ELSE '{}' END) step
    ) t
    CROSS JOIN LATERAL json_each(
        CASE WHEN json_typeof(t.target -> 'headers') = 'object' THEN t.target -> 'headers' ELSE '{}' END) h
    WHERE t.target ->> 'kind' = 'http' AND json_typeof(h.value) = 'string'
      AND ('-' || regexp_replace(lower(h.key), '[^0-9a-z]', '-', 'g')) LIKE ANY($2::text[]));
