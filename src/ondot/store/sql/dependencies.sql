-- name: insert_blocked :none
-- transition: block        locks: none (new rows)
-- The executions of new one-time jobs that depend on others: they enter no queue. Their parents are looked at after the
-- commit, because look_at is due.
-- $1 tenant_no, $2 job ids, $3 execution ids, $4 fire_ats, $5 ready_ats, $6 pool_nos, $7 classes, $8 gates (NULL: none),
-- $9 start deadlines in seconds (NULL: none), $10 parents, $11 the child of each
WITH new AS (
    SELECT * FROM unnest($2::uuid[], $3::uuid[], $4::timestamptz[], $5::timestamptz[], $6::integer[], $7::smallint[],
                         $8::text[], $9::double precision[])
         AS n(job_id, execution_id, fire_at, ready_at, pool_no, class, stages, deadline_s)
), blocked AS (
    {{insert_blocked_into_execution}}
    FROM (SELECT *, $1::integer AS tenant_no FROM new) n
), waiting AS (
    INSERT INTO ondot.dependent (child_id, execution_id, tenant_no, deadline_s, stages)
    SELECT job_id, execution_id, $1, deadline_s, stages FROM new
)
INSERT INTO ondot.dependency (parent_id, child_id, look_at, tenant_no)
SELECT parent_id, child_id, ondot.clock(), $1 FROM unnest($10::uuid[], $11::uuid[]) AS d(parent_id, child_id);

-- name: find_due_parents :many
-- index: dependency_look, arrival_at
-- Jobs to look at again, and those whose end has arrived and was not taken for a second.
-- $1 limit
SELECT parent_id FROM (
    SELECT parent_id FROM ondot.dependency
    WHERE state <> 'SUCCEEDED' AND look_at <= ondot.clock() ORDER BY look_at LIMIT $1::integer
) d
UNION
SELECT run_id FROM (
    SELECT run_id FROM ondot.arrival
    WHERE step_no IS NULL AND at < ondot.clock() - interval '1 second' ORDER BY at LIMIT $1
) a;

-- name: look_again :none
-- locks: dependencies        index: dependency_pkey
-- A parent was changed, or runs again: the next pass looks at it.
-- $1 parents
UPDATE ondot.dependency SET look_at = ondot.clock() WHERE parent_id = ANY ($1::uuid[]) AND state <> 'SUCCEEDED';

-- name: flag_parents :none
-- locks: executions, in the order of their ids, as a completion        index: execution_fire, execution_other, execution_pkey
-- From here on the end of a live parent is an arrival. Waits for a completion under way; after that the execution is gone,
-- and the next statement finds it in history. In one statement it would be found in neither.
-- $1 parents
WITH live AS MATERIALIZED (
    SELECT id FROM ondot.execution
    WHERE id = ANY (ARRAY(
        SELECT id FROM ondot.execution WHERE job_id = ANY ($1::uuid[]) AND origin IN ('fire', 'backfill') AND awaited_by IS NULL
        UNION ALL
        SELECT id FROM ondot.execution
        WHERE job_id = ANY ($1) AND origin NOT IN ('fire', 'backfill') AND awaited_by IS NULL
    )) AND awaited_by IS NULL
    ORDER BY id FOR UPDATE
)
UPDATE ondot.execution e SET awaited_by = e.job_id FROM live l WHERE e.id = l.id;

-- name: take_arrivals_of_parents :none
-- locks: arrivals        index: arrival_pkey
-- $1 parents
DELETE FROM ondot.arrival WHERE run_id = ANY ($1::uuid[]) AND step_no IS NULL;

-- name: add_arrived :many
-- index: dependency_pkey, dependency_open, arrival_pkey
-- These jobs, and others whose ends have arrived and for which the same jobs wait: all are judged at once, because each
-- alone would lock the same row again.
-- $1 parents, $2 limit
SELECT parent_id FROM unnest($1::uuid[]) AS p(parent_id)
UNION
(SELECT o.parent_id FROM ondot.dependency d
 JOIN ondot.dependency o ON o.child_id = d.child_id AND o.state <> 'SUCCEEDED'
 WHERE d.parent_id = ANY ($1) AND d.state <> 'SUCCEEDED'
   AND EXISTS (SELECT FROM ondot.arrival a WHERE a.run_id = o.parent_id AND a.step_no IS NULL)
 LIMIT $2::integer);

-- name: lock_dependents :many
-- locks: dependents, in the order of their ids        index: dependency_pkey, dependent_pkey
-- $1 parents, $2 after which child, $3 limit
SELECT child_id, execution_id, stuck_at FROM ondot.dependent
WHERE child_id > $2::uuid AND child_id = ANY (ARRAY(
    SELECT DISTINCT child_id FROM ondot.dependency
    WHERE parent_id = ANY ($1::uuid[]) AND state <> 'SUCCEEDED' AND child_id > $2
    ORDER BY child_id LIMIT $3::integer
))
ORDER BY child_id FOR UPDATE;

-- name: lock_dependent :many
-- locks: the dependent        index: dependent_pkey
-- $1 tenant_no, $2 child
SELECT child_id, execution_id, stuck_at FROM ondot.dependent
WHERE child_id = $2::uuid AND tenant_no = $1::integer FOR UPDATE;

-- name: look_at_parents :many
-- index: dependency_child, job_pkey, timer_pkey, execution_fire, execution_other, history_job
-- What is known of the parents of locked children, except for those that have succeeded: the best of their ends, and
-- whether they still run or will.
-- $1 children, $2 parents, $3 no execution of a parent has a smaller id
SELECT p.parent_id, j.state AS job_state, t.next_fire_at, h.state AS ended, ondot.clock() AS now,
       EXISTS (SELECT FROM ondot.execution e WHERE e.job_id = p.parent_id AND e.origin IN ('fire', 'backfill'))
    OR EXISTS (SELECT FROM ondot.execution e WHERE e.job_id = p.parent_id AND e.origin NOT IN ('fire', 'backfill')) AS is_live
FROM (SELECT DISTINCT parent_id, tenant_no FROM ondot.dependency
      WHERE child_id = ANY ($1::uuid[]) AND parent_id = ANY ($2::uuid[]) AND state <> 'SUCCEEDED') p
LEFT JOIN ondot.job j ON j.id = p.parent_id
LEFT JOIN ondot.timer t ON t.job_id = p.parent_id AND t.next_fire_at < 'infinity'
LEFT JOIN LATERAL (
    SELECT state FROM ondot.history
    WHERE job_id = p.parent_id AND tenant_no = p.tenant_no AND id >= $3::uuid
    ORDER BY (state = 'SUCCEEDED') DESC, id DESC LIMIT 1
) h ON true;

-- name: set_dependencies :none
-- locks: dependencies        index: dependency_pkey
-- $1 children, $2 parents, $3 their states, $4 when each is looked at again
UPDATE ondot.dependency d SET state = n.state, look_at = n.look_at
FROM unnest($2::uuid[], $3::text[], $4::timestamptz[]) AS n(parent_id, state, look_at)
WHERE d.parent_id = n.parent_id AND d.child_id = ANY ($1::uuid[]) AND d.state <> 'SUCCEEDED';

-- name: set_stuck :none
-- locks: dependents, held already        index: dependency_open, dependent_pkey
-- Since when a parent of these children has ended without success.
-- $1 children
UPDATE ondot.dependent w SET stuck_at = CASE WHEN s.is_stuck THEN ondot.clock() END
FROM (
    SELECT c.child_id, EXISTS (SELECT FROM ondot.dependency d WHERE d.child_id = c.child_id AND d.state <> 'SUCCEEDED'
                               AND d.state <> 'WAITING') AS is_stuck
    FROM unnest($1::uuid[]) AS c(child_id)
) s
WHERE w.child_id = s.child_id AND (w.stuck_at IS NOT NULL) <> s.is_stuck;

-- name: find_free :many
-- index: dependency_open, job_pkey
-- Those of these children whose parents have all succeeded. A paused one stays where it is.
-- $1 children
SELECT w.child_id, w.tenant_no, w.stages FROM ondot.dependent w
WHERE w.child_id = ANY ($1::uuid[])
  AND NOT EXISTS (SELECT FROM ondot.dependency d WHERE d.child_id = w.child_id AND d.state <> 'SUCCEEDED')
  AND NOT EXISTS (SELECT FROM ondot.job j WHERE j.id = w.child_id AND j.state <> 'ACTIVE')
ORDER BY w.child_id;

-- name: lock_gates_of_free :one
-- locks: gates
-- Before their executions are changed, as every transaction that needs both.
-- $1 gates of executions
SELECT ondot.lock_gates(ARRAY(
    SELECT (s->>'gate')::uuid FROM unnest($1::text[]) AS n(stages) CROSS JOIN jsonb_array_elements(n.stages::jsonb) s
));

-- name: unblock :many
-- transition: unblock        locks: executions (dependents and gates are held)        index: dependent_pkey, execution_pkey
-- Executions whose last parent has succeeded enter the queue, or the line before their gates.
-- $1 children
WITH gone AS (
    DELETE FROM ondot.dependent WHERE child_id = ANY ($1::uuid[]) RETURNING *
), parents AS (
    DELETE FROM ondot.dependency WHERE child_id = ANY ($1)
), free AS (
    UPDATE ondot.execution e
    SET state = 'PENDING', gated = g.stages IS NOT NULL, ready_at = greatest(e.ready_at, ondot.clock()),
        start_by = greatest(e.ready_at, ondot.clock()) + make_interval(secs => g.deadline_s)
    FROM gone g WHERE e.id = g.execution_id AND e.state = 'BLOCKED'
    RETURNING e.id AS execution_id, e.pool_no, e.class, e.tenant_no, e.ready_at, e.gated, g.stages, e.job_id
), queued AS (
    {{insert_into_ready}}
    FROM free WHERE NOT gated
), gated AS (
    INSERT INTO ondot.gated (execution_id, ready_at, tenant_no, pool_no, class, is_fire, stages)
    SELECT execution_id, ready_at, tenant_no, pool_no, class, true, stages::jsonb FROM free WHERE gated
)
SELECT job_id, pool_no, ready_at FROM free;

-- name: end_blocked :many
-- transition: cancel        locks: executions        index: execution_pkey, dependent_pkey, dependency_child
-- Ends executions that wait for other jobs. One whose last parent succeeded a moment ago is no longer among them.
-- $1 tenant_no (NULL: of any), $2 ids of executions, $3 reason
WITH unblocked AS (
    DELETE FROM ondot.execution e USING ondot.dependent w
    WHERE e.id = ANY ($2::uuid[]) AND ($1::integer IS NULL OR e.tenant_no = $1) AND e.state = 'BLOCKED'
      AND w.child_id = e.job_id AND w.execution_id = e.id
    RETURNING e.*
), ended AS (
    SELECT *, 0 AS failed, 0 AS lost, 'CANCELLED' AS new_state, $3::text AS reason, NULL AS result, NULL AS error,
           ondot.labels_of(tenant_no, job_id) AS labels
    FROM unblocked
),
{{end}},
gone AS (
    DELETE FROM ondot.dependent WHERE child_id = ANY (ARRAY(SELECT job_id FROM unblocked))
), parents AS (
    DELETE FROM ondot.dependency WHERE child_id = ANY (ARRAY(SELECT job_id FROM unblocked))
)
SELECT id FROM ended;

-- name: renew_blocked :none
-- locks: dependent, held already, then its execution        index: dependent_pkey, execution_pkey, dependency_child
-- The new version of a job that still waits, with the parents that it keeps.
-- $1 tenant_no, $2 job_id, $3 job_version, $4 pool_no, $5 class, $6 fire_at, $7 ready_at, $8 gates (NULL: none),
-- $9 start deadline in seconds (NULL: none), $10 its parents
WITH kept AS (
    UPDATE ondot.dependent SET stages = $8::text, deadline_s = $9::double precision
    WHERE child_id = $2::uuid AND tenant_no = $1::integer RETURNING execution_id
), left_out AS (
    DELETE FROM ondot.dependency WHERE child_id = $2 AND tenant_no = $1 AND parent_id <> ALL ($10::uuid[])
)
UPDATE ondot.execution e
SET job_version = $3::integer, pool_no = $4::integer, class = $5::smallint, fire_at = $6::timestamptz,
    ready_at = $7::timestamptz
FROM kept k WHERE e.id = k.execution_id AND e.tenant_no = $1;

-- name: list_parents :many
-- index: dependency_child
-- $1 tenant_no, $2 child, $3 limit
SELECT parent_id, state, count(*) OVER () AS total, count(*) FILTER (WHERE state = 'SUCCEEDED') OVER () AS succeeded
FROM ondot.dependency WHERE child_id = $2::uuid AND tenant_no = $1::integer
ORDER BY (state = 'SUCCEEDED'), (state = 'WAITING'), parent_id LIMIT $3::integer;

-- name: find_stuck :many
-- index: dependent_stuck
-- Executions that have waited this long since a parent ended without success.
-- $1 days, $2 limit
SELECT execution_id FROM ondot.dependent
WHERE stuck_at IS NOT NULL AND stuck_at < ondot.clock() - make_interval(days => $1::integer)
ORDER BY stuck_at LIMIT $2::integer;

-- name: find_jobs_of_keys :many
-- index: job_key
-- $1 tenant_no, $2 keys
SELECT key, id FROM ondot.job
WHERE tenant_no = $1::integer AND key = ANY ($2::text[]) AND key IS NOT NULL AND state <> 'DELETED';
