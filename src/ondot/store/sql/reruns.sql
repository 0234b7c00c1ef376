-- Reruns: a new run that takes over the outcomes of steps of an ended one, by reference to their executions.

-- name: insert_rerun :one
-- transition: plan        locks: none (new rows), then gates        index: run_pkey
-- The execution of a rerun and its run, PENDING. Until a worker begins it, its end arrives at itself: its row has to end too.
-- $1 tenant_no, $2 id, $3 the run it runs again, $4 job_id, $5 job_version, $6 pool_no, $7 class, $8 payload (NULL: the job's
-- own), $9 its gates (NULL: none), $10 seconds in which it must start (NULL: any time)
WITH fire AS (
    SELECT $2::uuid AS execution_id, $4::uuid AS job_id, ondot.clock() AS fire_at, ondot.clock() AS ready_at,
           $1::integer AS tenant_no, $5::integer AS job_version, $6::integer AS pool_no, $7::smallint AS class,
           'run' AS origin, $9::text AS stages, false AS is_fire,
           ondot.clock() + make_interval(secs => $10::double precision) AS start_by, $8::text::json AS payload,
           NULL::uuid AS replay_of, $2 AS awaited_by, NULL::integer AS step_no, NULL::integer AS item_no
), known AS (
    INSERT INTO ondot.run (id, job_id, tenant_no, job_version, fire_at, class, own_payload, state, rerun_of, results_from)
    SELECT f.execution_id, f.job_id, f.tenant_no, f.job_version, f.fire_at, f.class, f.payload IS NOT NULL, 'PENDING', r.id,
           least(r.id, r.results_from)
    FROM fire f JOIN ondot.run r ON r.id = $3::uuid AND r.tenant_no = $1
),
{{plan}}
SELECT pool_no, ready_at FROM planned;

-- name: copy_steps :none
-- locks: none (new rows)        index: step_pkey
-- The steps of a rerun. Those that are kept have the outcome that they had; others wait. Payloads by hand stay.
-- $1 tenant_no, $2 run_id, $3 the run it runs again, $4 step_nos, $5 their numbers in that run (NULL: not in it), $6 whether
-- they are kept, $7 reason of those that are kept and had none
INSERT INTO ondot.step (run_id, step_no, tenant_no, state, reason, execution_id, ended_at, result, payload)
SELECT $2::uuid, n.step_no, $1::integer, CASE WHEN n.is_kept THEN s.state ELSE 'WAITING' END,
       CASE WHEN n.is_kept THEN coalesce(s.reason, $7::text) END, CASE WHEN n.is_kept THEN s.execution_id END,
       CASE WHEN n.is_kept THEN ondot.clock() END, CASE WHEN n.is_kept THEN s.result END, s.payload
FROM unnest($4::integer[], $5::integer[], $6::boolean[]) AS n(step_no, old_no, is_kept)
LEFT JOIN ondot.step s ON s.run_id = $3::uuid AND s.step_no = n.old_no AND s.tenant_no = $1;

-- name: copy_maps :none
-- locks: none (new rows)        index: mapped_pkey, map_portion_pkey, item_pkey
-- Maps that are kept, whole or to run their failed items again: their lists, and their items with their executions.
-- $1 tenant_no, $2 run_id, $3 the run it runs again, $4 step_nos, $5 their numbers in that run
WITH numbers AS MATERIALIZED (
    SELECT * FROM unnest($4::integer[], $5::integer[]) AS n(step_no, old_no)
), maps AS (
    INSERT INTO ondot.mapped (run_id, step_no, tenant_no, total, cursor, waiting, active, stuck, succeeded, failed,
                              concurrency, tolerate_count, tolerate_percent, is_open)
    SELECT $2::uuid, n.step_no, $1::integer, total, cursor, waiting, active, stuck, succeeded, failed, concurrency,
           tolerate_count, tolerate_percent, is_open
    FROM numbers n JOIN ondot.mapped m ON m.run_id = $3::uuid AND m.step_no = n.old_no AND m.tenant_no = $1
), portions AS (
    INSERT INTO ondot.map_portion (run_id, step_no, first_no, tenant_no, items)
    SELECT $2, n.step_no, first_no, $1, items
    FROM numbers n JOIN ondot.map_portion p ON p.run_id = $3 AND p.step_no = n.old_no AND p.tenant_no = $1
)
INSERT INTO ondot.item (run_id, step_no, item_no, execution_id, tenant_no, generation, state)
SELECT $2, n.step_no, item_no, execution_id, $1, generation, state
FROM numbers n JOIN ondot.item i ON i.run_id = $3 AND i.step_no = n.old_no AND i.tenant_no = $1;

-- name: find_oldest_items :many
-- index: item_pkey
-- Of each mapped step the oldest execution of an item whose result may be read.
-- $1 tenant_no, $2 run_id, $3 step_nos
SELECT DISTINCT ON (step_no) step_no, execution_id FROM ondot.item
WHERE run_id = $2::uuid AND step_no = ANY ($3::integer[]) AND tenant_no = $1::integer AND state = 'SUCCEEDED'
  AND execution_id IS NOT NULL
ORDER BY step_no, execution_id;

-- name: cancel_waiting_steps :one
-- locks: the run is locked already        index: step_pkey
-- Steps of a rerun that ended before it began. Returns how many.
-- $1 tenant_no, $2 run_id, $3 reason
WITH cancelled AS (
    UPDATE ondot.step SET state = 'CANCELLED', reason = $3::text, ended_at = ondot.clock()
    WHERE run_id = $2::uuid AND tenant_no = $1::integer AND state = 'WAITING'
    RETURNING 1
)
SELECT count(*)::integer AS count FROM cancelled;

-- name: set_run_version :none
-- locks: the run is locked already, then its execution        index: run_pkey, execution_pkey
-- Later generations of the run's steps are by another version.
-- $1 tenant_no, $2 id, $3 version
WITH run AS (
    UPDATE ondot.run SET job_version = $3::integer WHERE id = $2::uuid AND tenant_no = $1::integer
)
UPDATE ondot.execution SET job_version = $3 WHERE id = $2 AND tenant_no = $1;

-- name: add_steps :none
-- locks: none (new rows)
-- Steps that another version has more.
-- $1 tenant_no, $2 run_id, $3 step_nos
INSERT INTO ondot.step (run_id, step_no, tenant_no, state)
SELECT $2::uuid, n, $1::integer, 'WAITING' FROM unnest($3::integer[]) AS n;
