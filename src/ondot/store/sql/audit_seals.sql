-- Seals over the audit log: which entries wait for one, and which entries each seal covers.

-- name: try_seal_lock :one
-- locks: one sealer of the installation at a time, until its transaction ends
-- $1 key
SELECT pg_try_advisory_xact_lock($1::bigint) AS is_ours;

-- name: list_open_entries :many
-- index: audit_open_pkey
-- The oldest entries without a seal that have been committed, of all tenants.
-- $1 limit
SELECT id, tenant_no FROM ondot.audit_open ORDER BY id LIMIT $1::integer;

-- name: read_entries :many
-- index: audit_pkey of the days of $2 to $3
-- The columns of format 1, as text. The tenant is that of the row, for the caller to compare.
-- $1 ids, $2 first id, $3 last id
SELECT id, tenant_no,
       ARRAY[tenant_no::text, actor, action, subject::text, detail::text, key_id::text, user_id::text, address, request_id,
             home_tenant_no::text, before::text, after::text] AS columns
FROM ondot.audit WHERE id = ANY ($1::uuid[]) AND id >= $2::uuid AND id <= $3::uuid;

-- name: read_heads :many
-- index: audit_seal_pkey, backwards
-- The newest seal of each of these tenants that has one.
-- $1 tenant_nos
SELECT t.tenant_no, s.seq, s.hash, s.key_id
FROM unnest($1::integer[]) AS t(tenant_no)
CROSS JOIN LATERAL (
    SELECT seq, hash, key_id FROM ondot.audit_seal WHERE tenant_no = t.tenant_no ORDER BY seq DESC LIMIT 1
) s;

-- name: list_sealed_tenants :many
-- index: audit_seal_pkey
-- Tenants that have seals, a few at a time: one step of the index for each.
-- $1 after which tenant, $2 limit
WITH RECURSIVE found AS (
    (SELECT tenant_no, 1 AS place FROM ondot.audit_seal WHERE tenant_no > $1::integer ORDER BY tenant_no LIMIT 1)
    UNION ALL
    SELECT s.tenant_no, f.place + 1
    FROM found f CROSS JOIN LATERAL (
        SELECT tenant_no FROM ondot.audit_seal WHERE tenant_no > f.tenant_no ORDER BY tenant_no LIMIT 1
    ) s
    WHERE f.place < $2::integer
)
SELECT tenant_no FROM found;

-- name: insert_seals :none
-- locks: none (new rows)
-- $1 seals, as JSON
INSERT INTO ondot.audit_seal (tenant_no, seq, at, from_id, to_id, count, format, ids, digests, prev, hash, key_id, mac)
SELECT s.tenant_no, s.seq, s.at, s.from_id, s.to_id, cardinality(s.ids), s.format, s.ids, decode(s.digests, 'hex'),
       decode(s.prev, 'hex'), decode(s.hash, 'hex'), s.key_id, decode(s.mac, 'hex')
FROM jsonb_to_recordset($1::jsonb)
     AS s(tenant_no integer, seq bigint, at timestamptz, from_id uuid, to_id uuid, format smallint, ids uuid[], digests text,
          prev text, hash text, key_id text, mac text);

-- name: close_entries :one
-- locks: open rows        index: audit_open_pkey
-- $1 ids
WITH closed AS (DELETE FROM ondot.audit_open WHERE id = ANY ($1::uuid[]) RETURNING 1)
SELECT count(*) AS count FROM closed;

-- name: list_seals :many
-- index: audit_seal_pkey
-- $1 tenant_no, $2 after which seal, $3 through which seal, $4 limit
SELECT tenant_no, seq, at, ids, digests, prev, hash, key_id, mac, format, count, from_id, to_id FROM ondot.audit_seal
WHERE tenant_no = $1::integer AND seq > $2::bigint AND seq <= $3::bigint ORDER BY seq LIMIT $4::integer;

-- name: find_seal_range :one
-- index: audit_seal_range
-- The seals with entries of a range of ids: the first, the last, and the newest of all.
-- $1 tenant_no, $2 from id, $3 before id
SELECT min(seq) AS first, max(seq) AS last,
       (SELECT max(seq) FROM ondot.audit_seal WHERE tenant_no = $1::integer) AS newest
FROM ondot.audit_seal WHERE tenant_no = $1 AND to_id >= $2::uuid AND from_id < $3::uuid;

-- name: find_seal_by_hash :one
-- index: audit_seal_pkey
-- $1 tenant_no, $2 hash
SELECT seq FROM ondot.audit_seal WHERE tenant_no = $1::integer AND hash = $2::bytea LIMIT 1;

-- name: find_removable_seal :one
-- index: audit_seal_pkey
-- The last of the oldest seals of a log whose entries all have smaller ids; never the newest of all.
-- $1 tenant_no, $2 no entry before this id is kept for sure, $3 look at this many
WITH old AS MATERIALIZED (
    SELECT seq, hash, count = 0 OR to_id < $2::uuid AS may_go FROM ondot.audit_seal
    WHERE tenant_no = $1::integer AND seq < (SELECT max(seq) FROM ondot.audit_seal WHERE tenant_no = $1)
    ORDER BY seq LIMIT $3::integer
)
SELECT seq, hash FROM old
WHERE may_go AND NOT EXISTS (SELECT FROM old o WHERE o.seq < old.seq AND NOT o.may_go)
ORDER BY seq DESC LIMIT 1;

-- name: cut_seals :one
-- locks: seals, the row of audit_cut        index: audit_seal_pkey, audit_cut_pkey
-- $1 tenant_no, $2 through seq, $3 its hash, $4 key_id, $5 mac
WITH gone AS (
    DELETE FROM ondot.audit_seal WHERE tenant_no = $1::integer AND seq <= $2::bigint RETURNING 1
), cut AS (
    INSERT INTO ondot.audit_cut (tenant_no, seq, hash, at, key_id, mac)
    VALUES ($1, $2, $3::bytea, ondot.clock(), $4::text, $5::bytea)
    ON CONFLICT (tenant_no) DO UPDATE
    SET seq = excluded.seq, hash = excluded.hash, at = excluded.at, key_id = excluded.key_id, mac = excluded.mac
)
SELECT count(*) AS count FROM gone;

-- name: find_cut :one
-- index: audit_cut_pkey
-- $1 tenant_no
SELECT tenant_no, seq, hash, key_id, mac FROM ondot.audit_cut WHERE tenant_no = $1::integer;

-- name: find_unsealed :many
-- index: audit_latest, audit_seal_range
-- Entries of a range of ids that are in no seal and do not wait for one. One statement, so that a seal that is written
-- meanwhile is seen with its entries or not at all.
-- $1 tenant_no, $2 from id, $3 before id, $4 limit
WITH sealed AS MATERIALIZED (
    SELECT unnest(ids) AS id FROM ondot.audit_seal
    WHERE tenant_no = $1::integer AND to_id >= $2::uuid AND from_id < $3::uuid
)
SELECT a.id FROM ondot.audit a
WHERE a.tenant_no = $1 AND a.id >= $2 AND a.id < $3
  AND NOT EXISTS (SELECT FROM sealed s WHERE s.id = a.id)
  AND NOT EXISTS (SELECT FROM ondot.audit_open o WHERE o.id = a.id AND o.tenant_no = $1)
ORDER BY a.id LIMIT $4::integer;

-- name: count_open_entries :one
-- $1 tenant_no
SELECT count(*) AS count FROM ondot.audit_open WHERE tenant_no = $1::integer;

-- name: read_sealing :one
-- index: audit_open_pkey
-- For the doctor: how many entries wait for a seal, at most 10,000, and since when the oldest waits.
SELECT (SELECT count(*) FROM (SELECT FROM ondot.audit_open LIMIT 10000) o) AS open,
       (SELECT id FROM ondot.audit_open ORDER BY id LIMIT 1) AS oldest, ondot.clock() AS now;
