-- The index of names on closed days of one-time jobs. It belongs to a day's table alone, as <table>_name: the day that is being
-- written has none, so that submitting a job costs nothing more, and a day that was rewritten gets it again.

-- name: find_days_without :many
-- Closed days without the index, oldest first. A day is closed an hour after its end: hardly a row is written to it then.
SELECT c.relname AS name FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'ondot.job_once'::regclass AND c.relname <> 'job_once_ahead'
  AND to_regclass(format('ondot.%I', c.relname || '_name')) IS NULL
  AND (c.relname = 'job_once_past'
       OR ondot.day_name('job_once', ((ondot.clock() - interval '1 hour') AT TIME ZONE 'UTC')::date) > c.relname)
ORDER BY c.relname <> 'job_once_past', c.relname;

-- name: read_first_without :one
-- The first table without the index, and the bytes of all such tables: jobs before it can be found by name.
SELECT c.relname AS name, (sum(pg_relation_size(c.oid)) OVER ())::bigint AS bytes
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'ondot.job_once'::regclass AND to_regclass(format('ondot.%I', c.relname || '_name')) IS NULL
ORDER BY c.relname <> 'job_once_past', c.relname = 'job_once_ahead', c.relname LIMIT 1;

-- name: find_named :many
-- index: job_once_name of each day
-- One-time jobs of closed days by name, without regard to case. C: the same on every server.
-- $1 tenant_no, $2 from id, $3 before id, $4 names, $5 first names of ranges, $6 names after the ranges, $7 limit
SELECT o.id FROM ondot.job_once o
WHERE o.tenant_no = $1::integer AND o.id >= $2::uuid AND o.id < $3::uuid AND lower(o.name COLLATE "C") = ANY ($4::text[])
UNION ALL
SELECT o.id FROM unnest($5::text[], $6::text[]) AS r(first, after), LATERAL (
    SELECT id FROM ondot.job_once o
    WHERE o.tenant_no = $1 AND o.id >= $2 AND o.id < $3
      AND lower(o.name COLLATE "C") >= r.first AND lower(o.name COLLATE "C") < r.after
    LIMIT $7::integer
) o
LIMIT $7;

-- name: find_named_since :many
-- index: job_once_pkey
-- One-time jobs of days without the index, row by row.
-- $1 tenant_no, $2 from id, $3 patterns of LIKE, $4 limit
SELECT o.id FROM ondot.job_once o
WHERE o.tenant_no = $1::integer AND o.id >= $2::uuid AND o.name ILIKE ANY ($3::text[]) LIMIT $4::integer;
