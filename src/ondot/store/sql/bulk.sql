-- fragment: version_hindrances
-- Why no new execution can be made of `e`: by its version, or by the job's current one.
CASE WHEN NOT EXISTS (SELECT FROM ondot.job_version v
                      WHERE v.job_id = e.job_id AND v.version = e.job_version AND v.tenant_no = $1)
          AND NOT (e.job_version = 1 AND EXISTS (SELECT FROM ondot.find_once($1, e.job_id)))
     THEN 'version_gone' END,
CASE WHEN EXISTS (SELECT FROM ondot.job b WHERE b.id = e.job_id AND b.tenant_no = $1 AND b.state = 'DELETED')
     THEN 'job_deleted' END,
CASE WHEN NOT EXISTS (SELECT FROM ondot.job b WHERE b.id = e.job_id AND b.tenant_no = $1)
          AND NOT EXISTS (SELECT FROM ondot.find_once($1, e.job_id))
     THEN 'job_gone' END

-- name: insert_bulk :none
-- It is done at once if nothing matches. Only `next_at` says when it continues: see the migration.
-- $1 tenant_no, $2 id, $3 kind, $4 action, $5 filter, $6 q, $7 ids, $8 change, $9 payload, $10 current_version, $11 reason,
-- $12 actor, $13 per_s, $14 total, $15 total_is_least, $16 undo_of, $17 key_id, $18 user_id, $19 home_tenant_no, $20 address,
-- $21 request_id, $22 traceparent, $23 tracestate
INSERT INTO ondot.bulk (id, tenant_no, kind, action, filter, q, ids, change, payload, current_version, reason, actor, per_s,
                        total, total_is_least, undo_of, key_id, user_id, home_tenant_no, address, request_id,
                        traceparent, tracestate, state, next_at, created_at, ended_at)
VALUES ($2::uuid, $1::integer, $3::text, $4::text, $5::text::jsonb, $6::text, $7::uuid[], $8::text::jsonb, $9::text::json,
        $10::boolean, $11::text, $12::text, $13::double precision, $14::integer, $15::boolean, $16::uuid, $17::uuid,
        $18::uuid, $19::integer, $20::text, $21::text, $22::text, $23::text,
        CASE WHEN $14 = 0 THEN 'DONE' ELSE 'RUNNING' END, ondot.clock(), ondot.clock(),
        CASE WHEN $14 = 0 THEN ondot.clock() END);

-- name: list_bulks :many
-- index: bulk_pkey or bulk_latest, backwards
-- $1 tenant_no, $2 id (NULL: all), $3 kind (NULL: all), $4 before id (NULL: from the newest), $5 limit,
-- $6 state (NULL: any)
SELECT id, kind, action, filter, q, cardinality(ids) AS selected, change, current_version, payload IS NOT NULL AS own_payload,
       reason, actor, per_s, total, total_is_least, done, refused, unchanged, state, stopped_because, undo_of, undone_by,
       created_at, ended_at
FROM ondot.bulk
WHERE tenant_no = $1::integer AND ($2::uuid IS NULL OR id = $2) AND ($3::text IS NULL OR kind = $3)
  AND ($4::uuid IS NULL OR id < $4) AND ($6::text IS NULL OR state = $6)
ORDER BY id DESC LIMIT $5::integer;

-- name: take_bulk :one
-- locks: the row of bulk, SKIP LOCKED        index: bulk_next
-- An operation that is due, leased for a while: if this process dies, another continues after that. One of the release
-- before starts again at its first letter, because it went by another order; letters that it has resolved are not taken.
-- $1 lease_s, $2 tenants that have their turn already
UPDATE ondot.bulk b
SET next_at = ondot.clock() + make_interval(secs => $1::double precision), turn_at = 'infinity',
    through_id = CASE WHEN b.next_at IS NOT NULL THEN b.through_id END
FROM (
    SELECT id, coalesce(next_at, turn_at) AS due_at FROM ondot.bulk
    WHERE state = 'RUNNING' AND coalesce(next_at, turn_at) <= ondot.clock() AND tenant_no <> ALL ($2::integer[])
      AND tenant_no <> ALL (ARRAY(SELECT t.tenant_no FROM ondot.tenant t WHERE t.state <> 'ACTIVE'))
    ORDER BY coalesce(next_at, turn_at) LIMIT 1 FOR UPDATE SKIP LOCKED
) d
WHERE b.id = d.id
RETURNING b.id, b.tenant_no, b.kind, b.action, b.filter, b.q, b.change, b.payload, b.current_version, b.reason, b.actor,
          b.per_s, b.total, b.done, b.refused, b.through_id, b.later, b.undo_of, b.key_id, b.user_id, b.home_tenant_no,
          b.address, b.request_id, b.traceparent, b.tracestate, b.created_at, d.due_at, b.ids IS NOT NULL AS is_selection;

-- name: next_selected :many
-- index: bulk_pkey
-- $1 tenant_no, $2 bulk id, $3 after (NULL: from the first), $4 limit
SELECT s.id FROM ondot.bulk b, unnest(b.ids) AS s(id)
WHERE b.id = $2::uuid AND b.tenant_no = $1::integer AND ($3::uuid IS NULL OR s.id > $3)
ORDER BY s.id LIMIT $4::integer;

-- name: next_changed :many
-- index: bulk_item_pkey
-- The items that an operation has changed, for its undo.
-- $1 tenant_no, $2 the operation that is undone, $3 after (NULL: from the first), $4 limit
SELECT id FROM ondot.bulk_item
WHERE bulk_id = $2::uuid AND tenant_no = $1::integer AND is_done AND ($3::uuid IS NULL OR id > $3)
ORDER BY id LIMIT $4::integer;

-- name: count_changed :one
-- index: bulk_item_pkey
-- $1 tenant_no, $2 bulk id
SELECT count(*)::integer AS count FROM ondot.bulk_item WHERE bulk_id = $2::uuid AND tenant_no = $1::integer AND is_done;

-- name: claim_items :one
-- locks: the row of bulk        index: bulk_pkey
-- The fence of each item: its transaction starts with this, so that two processes never act on the same one, and a stop
-- waits for at most one. Items of a first round are claimed in the order of their ids (of a query: newest first), those that
-- were locked by others by name. Other locks are waited for briefly. No row: another process has claimed them, or the
-- operation was stopped.
-- $1 tenant_no, $2 bulk id, $3 ids in order, $4 whether they were locked before, $5 lock_timeout
UPDATE ondot.bulk
SET through_id = CASE WHEN $4::boolean THEN through_id ELSE $3[cardinality($3)] END,
    later = CASE WHEN $4 THEN ARRAY(SELECT l.id FROM unnest(later) AS l(id) WHERE l.id <> ALL ($3)) ELSE later END
WHERE id = $2::uuid AND tenant_no = $1::integer AND state = 'RUNNING'
  AND CASE WHEN $4 THEN later @> $3::uuid[] ELSE through_id IS NULL OR CASE WHEN q IS NULL THEN through_id < $3[1] ELSE through_id > $3[1] END END
RETURNING set_config('lock_timeout', $5::text, true) IS NOT NULL AS is_ours;

-- name: record_items :none
-- locks: the row of bulk, held already        index: bulk_pkey, bulk_item_pkey
-- $1 tenant_no, $2 bulk id, $3 done, $4 refused, $5 unchanged, $6 ids that others have locked, $7 ids to keep, $8 whether
-- each was done, $9 details, $10 what was before, $11 how many refusals are kept, $12 how many changes are kept, $13 the
-- executions that were made
WITH kept AS (
    INSERT INTO ondot.bulk_item (bulk_id, id, tenant_no, is_done, detail, before, made)
    SELECT b.id, k.id, b.tenant_no, k.is_done, k.detail, k.before::jsonb, k.made
    FROM ondot.bulk b,
         unnest($7::uuid[], $8::boolean[], $9::text[], $10::text[], $13::uuid[]) AS k(id, is_done, detail, before, made)
    WHERE b.id = $2::uuid AND b.tenant_no = $1::integer
      AND CASE WHEN k.is_done THEN b.done < $12::integer ELSE b.refused < $11::integer END
    ON CONFLICT (bulk_id, id) DO NOTHING
)
UPDATE ondot.bulk
SET done = done + $3::integer, refused = refused + $4::integer, unchanged = unchanged + $5::integer,
    later = later || $6::uuid[], failures = 0
WHERE id = $2 AND tenant_no = $1;

-- name: end_turn :one
-- locks: the row of bulk        index: bulk_pkey
-- A late turn is made up for within a second, so that the rate holds at any rhythm of the passes. At the end it is done,
-- unless items are left that others had locked.
-- $1 tenant_no, $2 id, $3 when this turn was due, $4 seconds to the next, $5 whether there are no more items
UPDATE ondot.bulk
SET next_at = greatest($3::timestamptz, ondot.clock() - interval '1 second') + make_interval(secs => $4::double precision),
    state = CASE WHEN $5::boolean AND later = '{}' THEN 'DONE' ELSE state END,
    ended_at = CASE WHEN $5 AND later = '{}' THEN ondot.clock() END
WHERE id = $2::uuid AND tenant_no = $1::integer AND state = 'RUNNING'
RETURNING state, done, refused;

-- name: fail_turn :one
-- locks: the row of bulk        index: bulk_pkey
-- A turn ended with an error; after too many in a row the operation stops, and says why.
-- $1 tenant_no, $2 id, $3 seconds to the next try, $4 how many in a row stop it, $5 why
UPDATE ondot.bulk
SET failures = failures + 1, next_at = ondot.clock() + make_interval(secs => $3::double precision),
    state = CASE WHEN failures + 1 >= $4::integer THEN 'CANCELLED' ELSE state END,
    stopped_because = CASE WHEN failures + 1 >= $4 THEN $5::text END,
    ended_at = CASE WHEN failures + 1 >= $4 THEN ondot.clock() END
WHERE id = $2::uuid AND tenant_no = $1::integer AND state = 'RUNNING'
RETURNING state;

-- name: stop_bulk :one
-- locks: the row of bulk        index: bulk_pkey
-- Waits for an item that is under way.
-- $1 tenant_no, $2 id, $3 why (NULL: a person asked for it)
UPDATE ondot.bulk SET state = 'CANCELLED', ended_at = ondot.clock(), stopped_because = $3::text
WHERE id = $2::uuid AND tenant_no = $1::integer AND state = 'RUNNING'
RETURNING id;

-- name: mark_undone :one
-- locks: the row of bulk        index: bulk_pkey
-- $1 tenant_no, $2 id, $3 the operation that undoes it
UPDATE ondot.bulk SET undone_by = $3::uuid
WHERE id = $2::uuid AND tenant_no = $1::integer AND undone_by IS NULL AND state <> 'RUNNING'
RETURNING id;

-- name: list_bulk_items :many
-- index: bulk_item_pkey
-- $1 tenant_no, $2 bulk id, $3 whether done (NULL: both), $4 after (NULL: from the first), $5 limit
SELECT id, is_done, detail, made FROM ondot.bulk_item
WHERE bulk_id = $2::uuid AND tenant_no = $1::integer AND ($3::boolean IS NULL OR is_done = $3)
  AND ($4::uuid IS NULL OR id > $4)
ORDER BY id LIMIT $5::integer;

-- name: find_before :many
-- index: bulk_item_pkey
-- $1 tenant_no, $2 bulk id, $3 ids
SELECT id, before FROM ondot.bulk_item
WHERE bulk_id = $2::uuid AND tenant_no = $1::integer AND id = ANY ($3::uuid[]) AND is_done;

-- name: see_jobs :many
-- index: job_pkey, job_once_pkey, job_version_pkey, timer_pkey, execution_fire, execution_other
-- The fire of a one-time job is planned (timer), is owed, has an execution, or is over. `is_live` as ondot.is_live, of which
-- each call costs more than these lookups. The jobs are read as a set: a lookup for each compared its id with all of $2.
-- $1 tenant_no, $2 ids
WITH item AS MATERIALIZED (
    SELECT b.id, b.state, b.pool_no, b.name,
           CASE WHEN v.spec #>> '{schedule,when,kind}' = 'once'
                THEN (v.spec #>> '{schedule,when,at}')::timestamptz END AS once_at
    FROM ondot.job b JOIN ondot.job_version v ON v.job_id = b.id AND v.version = b.version
    WHERE b.id = ANY ($2::uuid[]) AND b.tenant_no = $1::integer
    UNION ALL
    SELECT o.id, 'ACTIVE', o.pool_no, o.name, o.fire_at FROM ondot.job_once o
    WHERE o.id = ANY ($2) AND o.tenant_no = $1 AND NOT EXISTS (SELECT FROM ondot.job b WHERE b.id = o.id)
)
SELECT i.id, CASE WHEN i.state = 'ACTIVE' AND NOT (l.is_planned OR l.is_owed OR l.is_live) THEN 'ENDED' ELSE i.state END AS state,
       p.name AS pool, i.name,
       CASE WHEN i.once_at IS NULL OR i.state <> 'ACTIVE' THEN '{}' ELSE array_remove(ARRAY[
           CASE WHEN e.state = 'RUNNING' OR e.state IS NULL AND NOT (l.is_planned OR l.is_owed) THEN 'begun' END,
           CASE WHEN e.attempt_no > 0 THEN 'has_attempts' END], NULL) END AS hindrances
FROM item i
CROSS JOIN LATERAL (
    SELECT EXISTS (SELECT FROM ondot.timer t WHERE t.job_id = i.id AND t.next_fire_at < 'infinity') AS is_planned,
           EXISTS (SELECT FROM ondot.owed o WHERE o.job_id = i.id) AS is_owed,
           EXISTS (SELECT FROM ondot.execution x WHERE x.job_id = i.id AND x.origin IN ('fire', 'backfill'))
           OR EXISTS (SELECT FROM ondot.execution x WHERE x.job_id = i.id AND x.origin NOT IN ('fire', 'backfill'))
           OR EXISTS (SELECT FROM ondot.subscription s WHERE s.id = i.id) AS is_live
) l
LEFT JOIN ondot.execution e ON e.job_id = i.id AND e.tenant_no = $1 AND e.origin IN ('fire', 'backfill')
                               AND e.fire_at = i.once_at
LEFT JOIN ondot.pool p ON p.pool_no = i.pool_no;

-- name: see_executions :many
-- index: execution_pkey, history_pkey, dead_letter_pkey, execution_other, job_version_pkey, job_pkey
-- $1 tenant_no, $2 ids
SELECT e.id, e.state, p.name AS pool,
       CASE WHEN NOT e.is_over THEN '{}' ELSE array_remove(ARRAY[
           CASE WHEN e.origin = 'step' THEN 'is_step' END,
           CASE WHEN EXISTS (SELECT FROM ondot.dead_letter d
                             WHERE d.execution_id = e.id AND d.tenant_no = $1 AND d.resolution = 'replayed')
                THEN 'replayed' END,
           CASE WHEN EXISTS (SELECT FROM ondot.execution r
                             WHERE r.job_id = e.job_id AND r.tenant_no = $1 AND r.origin NOT IN ('fire', 'backfill')
                               AND r.replay_of = e.id)
                THEN 'being_replayed' END,
           {{version_hindrances}}], NULL) END AS hindrances
FROM (
    SELECT id, state, pool_no, job_id, job_version, origin, false AS is_over
    FROM ondot.execution WHERE id = ANY ($2::uuid[]) AND tenant_no = $1::integer
    UNION ALL
    SELECT id, state, pool_no, job_id, job_version, origin, true
    FROM ondot.history WHERE id = ANY ($2) AND tenant_no = $1
) e
LEFT JOIN ondot.pool p ON p.pool_no = e.pool_no;

-- name: see_dead_letters :many
-- index: dead_letter_pkey, run_pkey, job_version_pkey, job_pkey
-- A step is retried in its run, by the run's version.
-- $1 tenant_no, $2 ids
SELECT e.execution_id AS id, coalesce(e.resolution, 'open') AS state,
       array_remove(CASE WHEN e.run_id IS NULL THEN ARRAY[{{version_hindrances}}] ELSE ARRAY[
           CASE WHEN NOT EXISTS (SELECT FROM ondot.run r
                                 WHERE r.id = e.run_id AND r.tenant_no = $1 AND r.ended_at IS NULL AND r.state <> 'ENDING')
                THEN 'run_over' END] END, NULL) AS hindrances
FROM ondot.dead_letter e
WHERE e.execution_id = ANY ($2::uuid[]) AND e.tenant_no = $1::integer;

-- name: see_runs :many
-- index: run_pkey, step_pkey, run_parent, execution_pkey
-- An execution without a run is a run that has not started.
-- $1 tenant_no, $2 ids
SELECT r.id, r.state,
       CASE WHEN EXISTS (SELECT FROM ondot.step s
                         WHERE s.run_id = r.id AND s.tenant_no = $1 AND s.state IN ('FAILED', 'CANCELLED'))
                 OR EXISTS (SELECT FROM ondot.run c
                            WHERE c.parent_run_id = r.id AND c.tenant_no = $1 AND c.state = 'BLOCKED')
            THEN '{}'::text[] ELSE ARRAY['nothing_failed'] END AS hindrances
FROM ondot.run r WHERE r.id = ANY ($2::uuid[]) AND r.tenant_no = $1::integer
UNION ALL
SELECT e.id, e.state, ARRAY['not_started']
FROM ondot.execution e
WHERE e.id = ANY ($2) AND e.tenant_no = $1
  AND NOT EXISTS (SELECT FROM ondot.run r WHERE r.id = e.id AND r.tenant_no = $1);
