-- The server as it is, and as ondot knows it.

-- name: read_lineage :one
-- index: lineage_pkey
-- `flushed`: how far its log survives a crash; `written`: where the log ends, which is never before.
SELECT now.system_id, now.timeline, now.table_id, now.is_synchronous, now.flushed, now.written,
       l.system_id AS known_system_id, l.timeline AS known_timeline, l.table_id AS known_table_id,
       l.is_synchronous AS known_is_synchronous, l.accepted_at, l.held_at, l.held_why
FROM (
    SELECT s.system_identifier::text AS system_id,
           ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer AS timeline,
           'ondot.lineage'::regclass::oid::bigint AS table_id,
           current_setting('synchronous_standby_names') <> ''
           AND current_setting('synchronous_commit') NOT IN ('off', 'local') AS is_synchronous,
           (pg_current_wal_flush_lsn() - '0/0')::bigint AS flushed,
           (pg_current_wal_insert_lsn() - '0/0')::bigint AS written
    FROM pg_control_system() AS s
) AS now
LEFT JOIN ondot.lineage l ON true;

-- name: learn_lineage :none
-- locks: the row        index: lineage_pkey
-- Not while it is held: then a person decides.
-- $1 system_id, $2 timeline, $3 table_id, $4 is_synchronous
INSERT INTO ondot.lineage (system_id, timeline, table_id, is_synchronous, since) VALUES ($1, $2, $3, $4, ondot.clock())
ON CONFLICT (is_one) DO UPDATE
SET system_id = excluded.system_id, timeline = excluded.timeline, table_id = excluded.table_id,
    is_synchronous = excluded.is_synchronous, since = excluded.since
WHERE lineage.held_at IS NULL;

-- name: accept_lineage :none
-- locks: the row        index: lineage_pkey
-- $1 system_id, $2 timeline, $3 table_id, $4 is_synchronous
UPDATE ondot.lineage
SET system_id = $1, timeline = $2, table_id = $3, is_synchronous = $4, since = ondot.clock(), accepted_at = ondot.clock(),
    held_at = NULL, held_why = NULL;

-- name: hold_lineage :one
-- locks: the row        index: lineage_pkey
-- $1 why. Returns no row if it was held already.
UPDATE ondot.lineage SET held_at = ondot.clock(), held_why = $1 WHERE held_at IS NULL RETURNING true AS held;
