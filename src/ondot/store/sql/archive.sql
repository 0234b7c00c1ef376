-- name: list_archived_columns :many
-- The columns of a table that is cut by day, with their types, and their places in its primary key.
-- $1 parent
SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type,
       array_position(i.indkey::smallint[], a.attnum) AS key_place
FROM pg_attribute a
JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
WHERE a.attrelid = format('ondot.%I', $1::text)::regclass AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum;

-- name: list_deleted_tenants :many
SELECT tenant_no FROM ondot.tenant WHERE state = 'DELETED';

-- name: insert_archive_files :none
-- locks: none (new rows)
-- $1 tenant_nos, $2 keys, $3 rows, $4 bytes, $5 digests, $6 parent, $7 name, $8 day (NULL: the past), $9 days
INSERT INTO ondot.archive_file (tenant_no, key, rows, bytes, digest, parent, name, day, days, at)
SELECT n.tenant_no, n.key, n.rows, n.bytes, n.digest, $6::text, $7::text, $8::date, $9::integer, ondot.clock()
FROM unnest($1::integer[], $2::text[], $3::bigint[], $4::bigint[], $5::text[]) AS n(tenant_no, key, rows, bytes, digest)
ON CONFLICT (tenant_no, key) DO UPDATE SET rows = excluded.rows, bytes = excluded.bytes, digest = excluded.digest,
    at = excluded.at;

-- name: find_last_archived :one
-- index: archive_file_partition
-- When a partition was last archived for this retention.
-- $1 parent, $2 name, $3 days
SELECT max(at) AS at FROM ondot.archive_file WHERE parent = $1::text AND name = $2::text AND days = $3::integer;

-- name: list_archive_files :many
-- index: archive_file_pkey
-- $1 parent (NULL: all), $2 tenant_no (NULL: all), $3 from day, $4 to day (NULL: any; files of the past are always listed),
-- $5 and $6 after this tenant_no and key, $7 limit
SELECT tenant_no, key, parent, name, day, days, at, rows, bytes, digest FROM ondot.archive_file
WHERE (tenant_no, key) > ($5::integer, $6::text)
  AND ($1::text IS NULL OR parent = $1) AND ($2::integer IS NULL OR tenant_no = $2)
  AND (day IS NULL OR (day >= coalesce($3::date, day) AND day <= coalesce($4::date, day)))
ORDER BY tenant_no, key LIMIT $7::integer;

-- name: delete_archive_files :none
-- locks: these rows        index: archive_file_pkey
-- $1 tenant_nos, $2 keys
DELETE FROM ondot.archive_file f USING unnest($1::integer[], $2::text[]) AS n(tenant_no, key)
WHERE f.tenant_no = n.tenant_no AND f.key = n.key;
