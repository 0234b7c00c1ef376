-- name: find_workflow :one
-- index: job_key
-- $1 tenant_no, $2 key
SELECT id, version, state FROM ondot.job
WHERE tenant_no = $1::integer AND key = $2::text AND key IS NOT NULL AND state <> 'DELETED';

-- name: insert_children :many
-- transition: plan        locks: none (new rows), then gates
-- Runs that a step of another run makes, and their rows, PENDING until a worker leases them.
-- $1 tenant_no, $2 run_id of the parent, $3 step_no, $4 job_id, $5 job_version, $6 pool_no, $7 class, $8 gates (NULL: none),
-- $9 seconds in which they must start (NULL: any time), $10 depth, $11 ids, $12 item_nos, $13 payloads (NULL: the job's own)
WITH fire AS (
    SELECT f.execution_id, $4::uuid AS job_id, ondot.clock() AS fire_at, ondot.clock() AS ready_at,
           $1::integer AS tenant_no, $5::integer AS job_version, $6::integer AS pool_no, $7::smallint AS class,
           'child' AS origin, $8::text AS stages, false AS is_fire,
           ondot.clock() + make_interval(secs => $9::double precision) AS start_by, f.payload::json AS payload,
           NULL::uuid AS replay_of, $2::uuid AS awaited_by, $3::integer AS step_no, f.item_no
    FROM unnest($11::uuid[], $12::integer[], $13::text[]) AS f(execution_id, item_no, payload)
), known AS (
    INSERT INTO ondot.run (id, job_id, tenant_no, job_version, fire_at, class, own_payload, state, parent_run_id,
                           parent_step_no, parent_item_no, depth)
    SELECT execution_id, job_id, tenant_no, job_version, fire_at, class, payload IS NOT NULL, 'PENDING', awaited_by,
           step_no, item_no, $10::smallint
    FROM fire
),
{{plan}}
SELECT pool_no, min(ready_at) AS ready_at FROM planned GROUP BY pool_no;

-- name: find_children :many
-- index: run_parent
-- The child runs of a run that have not ended.
-- $1 tenant_no, $2 run_id
SELECT id, state, parent_step_no AS step_no, parent_item_no AS item_no, started_at IS NOT NULL AS has_started
FROM ondot.run
WHERE parent_run_id = $2::uuid AND tenant_no = $1::integer AND ended_at IS NULL;

-- name: request_child_cancels :none
-- locks: executions        index: execution_pkey
-- Asks child runs to end: housekeeping looks for such requests.
-- $1 tenant_no, $2 ids, $3 reason
UPDATE ondot.execution SET cancel_at = coalesce(cancel_at, ondot.clock()), cancel_reason = coalesce(cancel_reason, $3::text)
WHERE id = ANY ($2::uuid[]) AND tenant_no = $1::integer AND state IN ('RUNNING', 'BLOCKED', 'PENDING');

-- name: close_children :none
-- locks: child runs        index: run_pkey
-- Child runs that ended before a worker leased them: no worker and no advance writes their rows.
-- $1 tenant_no, $2 ids, $3 states
UPDATE ondot.run r SET state = c.state, verdict = c.state, ended_at = ondot.clock()
FROM unnest($2::uuid[], $3::text[]) AS c(id, state)
WHERE r.id = c.id AND r.tenant_no = $1::integer AND r.state = 'PENDING' AND r.started_at IS NULL;

-- name: report_child :none
-- index: arrival_pkey
-- A child is BLOCKED, or goes on: its parent hears of it as of an end. The last report counts.
-- $1 tenant_no, $2 run_id of the parent, $3 id of the child, $4 step_no, $5 item_no, $6 BLOCKED or RUNNING
INSERT INTO ondot.arrival (run_id, execution_id, at, tenant_no, step_no, item_no, state)
VALUES ($2::uuid, $3::uuid, ondot.clock(), $1::integer, $4::integer, $5::integer, $6::text)
ON CONFLICT (run_id, execution_id) DO UPDATE SET state = excluded.state, at = excluded.at;
