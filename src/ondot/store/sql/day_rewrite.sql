-- Days past their retention: which of their rows stay and why, and the steps of a rewriting (flow/history/rewrite.py).
--
-- The blocks keep_… select the ids that stay in one part of a day, each with one reason. `s` is the day's own table: the caller
-- replaces its name. Tenants have a cutoff of their own, or the installation's: what ended before it goes.

-- fragment: cut
-- $3 tenant_nos with a cutoff of their own, $4 their cutoffs
SELECT * FROM unnest($3::integer[], $4::timestamptz[]) AS c(tenant_no, at)

-- name: keep_history :many
-- locks: none        index: history_pkey, dead_letter_pkey, run_pkey, step_pkey, item_pkey, past_step_pkey, dependency_pkey, owed_job, timer_pkey
-- Executions that ended since the cutoff; open dead letters; runs of workflows that are kept, and their steps; jobs for which
-- others still wait; fires of ranges that are being caught up or backfilled, which must not run again; and fires that were
-- cancelled ahead and are not passed yet. A fire that comes after the cutoff is kept too: it may have ended before it was due.
-- $1 from id, $2 before id, $5 the cutoff, $6 a later id: the steps of a run may be a little older than the run
WITH cut AS MATERIALIZED (
    {{cut}}
), old AS MATERIALIZED (
    SELECT s.id, s.job_id, s.fire_at, s.ended_at, s.origin,
           greatest(s.ended_at, s.fire_at) >= coalesce(c.at, $5::timestamptz) AS is_recent, c.at < $5 AS is_longer
    FROM ondot.history s LEFT JOIN cut c ON c.tenant_no = s.tenant_no
    WHERE s.id >= $1::uuid AND s.id < $2::uuid
), reason(id, reason, place) AS (
    SELECT id, CASE WHEN is_longer THEN 'tenant' ELSE 'recent' END, 1 FROM old WHERE is_recent
    UNION ALL
    SELECT d.execution_id, 'dead_letter', 2 FROM ondot.dead_letter d
    WHERE d.resolved_at IS NULL AND d.execution_id >= $1 AND d.execution_id < $2
    UNION ALL
    SELECT r.id, 'run', 3 FROM ondot.run r WHERE r.id >= $1 AND r.id < $2
    UNION ALL
    SELECT t.execution_id, 'run', 3 FROM ondot.step t
    WHERE t.run_id < $6::uuid AND t.execution_id >= $1 AND t.execution_id < $2
    UNION ALL
    SELECT i.execution_id, 'run', 3 FROM ondot.item i
    WHERE i.run_id < $6 AND i.execution_id >= $1 AND i.execution_id < $2
    UNION ALL
    SELECT p.execution_id, 'run', 3 FROM ondot.past_step p
    WHERE p.run_id < $6 AND p.execution_id >= $1 AND p.execution_id < $2
    UNION ALL
    SELECT o.id, 'depended_on', 4 FROM old o JOIN ondot.dependency d ON d.parent_id = o.job_id AND d.state <> 'SUCCEEDED'
    UNION ALL
    SELECT o.id, 'owed', 5 FROM old o JOIN ondot.owed w ON w.job_id = o.job_id AND o.fire_at BETWEEN w.from_at AND w.to_at
    WHERE o.origin IN ('fire', 'backfill')
    UNION ALL
    SELECT o.id, 'owed', 5 FROM old o
    CROSS JOIN LATERAL (
        SELECT FROM ondot.timer t
        WHERE t.job_id = o.job_id AND t.guard_until >= o.fire_at AND t.next_fire_at <= o.fire_at LIMIT 1
    ) t
    WHERE o.origin = 'fire' AND o.ended_at <= o.fire_at AND NOT o.is_recent
)
SELECT DISTINCT ON (id) id, reason FROM reason ORDER BY id, place;

-- name: keep_output :many
-- locks: none        index: history_pkey, execution_pkey
-- Attempts, log lines and objects stay with their execution, live or ended: history is rewritten before them.
-- $1 from id, $2 before id
SELECT e.id, 'live' AS reason FROM ondot.execution e WHERE e.id >= $1::uuid AND e.id < $2::uuid
UNION ALL
SELECT h.id, 'execution' FROM ondot.history h WHERE h.id >= $1 AND h.id < $2;

-- name: keep_job_once :many
-- locks: none        index: timer_pkey, execution_fire, execution_other, history_job, dead_letter_job, dependency_pkey, owed_job, job_pkey
-- One-time jobs that have not fired or have not ended, that a kept execution or an open dead letter names, for which others
-- wait, that hold a key, or that were changed. Executions of days after $6 are found by hops over the index: a recurring job of
-- the same hour may have millions.
-- $1 from id, $2 before id, $5 the cutoff, $6 a later id: most jobs of this part have run before it
WITH RECURSIVE cut AS MATERIALIZED (
    {{cut}}
), later(job_id) AS (
    (SELECT h.job_id FROM ondot.history h
     WHERE h.job_id >= $1::uuid AND h.job_id < $2::uuid AND h.id >= $6::uuid ORDER BY h.job_id LIMIT 1)
    UNION ALL
    SELECT (SELECT h.job_id FROM ondot.history h
            WHERE h.job_id > l.job_id AND h.job_id < $2 AND h.id >= $6 ORDER BY h.job_id LIMIT 1)
    FROM later l WHERE l.job_id IS NOT NULL
), reason(id, reason, place) AS (
    SELECT t.job_id, 'live', 1 FROM ondot.timer t WHERE t.job_id >= $1 AND t.job_id < $2 AND t.next_fire_at < 'infinity'
    UNION ALL
    SELECT e.job_id, 'live', 1 FROM ondot.execution e
    WHERE e.job_id >= $1 AND e.job_id < $2 AND e.origin IN ('fire', 'backfill')
    UNION ALL
    SELECT e.job_id, 'live', 1 FROM ondot.execution e
    WHERE e.job_id >= $1 AND e.job_id < $2 AND e.origin NOT IN ('fire', 'backfill')
    UNION ALL
    SELECT w.job_id, 'live', 1 FROM ondot.owed w WHERE w.job_id >= $1 AND w.job_id < $2
    UNION ALL
    SELECT d.job_id, 'dead_letter', 2 FROM ondot.dead_letter d
    WHERE d.resolved_at IS NULL AND d.job_id >= $1 AND d.job_id < $2
    UNION ALL
    SELECT d.parent_id, 'depended_on', 4 FROM ondot.dependency d
    WHERE d.parent_id >= $1 AND d.parent_id < $2 AND d.state <> 'SUCCEEDED'
    UNION ALL
    SELECT h.job_id, 'execution', 5 FROM ondot.history h
    WHERE h.job_id >= $1 AND h.job_id < $2 AND h.id >= $1 AND h.id < $6
    UNION ALL
    SELECT l.job_id, 'execution', 5 FROM later l WHERE l.job_id IS NOT NULL
    UNION ALL
    SELECT c.job_id, 'key', 6 FROM ondot.claim c WHERE c.job_id >= $1 AND c.job_id < $2
    UNION ALL
    SELECT j.id, 'changed', 7 FROM ondot.job j WHERE j.id >= $1 AND j.id < $2
    UNION ALL
    SELECT s.id, CASE WHEN c.at < $5 THEN 'tenant' ELSE 'recent' END, 3
    FROM ondot.job_once s LEFT JOIN cut c ON c.tenant_no = s.tenant_no
    WHERE s.id >= $1 AND s.id < $2 AND s.fire_at >= coalesce(c.at, $5::timestamptz)
)
SELECT DISTINCT ON (id) id, reason FROM reason ORDER BY id, place;

-- name: keep_event_match :many
-- locks: none        index: event_match_pkey, execution_pkey, history_pkey
-- What an event started or is held for: as long as the job that it is held for is paused, and its execution is kept.
-- $1 from id, $2 before id, $5 the cutoff, $6 a later id: most of the executions were made before it
WITH cut AS MATERIALIZED (
    {{cut}}
), reason(id, reason, place) AS (
    SELECT s.event_id, CASE WHEN c.at < $5 THEN 'tenant' ELSE 'recent' END, 1
    FROM ondot.event_match s LEFT JOIN cut c ON c.tenant_no = s.tenant_no
    WHERE s.event_id >= $1::uuid AND s.event_id < $2::uuid
      AND s.event_id >= ondot.first_id_at(coalesce(c.at, $5::timestamptz))
    UNION ALL
    SELECT s.event_id, 'held', 2 FROM ondot.event_match s
    WHERE s.event_id >= $1 AND s.event_id < $2 AND s.outcome = 'held'
    UNION ALL
    SELECT s.event_id, 'live', 3 FROM ondot.event_match s JOIN ondot.execution e ON e.id = s.execution_id
    WHERE s.event_id >= $1 AND s.event_id < $2
    UNION ALL
    SELECT s.event_id, 'execution', 4
    FROM ondot.event_match s JOIN ondot.history h ON h.id = s.execution_id AND h.id >= $1 AND h.id < $6::uuid
    WHERE s.event_id >= $1 AND s.event_id < $2
)
SELECT DISTINCT ON (id) id, reason FROM reason ORDER BY id, place;

-- name: keep_event :many
-- locks: none        index: event_pkey, event_match_pkey
-- Events stay with what they did: matches are rewritten before them.
-- $1 from id, $2 before id, $5 the cutoff
WITH cut AS MATERIALIZED (
    {{cut}}
), reason(id, reason, place) AS (
    SELECT s.id, CASE WHEN c.at < $5 THEN 'tenant' ELSE 'recent' END, 1
    FROM ondot.event s LEFT JOIN cut c ON c.tenant_no = s.tenant_no
    WHERE s.id >= $1::uuid AND s.id < $2::uuid AND s.id >= ondot.first_id_at(coalesce(c.at, $5::timestamptz))
    UNION ALL
    SELECT m.event_id, 'matched', 2 FROM ondot.event_match m WHERE m.event_id >= $1 AND m.event_id < $2
)
SELECT DISTINCT ON (id) id, reason FROM reason ORDER BY id, place;

-- name: keep_audit :many
-- locks: none        index: audit_pkey, audit_open_pkey
-- $1 from id, $2 before id, $5 the cutoff
WITH cut AS MATERIALIZED (
    {{cut}}
), reason(id, reason, place) AS (
    SELECT s.id, CASE WHEN c.at < $5 THEN 'tenant' ELSE 'recent' END, 1
    FROM ondot.audit s LEFT JOIN cut c ON c.tenant_no = s.tenant_no
    WHERE s.id >= $1::uuid AND s.id < $2::uuid AND s.id >= ondot.first_id_at(coalesce(c.at, $5::timestamptz))
    UNION ALL
    SELECT o.id, 'unsealed', 2 FROM ondot.audit_open o WHERE o.id >= $1 AND o.id < $2
)
SELECT DISTINCT ON (id) id, reason FROM reason ORDER BY id, place;

-- name: list_partitions :many
-- Each partition of each table that is cut by day, oldest first, with its last rewriting. Not the catch-all for ids ahead.
-- $1 parent (NULL: all)
SELECT d.parent, c.relname AS name, d.first_day, (ondot.clock() AT TIME ZONE 'UTC')::date AS today,
       pg_total_relation_size(c.oid) AS bytes, pg_relation_size(c.oid) = 0 AS is_empty, c.reltuples::bigint AS about_rows,
       r.days, r.at, r.took_s, r.removed, r.kept, r.bytes_before, r.bytes_after, r.reasons::text AS reasons
FROM ondot.day_table d
JOIN pg_inherits i ON i.inhparent = format('ondot.%I', d.parent)::regclass
JOIN pg_class c ON c.oid = i.inhrelid
LEFT JOIN ondot.day_rewritten r ON r.parent = d.parent AND r.name = c.relname
WHERE ($1::text IS NULL OR d.parent = $1) AND c.relname <> d.parent || '_ahead'
ORDER BY d.parent, c.relname <> d.parent || '_past', c.relname;

-- name: list_retentions :many
-- Tenants with a retention of their own, deleted ones too while rows of them are left.
SELECT tenant_no, name, retention_days FROM ondot.tenant WHERE retention_days IS NOT NULL AND tenant_no > 0 ORDER BY tenant_no;

-- name: start_copy :one
-- locks: the day_table row, then the sources against writers for a moment
-- $1 parent, $2 sources, $3 days, $4 cutoff, $5 tenant_nos, $6 cutoffs
SELECT ondot.start_copy($1::text, $2::text[], $3::integer, $4::timestamptz, $5::integer[], $6::timestamptz[]) AS is_started;

-- name: list_copies :many
SELECT parent, sources, copy, from_id, before_id, days, cutoff, tenant_nos, cutoffs, place, through_id, is_copied, started_at
FROM ondot.day_copy ORDER BY parent;

-- name: lock_copy :one
-- locks: the row of day_copy, SKIP LOCKED        index: day_copy_pkey
-- $1 parent
SELECT parent, sources, copy, from_id, before_id, days, cutoff, tenant_nos, cutoffs, place, through_id, is_copied, started_at
FROM ondot.day_copy WHERE parent = $1::text FOR UPDATE SKIP LOCKED;

-- name: list_columns :many
-- $1 parent
SELECT quote_ident(attname) AS name FROM pg_attribute
WHERE attrelid = format('ondot.%I', $1::text)::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum;

-- name: find_next_source :one
-- $1 sources, $2 from which place
SELECT n.place FROM unnest($1::text[]) WITH ORDINALITY AS n(name, place)
WHERE n.place >= $2::integer AND pg_relation_size(format('ondot.%I', n.name)::regclass) > 0
ORDER BY n.place LIMIT 1;

-- name: count_touched :one
-- $1 parent
SELECT count(*) AS count FROM ondot.day_touched WHERE parent = $1::text;

-- name: advance_copy :none
-- locks: the row of day_copy, held already        index: day_copy_pkey
-- $1 parent, $2 place, $3 through_id (NULL: from the source's first), $4 whether all is copied, $5 rows found, $6 reasons
UPDATE ondot.day_copy SET place = $2::integer, through_id = $3::uuid, is_copied = $4::boolean, found = found + $5::bigint,
    reasons = (SELECT coalesce(jsonb_object_agg(n.reason, n.count), '{}') FROM (
        SELECT reason, sum(count) AS count FROM (
            SELECT key AS reason, value::bigint AS count FROM jsonb_each_text(reasons)
            UNION ALL
            SELECT key, value::bigint FROM jsonb_each_text($6::text::jsonb)
        ) b GROUP BY reason
    ) n)
WHERE parent = $1::text;

-- name: swap_copy :one
-- locks: the rows of day_copy and day_table, then the whole parent for a moment
-- $1 parent
SELECT ondot.swap_copy($1::text) AS removed;

-- name: drop_copy :one
-- locks: the row of day_copy, and its sources for a moment
-- $1 parent
SELECT ondot.drop_copy($1::text) AS is_dropped;

-- name: note_rewritten :one
-- A partition that has nothing to remove: it counts as rewritten.
-- $1 parent, $2 name, $3 days
INSERT INTO ondot.day_rewritten (parent, name, days, at, took_s, removed, kept, bytes_before, bytes_after, reasons)
VALUES ($1::text, $2::text, $3::integer, ondot.clock(), 0, 0, 0, 0, 0, '{}')
ON CONFLICT (parent, name) DO UPDATE SET days = excluded.days, at = excluded.at
RETURNING days, at, took_s, removed, kept, bytes_before, bytes_after, reasons::text AS reasons;

-- name: find_gone :many
-- Days of `object` that were replaced: what they name is deleted from storage next.
SELECT relname AS name FROM pg_class
WHERE relnamespace = 'ondot'::regnamespace AND relkind = 'r' AND relname ~ '^object_(past|[0-9]{8})_gone_[0-9]+$'
ORDER BY relname;

-- name: read_sizes :one
-- index: kept_from_pkey
-- Of the whole database; and since when the history of a tenant is complete.
-- $1 tenant_no
SELECT ondot.clock() AS now, pg_database_size(current_database()) AS bytes,
       (SELECT at FROM ondot.kept_from WHERE tenant_no = $1::integer) AS kept_from;

-- name: read_data_directory :one
-- The directory of a server on this machine, as far as we may know it: inet_server_addr is NULL for a local socket.
SELECT CASE WHEN inet_server_addr() IS NULL AND pg_has_role('pg_read_all_settings', 'USAGE')
            THEN current_setting('data_directory', true) END AS directory;

-- name: list_kept_from :many
SELECT tenant_no, at FROM ondot.kept_from ORDER BY tenant_no;

-- name: read_kept_from :one
-- index: kept_from_pkey
-- Since when the history of a tenant is complete; NULL: nothing of it was removed.
-- $1 tenant_no
SELECT (SELECT at FROM ondot.kept_from WHERE tenant_no = $1::integer) AS at,
       (SELECT retention_days FROM ondot.tenant WHERE tenant_no = $1) AS days;

-- name: hold_kept_from :one
-- locks: the row of history in day_table, shared: no rewriting starts until the transaction ends
-- Separate from read_kept_from, so that it sees what was committed while it waited.
SELECT parent FROM ondot.day_table WHERE parent = 'history' FOR SHARE;

-- name: allow_long :one
-- For this transaction: a part of a large day may take longer than statements do, and reads whole tables.
-- $1 milliseconds
SELECT set_config('statement_timeout', $1::integer::text, true) AS statement_timeout, set_config('enable_seqscan', 'on', true);
