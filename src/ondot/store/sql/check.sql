-- name: look_at_executions :many
-- locks: none        index: execution_pkey, ready_pkey, waiting_execution, worker_pkey, lease_worker
-- Executions that nothing will move on: RUNNING under a worker that is gone, without a lease by which recovery would find
-- them; RUNNING under a live worker without a lease that names them, so that its loss would not free them; or waiting in no
-- queue and no line, or in a line that does not exist. Each is probed separately (LIMIT: the planner must not join and hash
-- the whole queue). Leases are read once for all: one statement starts an attempt and writes its lease, so both are of one
-- instant. As every look, it returns NULLs if it found nothing, and its position, which is NULL at the end of the table.
-- $1 after id, $2 before id, $3 limit
WITH part AS MATERIALIZED (
    SELECT id, state, worker_id, attempt_no, started_at, pool_no, class, tenant_no, ready_at FROM ondot.execution
    WHERE id > $1::uuid AND id < $2::uuid ORDER BY id LIMIT $3::integer
), named AS MATERIALIZED (
    SELECT m.id, m.attempt_no
    FROM (SELECT DISTINCT worker_id, started_at FROM part WHERE state = 'RUNNING') s
    CROSS JOIN LATERAL (SELECT l.execution_ids, l.attempt_nos FROM ondot.lease l
                        WHERE l.worker_id = s.worker_id AND l.leased_at = s.started_at OFFSET 0) l
    CROSS JOIN LATERAL unnest(l.execution_ids, l.attempt_nos) AS m(id, attempt_no)
), judged AS MATERIALIZED (
    SELECT s.*, CASE
        WHEN s.state = 'RUNNING' THEN CASE
            WHEN (s.id, s.attempt_no) IN (SELECT id, attempt_no FROM named) THEN NULL
            -- A run has no worker: ends of its steps move it.
            WHEN s.worker_id IS NULL AND (SELECT true FROM ondot.run r WHERE r.id = s.id LIMIT 1) THEN NULL
            WHEN (SELECT true FROM ondot.worker w
                  WHERE w.id = s.worker_id AND w.state IN ('ALIVE', 'DRAINING') LIMIT 1)
            THEN 'running_without_lease'
            WHEN (SELECT true FROM ondot.lease l WHERE l.worker_id = s.worker_id LIMIT 1) IS NULL
            THEN 'running_of_gone_worker' END
        WHEN s.state IN ('PENDING', 'RETRYING') THEN CASE
            WHEN (SELECT true FROM ondot.ready r
                  WHERE r.pool_no = s.pool_no AND r.class = s.class AND r.tenant_no = s.tenant_no
                    AND r.ready_at = s.ready_at AND r.execution_id = s.id LIMIT 1) IS NULL
             AND (SELECT true FROM ondot.waiting w JOIN ondot.line l ON l.gate_id = w.gate_id AND l.pool_no = w.pool_no
                  WHERE w.execution_id = s.id LIMIT 1) IS NULL
            THEN 'unqueued' END
        END AS kind
    FROM part s
)
SELECT t.through_id, $2 AS before_id, j.kind, j.id, j.attempt_no, j.ready_at
FROM (SELECT (SELECT id FROM part ORDER BY id DESC LIMIT (SELECT (count(*) = $3)::integer FROM part)) AS through_id) t
LEFT JOIN judged j ON j.kind IS NOT NULL;

-- name: look_at_ready :many
-- locks: none        index: ready_pkey, execution_pkey
-- Rows of the queue without an execution that waits. The walk leaves a lane at the first row that was added after the walk
-- started or is not due: it would not catch up with a lane that grows faster.
-- $1 after pool_no, $2 class, $3 tenant_no, $4 ready_at, $5 execution_id, $6 when the walk started, $7 limit
WITH part AS MATERIALIZED (
    SELECT pool_no, class, tenant_no, ready_at, execution_id FROM ondot.ready
    WHERE (pool_no, class, tenant_no, ready_at, execution_id)
        > ($1::integer, $2::smallint, $3::integer, $4::timestamptz, $5::uuid)
    ORDER BY pool_no, class, tenant_no, ready_at, execution_id LIMIT $7::integer
), judged AS MATERIALIZED (
    SELECT s.*, CASE WHEN (
        SELECT true FROM ondot.execution e
        WHERE e.id = s.execution_id AND e.state IN ('PENDING', 'RETRYING') AND e.pool_no = s.pool_no
          AND e.class = s.class AND e.tenant_no = s.tenant_no AND e.ready_at = s.ready_at LIMIT 1
    ) IS NULL THEN 'queued_without_execution' END AS kind
    FROM part s
), through AS (
    SELECT s.pool_no, s.class, s.tenant_no + (s.ready_at > $6::timestamptz)::integer AS tenant_no,
           CASE WHEN s.ready_at > $6 THEN 'epoch' ELSE s.ready_at END AS ready_at,
           CASE WHEN s.ready_at > $6 THEN '00000000-0000-0000-0000-000000000000' ELSE s.execution_id END AS execution_id
    FROM part s ORDER BY s.pool_no DESC, s.class DESC, s.tenant_no DESC, s.ready_at DESC, s.execution_id DESC
    LIMIT (SELECT (count(*) = $7)::integer FROM part)
)
SELECT t.pool_no AS through_pool_no, t.class AS through_class, t.tenant_no AS through_tenant_no,
       t.ready_at AS through_ready_at, t.execution_id AS through_execution_id, $6 AS began_at,
       j.kind, j.execution_id, j.pool_no, j.class, j.tenant_no, j.ready_at
FROM (SELECT) one LEFT JOIN through t ON true LEFT JOIN judged j ON j.kind IS NOT NULL;

-- name: look_at_waiting :many
-- locks: none        index: waiting_pkey, execution_pkey, gated_pkey
-- Places in line of executions that are gone, run, or have no gates: admission would never take them and, in strict order,
-- none behind them.
-- $1 after gate_id, $2 pool_no, $3 ready_at, $4 execution_id, $5 limit
WITH part AS MATERIALIZED (
    SELECT gate_id, pool_no, ready_at, execution_id FROM ondot.waiting
    WHERE (gate_id, pool_no, ready_at, execution_id) > ($1::uuid, $2::integer, $3::timestamptz, $4::uuid)
    ORDER BY gate_id, pool_no, ready_at, execution_id LIMIT $5::integer
), judged AS MATERIALIZED (
    SELECT s.*, CASE
        WHEN (SELECT true FROM ondot.execution e
              WHERE e.id = s.execution_id AND e.state IN ('PENDING', 'RETRYING') LIMIT 1) IS NULL
          OR (SELECT true FROM ondot.gated d WHERE d.execution_id = s.execution_id LIMIT 1) IS NULL
        THEN 'queued_without_execution' END AS kind
    FROM part s
), through AS (
    SELECT * FROM part s ORDER BY s.gate_id DESC, s.pool_no DESC, s.ready_at DESC, s.execution_id DESC
    LIMIT (SELECT (count(*) = $5)::integer FROM part)
)
SELECT t.gate_id AS through_gate_id, t.pool_no AS through_pool_no, t.ready_at AS through_ready_at,
       t.execution_id AS through_execution_id, j.kind, j.execution_id, j.gate_id, j.pool_no, j.ready_at
FROM (SELECT) one LEFT JOIN through t ON true LEFT JOIN judged j ON j.kind IS NOT NULL;

-- name: look_at_gated :many
-- locks: none        index: gated_pkey, execution_pkey
-- Gates of executions that are gone.
-- $1 after execution_id, $2 limit
WITH part AS MATERIALIZED (
    SELECT execution_id FROM ondot.gated WHERE execution_id > $1::uuid ORDER BY execution_id LIMIT $2::integer
), judged AS MATERIALIZED (
    SELECT s.*, CASE WHEN (SELECT true FROM ondot.execution e WHERE e.id = s.execution_id LIMIT 1) IS NULL
                     THEN 'queued_without_execution' END AS kind
    FROM part s
)
SELECT t.through_id, j.kind, j.execution_id
FROM (SELECT (SELECT execution_id FROM part ORDER BY execution_id DESC
              LIMIT (SELECT (count(*) = $2)::integer FROM part)) AS through_id) t
LEFT JOIN judged j ON j.kind IS NOT NULL;

-- name: look_at_slots :many
-- locks: none        index: slot_pkey, execution_pkey, gated_pkey
-- Slots of executions that are gone or have no gates; and slots of a pool whose executions do not run.
-- $1 after gate_id, $2 execution_id, $3 limit
WITH part AS MATERIALIZED (
    SELECT gate_id, execution_id, held_at FROM ondot.slot
    WHERE (gate_id, execution_id) > ($1::uuid, $2::uuid) ORDER BY gate_id, execution_id LIMIT $3::integer
), judged AS MATERIALIZED (
    SELECT s.*, CASE
        WHEN (SELECT CASE WHEN s.gate_id <= ondot.pool_gate(2147483647) THEN e.state = 'RUNNING'
                          ELSE (SELECT true FROM ondot.gated d WHERE d.execution_id = s.execution_id LIMIT 1) END
              FROM ondot.execution e WHERE e.id = s.execution_id LIMIT 1) IS NOT true
        THEN 'slot_without_holder' END AS kind
    FROM part s
), through AS (
    SELECT * FROM part s ORDER BY s.gate_id DESC, s.execution_id DESC
    LIMIT (SELECT (count(*) = $3)::integer FROM part)
)
SELECT t.gate_id AS through_gate_id, t.execution_id AS through_execution_id, j.kind, j.execution_id, j.gate_id, j.held_at
FROM (SELECT) one LEFT JOIN through t ON true LEFT JOIN judged j ON j.kind IS NOT NULL;

-- name: look_at_lines :many
-- locks: none        index: line_pkey, waiting_pkey, gated_pkey, slot_pkey
-- Lines whose first execution has been due for a minute and may pass, but that nothing will look at. Lines of strict order are
-- left out: the first of all may be in the line of another pool. So are lines of tenants that are not active.
-- $1 after gate_id, $2 pool_no, $3 limit
WITH part AS MATERIALIZED (
    SELECT gate_id, pool_no, tenant_no, look_at FROM ondot.line
    WHERE (gate_id, pool_no) > ($1::uuid, $2::integer) ORDER BY gate_id, pool_no LIMIT $3::integer
), judged AS MATERIALIZED (
    SELECT s.*, CASE WHEN s.look_at = 'infinity'
        AND s.tenant_no <> ALL (ARRAY(SELECT t.tenant_no FROM ondot.tenant t WHERE t.state <> 'ACTIVE')) AND (
        SELECT w.ready_at < ondot.clock() - interval '1 minute' AND d.stages->w.stage->>'kind' <> 'order'
               AND ((d.stages->w.stage->>'limit') IS NULL
                    OR (SELECT count(*) FROM ondot.slot h WHERE h.gate_id = s.gate_id)
                       < (d.stages->w.stage->>'limit')::integer)
        FROM (SELECT * FROM ondot.waiting w WHERE w.gate_id = s.gate_id AND w.pool_no = s.pool_no
              ORDER BY w.ready_at, w.execution_id LIMIT 1) w
        CROSS JOIN LATERAL (SELECT stages FROM ondot.gated d WHERE d.execution_id = w.execution_id LIMIT 1) d
        LIMIT 1
    ) THEN 'line_overlooked' END AS kind
    FROM part s
), through AS (
    SELECT * FROM part s ORDER BY s.gate_id DESC, s.pool_no DESC
    LIMIT (SELECT (count(*) = $3)::integer FROM part)
)
SELECT t.gate_id AS through_gate_id, t.pool_no AS through_pool_no, j.kind, j.gate_id, j.pool_no
FROM (SELECT) one LEFT JOIN through t ON true LEFT JOIN judged j ON j.kind IS NOT NULL;

-- name: look_at_leases :many
-- locks: none        index: lease_pkey, execution_pkey
-- Older leases without a member that runs under their worker and attempt.
-- $1 after id, $2 limit
WITH part AS MATERIALIZED (
    SELECT id, worker_id, leased_at, execution_ids, attempt_nos FROM ondot.lease
    WHERE id > $1::uuid ORDER BY id LIMIT $2::integer
), judged AS MATERIALIZED (
    SELECT s.id, s.worker_id, CASE WHEN s.leased_at < ondot.clock() - interval '2 minutes' THEN CASE WHEN (
        SELECT true FROM unnest(s.execution_ids, s.attempt_nos) AS m(id, attempt_no)
        CROSS JOIN LATERAL (SELECT FROM ondot.execution e
                            WHERE e.id = m.id AND e.attempt_no = m.attempt_no AND e.worker_id = s.worker_id
                              AND e.state = 'RUNNING' LIMIT 1) e
        LIMIT 1
    ) IS NULL THEN 'empty_lease' END END AS kind
    FROM part s
)
SELECT t.through_id, j.kind, j.id, j.worker_id
FROM (SELECT (SELECT id FROM part ORDER BY id DESC LIMIT (SELECT (count(*) = $2)::integer FROM part)) AS through_id) t
LEFT JOIN judged j ON j.kind IS NOT NULL;

-- name: look_at_runs :many
-- locks: none        index: run_live, execution_pkey, arrival_pkey, step_pkey, step_wait_pkey, mapped_pkey
-- Runs that nothing will move: without an execution; or RUNNING with no arrival and no step that is released; or with a
-- released step whose execution is gone and has left no arrival. Steps that wait, and maps, have no execution of their own.
-- $1 after id, $2 limit
WITH part AS MATERIALIZED (
    SELECT id, state, is_paused, waiting, active, superseded FROM ondot.run
    WHERE id > $1::uuid AND ended_at IS NULL ORDER BY id LIMIT $2::integer
), judged AS MATERIALIZED (
    SELECT s.*, CASE
        WHEN (SELECT true FROM ondot.execution e WHERE e.id = s.id LIMIT 1) IS NULL THEN 'stranded_run'
        WHEN s.state IN ('RUNNING', 'ENDING') AND NOT s.is_paused
         AND (SELECT true FROM ondot.arrival a WHERE a.run_id = s.id LIMIT 1) IS NULL
         AND ((SELECT true FROM ondot.step x WHERE x.run_id = s.id AND x.state = 'RELEASED' LIMIT 1) IS NULL
              OR (SELECT true FROM ondot.step x
                  WHERE x.run_id = s.id AND x.state = 'RELEASED' AND x.execution_id IS NOT NULL
                    AND (SELECT true FROM ondot.execution e WHERE e.id = x.execution_id LIMIT 1) IS NULL
                    AND (SELECT true FROM ondot.step_wait w
                         WHERE w.run_id = s.id AND w.execution_id = x.execution_id LIMIT 1) IS NULL
                    AND (SELECT true FROM ondot.mapped m
                         WHERE m.run_id = s.id AND m.step_no = x.step_no LIMIT 1) IS NULL
                  LIMIT 1))
        THEN 'stranded_run' END AS kind
    FROM part s
)
SELECT t.through_id, j.kind, j.id, j.state, j.waiting, j.active, j.superseded
FROM (SELECT (SELECT id FROM part ORDER BY id DESC LIMIT (SELECT (count(*) = $2)::integer FROM part)) AS through_id) t
LEFT JOIN judged j ON j.kind IS NOT NULL;

-- name: look_at_timers :many
-- locks: none        index: timer_due
-- Overdue timers in owned partitions: those that plan reaches first in each partition, so that a node with a backlog does not
-- look like one that has overlooked some.
-- $1 overdue by more than these seconds, $2 limit for each partition
SELECT 'overdue_timer' AS kind, t.job_id, t.version, t.next_fire_at
FROM ondot.partition p
JOIN ondot.node n ON n.id = p.owner AND ondot.is_node_alive(n.expires_at, n.beat_at)
CROSS JOIN LATERAL (
    SELECT t.job_id, t.version, t.next_fire_at FROM ondot.timer t
    WHERE t.partition_no = p.partition_no
      AND t.next_fire_at < ondot.clock() - make_interval(secs => $1::double precision)
    ORDER BY t.next_fire_at LIMIT $2::integer
) t;

-- name: look_at_partitions :many
-- locks: none        index: partition_pkey
-- Partitions that no live node owns, while there are live nodes; the epoch shows whether one did in between.
SELECT 'partition' AS kind, p.partition_no, p.epoch
FROM ondot.partition p
WHERE EXISTS (SELECT FROM ondot.node n WHERE ondot.is_node_alive(n.expires_at, n.beat_at))
  AND NOT EXISTS (SELECT FROM ondot.node n WHERE n.id = p.owner AND ondot.is_node_alive(n.expires_at, n.beat_at))
ORDER BY p.partition_no;

-- name: look_at_counts :many
-- locks: none        index: tenant_running_pkey, execution_pkey
-- Tenants whose counts add up to another number than what runs, in any pool. A lease and a completion change both at once.
-- The key has the difference: what runs changes all the time.
WITH counted AS MATERIALIZED (
    SELECT tenant_no FROM ondot.tenant_limit WHERE is_counted
), running AS (
    SELECT DISTINCT e.id, e.tenant_no, e.pool_no
    FROM ondot.lease l CROSS JOIN LATERAL unnest(l.execution_ids) AS m(id) JOIN ondot.execution e ON e.id = m.id
    WHERE EXISTS (SELECT FROM counted) AND e.state = 'RUNNING' AND e.tenant_no IN (SELECT tenant_no FROM counted)
), difference AS (
    SELECT tenant_no, pool_no, sum(running) AS many
    FROM (SELECT tenant_no, pool_no, running FROM ondot.tenant_running WHERE tenant_no IN (SELECT tenant_no FROM counted)
          UNION ALL SELECT tenant_no, pool_no, -1 FROM running) d
    GROUP BY tenant_no, pool_no HAVING sum(running) <> 0
)
SELECT 'wrong_count' AS kind, tenant_no, string_agg(pool_no || ':' || many, ',' ORDER BY pool_no) AS many
FROM difference GROUP BY tenant_no;

-- name: make_partitions :many
-- locks: none (new rows)        index: partition_pkey
-- Partitions that are missing.
INSERT INTO ondot.partition (partition_no)
SELECT n FROM ondot.installation i CROSS JOIN LATERAL generate_series(0, i.partitions - 1) AS g(n)
WHERE NOT EXISTS (SELECT FROM ondot.partition p WHERE p.partition_no = g.n)
ON CONFLICT DO NOTHING
RETURNING partition_no;

-- name: lease_to_recovery :many
-- locks: executions, SKIP LOCKED        index: execution_pkey, worker_pkey, lease_worker
-- Adds leases for executions that run under workers that are gone: recovery finds them by these and gives them back, with the
-- cost and the fence of any other loss. An execution without a worker gets one that never existed. So does one whose live
-- worker has no lease for it: whether that worker made the call is not known, so it is a loss, and a late completion is
-- refused.
-- $1 ids, $2 attempt_nos, $3 as many ids for leases: one for each worker is used
WITH lost AS MATERIALIZED (
    SELECT found.row_at, found.is_taken, seen.lease_id
    FROM unnest($1::uuid[], $2::integer[], $3::uuid[]) AS seen(id, attempt_no, lease_id)
    CROSS JOIN LATERAL (
        SELECT e.ctid AS row_at, w.id IS NOT NULL AS is_taken
        FROM ondot.execution e
        LEFT JOIN ondot.worker w ON w.id = e.worker_id AND w.state IN ('ALIVE', 'DRAINING')
        WHERE e.id = seen.id AND e.attempt_no = seen.attempt_no AND e.state = 'RUNNING'
          AND (e.worker_id IS NOT NULL OR (SELECT true FROM ondot.run r WHERE r.id = e.id LIMIT 1) IS NULL)
          AND (SELECT true FROM ondot.lease l
               WHERE l.worker_id = e.worker_id
                 AND (w.id IS NULL OR (l.leased_at = e.started_at AND e.id = ANY (l.execution_ids))) LIMIT 1) IS NULL
        LIMIT 1 FOR UPDATE OF e SKIP LOCKED
    ) found
), named AS (
    UPDATE ondot.execution e SET worker_id = CASE WHEN lost.is_taken THEN e.id ELSE coalesce(e.worker_id, e.id) END
    FROM lost WHERE e.ctid = lost.row_at
    RETURNING e.id, e.attempt_no, e.worker_id, lost.lease_id
), leased AS (
    INSERT INTO ondot.lease (id, worker_id, leased_at, execution_ids, attempt_nos)
    SELECT (array_agg(lease_id))[1], worker_id, ondot.clock(), array_agg(id), array_agg(attempt_no)
    FROM named GROUP BY worker_id
)
SELECT id FROM named;

-- name: queue_again :many
-- locks: executions, SKIP LOCKED, then ready (new rows)        index: execution_pkey, ready_pkey, waiting_execution
-- Puts executions that wait nowhere back into the queue; line_up_again does it for those with gates.
-- $1 ids, $2 attempt_nos, $3 ready_ats
WITH lost AS MATERIALIZED (
    SELECT found.row_at
    FROM unnest($1::uuid[], $2::integer[], $3::timestamptz[]) AS seen(id, attempt_no, ready_at)
    CROSS JOIN LATERAL (
        SELECT e.ctid AS row_at FROM ondot.execution e
        WHERE e.id = seen.id AND e.attempt_no = seen.attempt_no AND e.ready_at = seen.ready_at
          AND e.state IN ('PENDING', 'RETRYING')
          AND (SELECT true FROM ondot.ready r
               WHERE r.pool_no = e.pool_no AND r.class = e.class AND r.tenant_no = e.tenant_no
                 AND r.ready_at = e.ready_at AND r.execution_id = e.id LIMIT 1) IS NULL
          AND (SELECT true FROM ondot.waiting w WHERE w.execution_id = e.id LIMIT 1) IS NULL
          AND (SELECT true FROM ondot.gated d WHERE d.execution_id = e.id LIMIT 1) IS NULL
        LIMIT 1 FOR UPDATE SKIP LOCKED
    ) found
), moved AS (
    UPDATE ondot.execution e SET ready_at = greatest(e.ready_at, ondot.clock())
    FROM lost WHERE e.ctid = lost.row_at
    RETURNING e.pool_no, e.class, e.tenant_no, e.ready_at, e.id
), queued AS (
    INSERT INTO ondot.ready (pool_no, class, tenant_no, ready_at, execution_id)
    SELECT pool_no, class, tenant_no, ready_at, id FROM moved
    ON CONFLICT DO NOTHING
)
SELECT id, pool_no, ready_at FROM moved;

-- name: line_up_again :many
-- locks: executions, SKIP LOCKED, then gated rows; gates are held        index: execution_pkey, ready_pkey, gated_pkey
-- Puts executions that wait nowhere back into the line before their gates, in the order in which they were due. The trigger on
-- gated does it, and creates missing lines and gates.
-- $1 ids, $2 attempt_nos, $3 ready_ats
WITH lost AS MATERIALIZED (
    SELECT found.id
    FROM unnest($1::uuid[], $2::integer[], $3::timestamptz[]) AS seen(id, attempt_no, ready_at)
    CROSS JOIN LATERAL (
        SELECT e.id FROM ondot.execution e
        WHERE e.id = seen.id AND e.attempt_no = seen.attempt_no AND e.ready_at = seen.ready_at
          AND e.state IN ('PENDING', 'RETRYING')
          AND (SELECT true FROM ondot.ready r
               WHERE r.pool_no = e.pool_no AND r.class = e.class AND r.tenant_no = e.tenant_no
                 AND r.ready_at = e.ready_at AND r.execution_id = e.id LIMIT 1) IS NULL
          AND (SELECT true FROM ondot.waiting w JOIN ondot.line l ON l.gate_id = w.gate_id AND l.pool_no = w.pool_no
               WHERE w.execution_id = e.id LIMIT 1) IS NULL
        LIMIT 1 FOR UPDATE SKIP LOCKED
    ) found
)
UPDATE ondot.gated d SET ready_at = d.ready_at
WHERE d.execution_id = ANY (ARRAY(SELECT id FROM lost))
RETURNING d.execution_id AS id, d.pool_no, d.ready_at;

-- name: drop_ready :many
-- locks: ready rows, SKIP LOCKED        index: ready_pkey, execution_pkey
-- $1 execution_ids, $2 pool_nos, $3 classes, $4 tenant_nos, $5 ready_ats
DELETE FROM ondot.ready WHERE ctid = ANY (ARRAY(
    SELECT found.row_at
    FROM unnest($1::uuid[], $2::integer[], $3::smallint[], $4::integer[], $5::timestamptz[])
         AS seen(execution_id, pool_no, class, tenant_no, ready_at)
    CROSS JOIN LATERAL (
        SELECT r.ctid AS row_at FROM ondot.ready r
        WHERE r.pool_no = seen.pool_no AND r.class = seen.class AND r.tenant_no = seen.tenant_no
          AND r.ready_at = seen.ready_at AND r.execution_id = seen.execution_id
          AND (SELECT true FROM ondot.execution e
               WHERE e.id = r.execution_id AND e.state IN ('PENDING', 'RETRYING') AND e.pool_no = r.pool_no
                 AND e.class = r.class AND e.tenant_no = r.tenant_no AND e.ready_at = r.ready_at LIMIT 1) IS NULL
        LIMIT 1 FOR UPDATE SKIP LOCKED
    ) found
))
RETURNING execution_id AS id;

-- name: lock_gates :one
-- locks: gates, then lines
-- $1 ids of gates
SELECT ondot.lock_gates($1::uuid[]);

-- name: call_lines :one
-- locks: lines, held already
-- $1 ids of gates
SELECT ondot.call_lines($1::uuid[]);

-- name: drop_waiting :many
-- locks: waiting rows; gates are held        index: waiting_pkey, execution_pkey, gated_pkey
-- $1 execution_ids, $2 gate_ids, $3 pool_nos, $4 ready_ats
DELETE FROM ondot.waiting WHERE ctid = ANY (ARRAY(
    SELECT found.row_at
    FROM unnest($1::uuid[], $2::uuid[], $3::integer[], $4::timestamptz[]) AS seen(execution_id, gate_id, pool_no, ready_at)
    CROSS JOIN LATERAL (
        SELECT w.ctid AS row_at FROM ondot.waiting w
        WHERE w.gate_id = seen.gate_id AND w.pool_no = seen.pool_no AND w.ready_at = seen.ready_at
          AND w.execution_id = seen.execution_id
          AND ((SELECT true FROM ondot.execution e
                WHERE e.id = w.execution_id AND e.state IN ('PENDING', 'RETRYING') LIMIT 1) IS NULL
            OR (SELECT true FROM ondot.gated d WHERE d.execution_id = w.execution_id LIMIT 1) IS NULL)
        LIMIT 1 FOR UPDATE SKIP LOCKED
    ) found
))
RETURNING execution_id AS id;

-- name: drop_gated :many
-- locks: gated rows, SKIP LOCKED, then gates by the trigger        index: gated_pkey, execution_pkey
-- $1 execution_ids
DELETE FROM ondot.gated WHERE ctid = ANY (ARRAY(
    SELECT found.row_at FROM unnest($1::uuid[]) AS seen(execution_id)
    CROSS JOIN LATERAL (
        SELECT d.ctid AS row_at FROM ondot.gated d
        WHERE d.execution_id = seen.execution_id
          AND (SELECT true FROM ondot.execution e WHERE e.id = d.execution_id LIMIT 1) IS NULL
        LIMIT 1 FOR UPDATE SKIP LOCKED
    ) found
))
RETURNING execution_id AS id;

-- name: drop_slots :many
-- locks: slots, SKIP LOCKED; gates are held        index: slot_pkey, execution_pkey, gated_pkey
-- $1 execution_ids, $2 gate_ids, $3 held_ats
DELETE FROM ondot.slot WHERE ctid = ANY (ARRAY(
    SELECT found.row_at
    FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[]) AS seen(execution_id, gate_id, held_at)
    CROSS JOIN LATERAL (
        SELECT h.ctid AS row_at FROM ondot.slot h
        WHERE h.gate_id = seen.gate_id AND h.execution_id = seen.execution_id AND h.held_at = seen.held_at
          AND (SELECT CASE WHEN h.gate_id <= ondot.pool_gate(2147483647) THEN e.state = 'RUNNING'
                           ELSE (SELECT true FROM ondot.gated d WHERE d.execution_id = h.execution_id LIMIT 1) END
               FROM ondot.execution e WHERE e.id = h.execution_id LIMIT 1) IS NOT true
        LIMIT 1 FOR UPDATE SKIP LOCKED
    ) found
))
RETURNING execution_id AS id;

-- name: call_overlooked :many
-- locks: lines; gates are held        index: line_pkey, waiting_pkey, gated_pkey, slot_pkey
-- $1 gate_ids, $2 pool_nos
UPDATE ondot.line l SET look_at = ondot.clock()
FROM unnest($1::uuid[], $2::integer[]) AS seen(gate_id, pool_no)
WHERE l.gate_id = seen.gate_id AND l.pool_no = seen.pool_no AND l.look_at = 'infinity'
  AND (SELECT w.ready_at < ondot.clock() - interval '1 minute' AND d.stages->w.stage->>'kind' <> 'order'
              AND ((d.stages->w.stage->>'limit') IS NULL
                   OR (SELECT count(*) FROM ondot.slot h WHERE h.gate_id = seen.gate_id)
                      < (d.stages->w.stage->>'limit')::integer)
       FROM (SELECT * FROM ondot.waiting w WHERE w.gate_id = seen.gate_id AND w.pool_no = seen.pool_no
             ORDER BY w.ready_at, w.execution_id LIMIT 1) w
       CROSS JOIN LATERAL (SELECT stages FROM ondot.gated d WHERE d.execution_id = w.execution_id LIMIT 1) d
       LIMIT 1)
RETURNING l.gate_id AS id;

-- name: drop_leases :many
-- locks: leases, SKIP LOCKED        index: lease_pkey, execution_pkey
-- $1 ids
DELETE FROM ondot.lease WHERE ctid = ANY (ARRAY(
    SELECT found.row_at FROM unnest($1::uuid[]) AS seen(id)
    CROSS JOIN LATERAL (
        SELECT l.ctid AS row_at FROM ondot.lease l
        WHERE l.id = seen.id AND (
            SELECT true FROM unnest(l.execution_ids, l.attempt_nos) AS m(id, attempt_no)
            CROSS JOIN LATERAL (SELECT FROM ondot.execution e
                                WHERE e.id = m.id AND e.attempt_no = m.attempt_no AND e.worker_id = l.worker_id
                                  AND e.state = 'RUNNING' LIMIT 1) e
            LIMIT 1
        ) IS NULL
        LIMIT 1 FOR UPDATE SKIP LOCKED
    ) found
))
RETURNING id;

-- name: find_stuck_timers :many
-- locks: none        index: timer_pkey
-- Those of these timers that have not moved since they were found.
-- $1 job_ids, $2 versions, $3 next_fire_ats
SELECT t.job_id, t.tenant_no, t.partition_no, t.version, t.job_version, t.next_fire_at, t.fired_through, t.fires_left,
       t.guard_until, ondot.clock() AS now
FROM unnest($1::uuid[], $2::integer[], $3::timestamptz[]) AS seen(job_id, version, next_fire_at)
CROSS JOIN LATERAL (
    SELECT * FROM ondot.timer t
    WHERE t.job_id = seen.job_id AND t.version = seen.version AND t.next_fire_at = seen.next_fire_at LIMIT 1
) t;

-- name: record_found :none
-- locks: the row of the kind        index: found_pkey
-- $1 kind, $2 count, $3 example
INSERT INTO ondot.found (kind, count, first_at, last_at, example)
VALUES ($1::text, $2::bigint, ondot.clock(), ondot.clock(), $3::text::jsonb)
ON CONFLICT (kind) DO UPDATE
SET count = found.count + excluded.count, last_at = excluded.last_at, example = excluded.example;

-- name: list_found :many
SELECT kind, count, first_at, last_at, example FROM ondot.found ORDER BY kind;
