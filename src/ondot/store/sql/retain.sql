-- Removes ended rows that are older than their retention, in small batches, by age, without waiting for other transactions.
-- $1 days is the retention of the installation; a tenant may have its own.

-- fragment: kept
make_interval(days => coalesce((SELECT n.retention_days FROM ondot.tenant n WHERE n.tenant_no = r.tenant_no), $1::integer))

-- fragment: shortest
make_interval(days => least($1::integer, (SELECT min(retention_days) FROM ondot.tenant)))

-- name: lock_ended_jobs :many
-- locks: job rows, SKIP LOCKED        index: timer_over, job_pkey
-- Jobs without a next fire whose last one is old. Those that are paused, were changed since, or are being changed are returned
-- without `is_locked`: the caller continues after them.
-- $1 days, $2 after which last fire, $3 and job_id, $4 limit
SELECT t.job_id, t.fired_through AS at, j.id IS NOT NULL AS is_locked
FROM (
    SELECT job_id, fired_through FROM ondot.timer r
    WHERE next_fire_at = 'infinity' AND fired_through < ondot.clock() - {{shortest}}
      AND fired_through < ondot.clock() - {{kept}}
      AND (fired_through, job_id) > ($2::timestamptz, $3::uuid)
    ORDER BY fired_through, job_id LIMIT $4::integer
) t
LEFT JOIN LATERAL (
    SELECT id FROM ondot.job r
    WHERE id = t.job_id AND state = 'ACTIVE' AND updated_at < ondot.clock() - {{kept}}
    LIMIT 1 FOR UPDATE SKIP LOCKED
) j ON true
ORDER BY t.fired_through, t.job_id;

-- name: lock_deleted_jobs :many
-- locks: job rows, SKIP LOCKED        index: job_deleted
-- $1 days, $2 after which delete, $3 and job_id, $4 limit
SELECT id AS job_id, updated_at AS at, true AS is_locked FROM ondot.job r
WHERE state = 'DELETED' AND updated_at < ondot.clock() - {{shortest}} AND updated_at < ondot.clock() - {{kept}}
  AND (updated_at, id) > ($2::timestamptz, $3::uuid)
ORDER BY updated_at, id LIMIT $4::integer FOR UPDATE SKIP LOCKED;

-- name: remove_jobs :one
-- locks: job rows, held already, then timers        index: job_pkey, timer_pkey, job_version_pkey, dead_letter_job
-- Separate from the locking, so that it sees a change that committed before the lock. A running execution keeps its job, and so
-- does an open dead letter: a replay needs the spec. A one-time job that was changed is removed with its original row, which
-- would otherwise be in force again.
-- $1 ids
WITH over AS MATERIALIZED (
    SELECT n.id FROM unnest($1::uuid[]) AS n(id)
    WHERE NOT ondot.is_live(n.id)
      AND NOT EXISTS (SELECT FROM ondot.dead_letter d WHERE d.job_id = n.id AND d.resolved_at IS NULL)
), timers AS (
    DELETE FROM ondot.timer WHERE job_id = ANY (ARRAY(SELECT id FROM over))
), versions AS (
    DELETE FROM ondot.job_version WHERE job_id = ANY (ARRAY(SELECT id FROM over))
), streaks AS (
    DELETE FROM ondot.streak WHERE job_id = ANY (ARRAY(SELECT id FROM over))
), made AS (
    DELETE FROM ondot.job_once WHERE id = ANY ($1) AND id = ANY (ARRAY(SELECT id FROM over))
), gone AS (
    DELETE FROM ondot.job WHERE id = ANY (ARRAY(SELECT id FROM over)) RETURNING 1
)
SELECT count(*) AS count FROM gone;

-- name: lock_superseded :many
-- locks: job rows, SKIP LOCKED        index: job_version_superseded, job_pkey
-- The jobs of old versions: a replay may use an old version, and shares its job's row.
-- $1 days, $2 limit
SELECT j.id FROM (
    SELECT DISTINCT job_id FROM (
        SELECT job_id FROM ondot.job_version r
        WHERE superseded_at IS NOT NULL AND superseded_at < ondot.clock() - {{shortest}}
          AND superseded_at < ondot.clock() - {{kept}}
        ORDER BY superseded_at LIMIT $2::integer
    ) v
) v CROSS JOIN LATERAL (SELECT id FROM ondot.job WHERE id = v.job_id LIMIT 1 FOR UPDATE SKIP LOCKED) j;

-- name: forget_versions :one
-- locks: versions (their jobs are locked)        index: job_version_superseded, execution_fire, execution_other
-- Removes old versions. One that is still in use stays, and is checked again as late as if it had been superseded now. Returns
-- how many were looked at. Separate from the locking, so that it sees everything committed before it.
-- $1 days, $2 limit, $3 job_ids
WITH old AS MATERIALIZED (
    SELECT ctid AS row_at, job_id, version FROM ondot.job_version r
    WHERE superseded_at IS NOT NULL AND superseded_at < ondot.clock() - {{kept}}
      AND job_id = ANY ($3::uuid[])
    ORDER BY superseded_at LIMIT $2::integer FOR UPDATE
), judged AS MATERIALIZED (
    SELECT o.row_at,
           EXISTS (SELECT FROM ondot.timer t WHERE t.job_id = o.job_id AND t.job_version = o.version)
        OR EXISTS (SELECT FROM ondot.owed w WHERE w.job_id = o.job_id AND w.job_version = o.version)
        OR EXISTS (SELECT FROM ondot.execution e WHERE e.job_id = o.job_id AND e.origin IN ('fire', 'backfill')
                   AND e.job_version = o.version)
        OR EXISTS (SELECT FROM ondot.execution e WHERE e.job_id = o.job_id AND e.origin NOT IN ('fire', 'backfill')
                   AND e.job_version = o.version)
        OR EXISTS (SELECT FROM ondot.dead_letter d WHERE d.job_id = o.job_id AND d.resolved_at IS NULL
                   AND d.job_version = o.version) AS is_named
    FROM old o
), left_alone AS (
    UPDATE ondot.job_version SET superseded_at = ondot.clock()
    WHERE ctid = ANY (ARRAY(SELECT row_at FROM judged WHERE is_named))
), gone AS (
    DELETE FROM ondot.job_version WHERE ctid = ANY (ARRAY(SELECT row_at FROM judged WHERE NOT is_named))
)
SELECT count(*) AS count FROM judged;

-- name: forget_letters :one
-- locks: dead letters, SKIP LOCKED        index: dead_letter_resolved
-- Letters that were replayed or discarded long ago; open ones stay.
-- $1 days, $2 limit
WITH gone AS (
    DELETE FROM ondot.dead_letter WHERE ctid = ANY (ARRAY(
        SELECT d.row_at FROM ondot.tenant t CROSS JOIN LATERAL (
            SELECT ctid AS row_at FROM ondot.dead_letter
            WHERE tenant_no = t.tenant_no AND resolved_at IS NOT NULL
              AND resolved_at < ondot.clock() - make_interval(days => coalesce(t.retention_days, $1::integer))
            ORDER BY resolved_at LIMIT $2::integer FOR UPDATE SKIP LOCKED
        ) d LIMIT $2
    ))
    RETURNING 1
)
SELECT count(*) AS count FROM gone;

-- name: forget_skipped :one
-- locks: skipped rows, SKIP LOCKED        index: skipped_recent
-- $1 days, $2 limit
WITH gone AS (
    DELETE FROM ondot.skipped WHERE ctid = ANY (ARRAY(
        SELECT s.row_at FROM ondot.tenant t CROSS JOIN LATERAL (
            SELECT ctid AS row_at FROM ondot.skipped
            WHERE tenant_no = t.tenant_no AND at < ondot.clock() - make_interval(days => coalesce(t.retention_days, $1::integer))
            ORDER BY at LIMIT $2::integer FOR UPDATE SKIP LOCKED
        ) s LIMIT $2
    ))
    RETURNING 1
)
SELECT count(*) AS count FROM gone;

-- name: forget_backfills :one
-- locks: backfills, SKIP LOCKED        index: backfill_ended
-- $1 days, $2 limit
WITH gone AS (
    DELETE FROM ondot.backfill WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM ondot.backfill r
        WHERE ended_at IS NOT NULL AND ended_at < ondot.clock() - {{shortest}} AND ended_at < ondot.clock() - {{kept}}
        ORDER BY ended_at LIMIT $2::integer FOR UPDATE SKIP LOCKED
    ))
    RETURNING 1
)
SELECT count(*) AS count FROM gone;

-- name: forget_bulks :one
-- locks: bulk rows, SKIP LOCKED        index: bulk_latest, bulk_item_pkey
-- Operations that started long ago and have ended. Each has up to 110,000 results: a bounded number of them goes at a time,
-- and the operation when they are gone. Returns how many rows were removed.
-- $1 days, $2 limit
WITH old AS MATERIALIZED (
    SELECT b.row_at, b.id FROM ondot.tenant t CROSS JOIN LATERAL (
        SELECT ctid AS row_at, id FROM ondot.bulk
        WHERE tenant_no = t.tenant_no
          AND id < ondot.first_id_at(ondot.clock() - make_interval(days => coalesce(t.retention_days, $1::integer)))
          AND state <> 'RUNNING'
        ORDER BY id LIMIT $2::integer FOR UPDATE SKIP LOCKED
    ) b LIMIT $2
), results AS (
    DELETE FROM ondot.bulk_item WHERE ctid = ANY (ARRAY(
        SELECT i.ctid FROM old o JOIN ondot.bulk_item i ON i.bulk_id = o.id LIMIT $2
    ))
    RETURNING 1
), gone AS (
    DELETE FROM ondot.bulk WHERE ctid = ANY (ARRAY(
        SELECT o.row_at FROM old o WHERE NOT EXISTS (SELECT FROM ondot.bulk_item i WHERE i.bulk_id = o.id)
    ))
    RETURNING 1
)
SELECT (SELECT count(*) FROM results) + (SELECT count(*) FROM gone) AS count;

-- name: forget_runs :one
-- locks: runs, SKIP LOCKED, then their steps        index: run_ended, item_pkey, past_step_pkey, step_pkey, arrival_pkey
-- Runs that ended long ago, with all that they had. A run has up to 10,000 steps, and maps of up to 100,000 items: of these
-- and of earlier generations a bounded number goes at a time, and the run with the rest when they are gone. Returns how
-- many rows were removed.
-- $1 days, $2 limit
WITH old AS MATERIALIZED (
    SELECT r.row_at, r.id FROM ondot.tenant t CROSS JOIN LATERAL (
        SELECT ctid AS row_at, id FROM ondot.run
        WHERE tenant_no = t.tenant_no
          AND ended_at < ondot.clock() - make_interval(days => coalesce(t.retention_days, $1::integer))
        ORDER BY ended_at LIMIT least($2::integer, 50) FOR UPDATE SKIP LOCKED
    ) r LIMIT least($2, 50)
), items AS (
    DELETE FROM ondot.item WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM ondot.item WHERE run_id = ANY (ARRAY(SELECT id FROM old)) LIMIT 5 * $2
    )) RETURNING 1
), past AS (
    DELETE FROM ondot.past_step WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM ondot.past_step WHERE run_id = ANY (ARRAY(SELECT id FROM old)) LIMIT 5 * $2
    )) RETURNING 1
), steps AS (
    DELETE FROM ondot.step WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM ondot.step WHERE run_id = ANY (ARRAY(SELECT id FROM old)) LIMIT 5 * $2
    )) RETURNING 1
), empty AS MATERIALIZED (
    SELECT row_at, id FROM old o
    WHERE NOT EXISTS (SELECT FROM ondot.item WHERE run_id = o.id)
      AND NOT EXISTS (SELECT FROM ondot.past_step WHERE run_id = o.id)
      AND NOT EXISTS (SELECT FROM ondot.step WHERE run_id = o.id)
), arrivals AS (
    DELETE FROM ondot.arrival WHERE run_id = ANY (ARRAY(SELECT id FROM empty))
), waits AS (
    DELETE FROM ondot.step_wait WHERE run_id = ANY (ARRAY(SELECT id FROM empty))
), maps AS (
    DELETE FROM ondot.mapped WHERE run_id = ANY (ARRAY(SELECT id FROM empty))
), portions AS (
    DELETE FROM ondot.map_portion WHERE run_id = ANY (ARRAY(SELECT id FROM empty))
), repairs AS (
    DELETE FROM ondot.repair WHERE run_id = ANY (ARRAY(SELECT id FROM empty))
), gone AS (
    DELETE FROM ondot.run WHERE ctid = ANY (ARRAY(SELECT row_at FROM empty)) RETURNING 1
)
SELECT (SELECT count(*) FROM items) + (SELECT count(*) FROM past) + (SELECT count(*) FROM steps)
       + (SELECT count(*) FROM gone) AS count;

-- name: find_old_traces :many
-- index: trace_pkey, execution_pkey
-- Traces of executions that were made long ago and do not run any more.
-- $1 days, $2 after execution_id, $3 limit
SELECT execution_id FROM ondot.trace r
WHERE execution_id > $2::uuid AND execution_id < ondot.first_id_at(ondot.clock() - {{shortest}})
  AND execution_id < ondot.first_id_at(ondot.clock() - {{kept}})
  AND (SELECT true FROM ondot.execution e WHERE e.id = r.execution_id) IS NULL
ORDER BY execution_id LIMIT $3::integer;

-- name: remove_traces :none
-- locks: traces        index: trace_pkey
-- $1 execution ids
DELETE FROM ondot.trace WHERE execution_id = ANY ($1::uuid[]);
