-- Which server this is, and which one ondot knows.

-- name: read_lineage :one
-- index: lineage_pkey
-- `flushed`: how far its log survives a crash; `written`: where that ends, which is never before.
SELECT now.system_id, now.timeline, now.is_synchronous, now.flushed, now.written,
       l.system_id AS known_system_id, l.timeline AS known_timeline, l.is_synchronous AS known_is_synchronous,
       l.held_at, l.held_why
FROM (
    SELECT s.system_identifier::text AS system_id,
           ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer AS timeline,
           current_setting('synchronous_standby_names') <> ''
           AND current_setting('synchronous_commit') NOT IN ('off', 'local') AS is_synchronous,
           (pg_current_wal_flush_lsn() - '0/0')::bigint AS flushed,
           (pg_current_wal_insert_lsn() - '0/0')::bigint AS written
    FROM pg_control_system() AS s
) AS now
LEFT JOIN ondot.lineage l ON true;

-- name: learn_lineage :none
-- locks: the row        index: lineage_pkey
-- $1 system_id, $2 timeline, $3 is_synchronous, $4 whether it is held; if so it goes on
INSERT INTO ondot.lineage (system_id, timeline, is_synchronous, since) VALUES ($1, $2, $3, ondot.clock())
ON CONFLICT (is_one) DO UPDATE
SET system_id = excluded.system_id, timeline = excluded.timeline, is_synchronous = excluded.is_synchronous,
    since = excluded.since, held_at = NULL, held_why = NULL
WHERE (lineage.held_at IS NOT NULL) = $4::boolean;

-- name: hold_lineage :one
-- locks: the row        index: lineage_pkey
-- $1 why. Nothing comes back if somebody else held it first.
UPDATE ondot.lineage SET held_at = ondot.clock(), held_why = $1 WHERE held_at IS NULL RETURNING true AS held;
