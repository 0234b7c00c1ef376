-- name: explain_executions :many
-- locks: none        index: execution_pkey, history_pkey, attempt_pkey, waiting_execution, waiting_pkey, ready_pkey
-- Everything known about executions, live or ended: where each waits, how its last attempt ended, and whether everything is
-- held.
-- $1 tenant_no, $2 ids, $3 ceiling for the count of those before it in line
SELECT e.*, p.name AS pool, p.concurrency AS pool_concurrency, p.rate_per_s / p.rate_limit AS pool_every_s,
       p.rate_burst AS pool_burst, p.token_at AS pool_token_at, ondot.pool_gate(p.pool_no) AS pool_gate,
       c.progress, c.message AS progress_message, w.host AS worker_host, w.beat_at AS worker_beat_at,
       a.outcome AS last_outcome, a.error AS last_error,
       l.gate_id, l.stage, d.stages, d.is_fire, g.token_at AS gate_token_at, k.ahead, f.execution_id AS first_in_line,
       EXISTS (SELECT FROM ondot.ready r
               WHERE r.pool_no = e.pool_no AND r.class = e.class AND r.tenant_no = e.tenant_no
                 AND r.ready_at = e.ready_at AND r.execution_id = e.id) AS queued,
       (SELECT held_at FROM ondot.lineage) AS held_at, (SELECT held_why FROM ondot.lineage) AS held_why,
       ondot.clock() AS now
FROM (
    SELECT id, job_id, job_version, tenant_no, pool_no, class, state, ready_at, started_at, NULL::timestamptz AS ended_at,
           worker_id, attempt_no, failures, losses, NULL AS reason, NULL::jsonb AS error, cancel_at, cancel_reason,
           start_by
    FROM ondot.execution WHERE id = ANY ($2::uuid[]) AND tenant_no = $1::integer
    UNION ALL
    SELECT id, job_id, job_version, tenant_no, pool_no, class, state, ready_at, started_at, ended_at,
           worker_id, attempt_no, failures, losses, reason, error, NULL, NULL, NULL
    FROM ondot.history WHERE id = ANY ($2) AND tenant_no = $1
) e
JOIN ondot.pool p ON p.pool_no = e.pool_no
LEFT JOIN ondot.checkpoint c ON c.execution_id = e.id
LEFT JOIN ondot.worker w ON w.id = e.worker_id
LEFT JOIN LATERAL (
    -- ANY: the plan has only the partitions of their days.
    SELECT outcome, error FROM ondot.attempt WHERE execution_id = e.id AND execution_id = ANY ($2)
    ORDER BY attempt_no DESC LIMIT 1
) a ON true
LEFT JOIN LATERAL (SELECT gate_id, stage, ready_at FROM ondot.waiting WHERE execution_id = e.id LIMIT 1) l ON true
LEFT JOIN ondot.gated d ON d.execution_id = e.id
LEFT JOIN ondot.gate g ON g.id = l.gate_id
LEFT JOIN LATERAL (
    SELECT count(*) AS ahead FROM (
        SELECT FROM ondot.waiting o
        WHERE o.gate_id = l.gate_id AND (o.ready_at, o.execution_id) < (l.ready_at, e.id)
        LIMIT $3::integer
    ) o
) k ON true
LEFT JOIN LATERAL (
    SELECT execution_id FROM ondot.waiting o WHERE o.gate_id = l.gate_id ORDER BY o.ready_at, o.execution_id LIMIT 1
) f ON true;

-- name: explain_gates :many
-- locks: none        index: slot_pkey, execution_pkey
-- How many slots of these gates are taken, and which executions have held them longest.
-- $1 tenant_no, $2 gate_ids, $3 how many holders of each, $4 ceiling for the count of slots
SELECT g.gate_id, n.held, h.execution_id, h.held_at, e.state
FROM unnest($2::uuid[]) AS g(gate_id)
CROSS JOIN LATERAL (
    SELECT count(*) AS held FROM (SELECT FROM ondot.slot s WHERE s.gate_id = g.gate_id LIMIT $4::integer) s
) n
LEFT JOIN LATERAL (
    SELECT s.execution_id, s.held_at FROM ondot.slot s WHERE s.gate_id = g.gate_id AND s.tenant_no = $1::integer
    ORDER BY s.held_at, s.execution_id LIMIT $3::integer
) h ON true
LEFT JOIN ondot.execution e ON e.id = h.execution_id
ORDER BY g.gate_id, h.held_at, h.execution_id;

-- name: explain_tenant :many
-- locks: none        index: tenant_pkey, tenant_limit_pkey, tenant_running_pkey, ready_pkey
-- For each of these pools: the tenant's quotas and what runs of it, whether other tenants have due work there, and which
-- tenants hold most slots on its workers, by their beats. Of the work of others the first rows are looked at.
-- $1 tenant_no, $2 pool_nos, $3 how many tenants, $4 how many rows
SELECT n.pool_no, t.name, t.state <> 'ACTIVE' AS is_stopped, l.concurrent, l.rate_per_s / l.rate_limit AS every_s,
       coalesce(l.rate_burst, 1) AS burst, l.token_at,
       (SELECT coalesce(sum(r.running), 0)::integer FROM ondot.tenant_running r WHERE r.tenant_no = $1::integer) AS running,
       EXISTS (
           SELECT FROM generate_series(0, 5) AS c(class) CROSS JOIN LATERAL (
               (SELECT r.ready_at FROM ondot.ready r
                WHERE r.pool_no = n.pool_no AND r.class = c.class::smallint AND r.tenant_no < $1
                ORDER BY r.tenant_no, r.ready_at LIMIT $4::integer)
               UNION ALL
               (SELECT r.ready_at FROM ondot.ready r
                WHERE r.pool_no = n.pool_no AND r.class = c.class::smallint AND r.tenant_no > $1
                ORDER BY r.tenant_no, r.ready_at LIMIT $4)
           ) other
           WHERE other.ready_at <= ondot.clock()
       ) AS others_wait,
       (SELECT coalesce(json_agg(json_build_array(o.name, h.slots) ORDER BY h.slots DESC, o.name), '[]')::text
        FROM (SELECT x.tenant_no, sum(x.slots) AS slots
              FROM ondot.worker w CROSS JOIN LATERAL jsonb_to_recordset(w.held) AS x(tenant_no integer, slots integer)
              WHERE w.state = 'ALIVE' AND n.pool_no = ANY (w.pool_nos) AND x.tenant_no <> $1
              GROUP BY x.tenant_no ORDER BY 2 DESC, 1 LIMIT $3::integer) h
        JOIN ondot.tenant o ON o.tenant_no = h.tenant_no) AS others
FROM unnest($2::integer[]) AS n(pool_no)
JOIN ondot.tenant t ON t.tenant_no = $1
LEFT JOIN ondot.tenant_limit l ON l.tenant_no = $1;

-- name: explain_workers :many
-- locks: none
-- The workers of these pools. A worker without a beat for the timeout counts as silent, even if no scheduler is there to mark
-- it lost.
-- $1 pool_nos, $2 seconds without a beat after which a worker is lost, $3 one slot in this many, and at least one, is for
-- suspects, $4 tenant_no: workers that do not serve it are only counted, if they are alive
SELECT p.pool_no,
       count(*) FILTER (WHERE w.state = 'ALIVE' AND NOT w.is_silent) AS alive,
       count(*) FILTER (WHERE w.state = 'DRAINING' AND NOT w.is_silent) AS draining,
       count(*) FILTER (WHERE w.state IN ('ALIVE', 'DRAINING') AND w.is_silent) AS silent,
       coalesce(sum(w.slots) FILTER (WHERE w.state = 'ALIVE' AND NOT w.is_silent), 0)::integer AS slots,
       coalesce(sum(w.running) FILTER (WHERE w.state = 'ALIVE' AND NOT w.is_silent), 0)::integer AS running,
       coalesce(sum(greatest(w.slots / $3::integer, 1)) FILTER (WHERE w.state = 'ALIVE' AND NOT w.is_silent), 0)::integer
           AS suspect_slots,
       max(w.beat_at) AS seen_at,
       (SELECT count(*) FROM ondot.worker o
        WHERE p.pool_no = ANY (o.pool_nos) AND NOT $4::integer = ANY (o.tenant_nos) AND o.state = 'ALIVE'
          AND o.beat_at >= ondot.clock() - make_interval(secs => $2)) AS for_others
FROM unnest($1::integer[]) AS p(pool_no)
LEFT JOIN (
    SELECT pool_nos, state, slots, running, beat_at,
           beat_at < ondot.clock() - make_interval(secs => $2::double precision) AS is_silent
    FROM ondot.worker WHERE tenant_nos IS NULL OR $4 = ANY (tenant_nos)
) w ON p.pool_no = ANY (w.pool_nos)
GROUP BY p.pool_no;

-- name: explain_suspects :many
-- locks: none        index: lease_worker, execution_pkey
-- How many suspects the workers of these pools run, of all pools and tenants: they share the slots.
-- $1 pool_nos, $2 the class of suspects
SELECT p.pool_no, count(*)::integer AS suspects
FROM unnest($1::integer[]) AS p(pool_no)
JOIN ondot.worker w ON p.pool_no = ANY (w.pool_nos) AND w.state = 'ALIVE'
JOIN ondot.lease l ON l.worker_id = w.id
CROSS JOIN LATERAL unnest(l.execution_ids) AS m(id)
JOIN ondot.execution e ON e.id = m.id AND e.worker_id = w.id AND e.state = 'RUNNING' AND e.class = $2::smallint
GROUP BY p.pool_no;

-- name: explain_queue :many
-- locks: none        index: ready_pkey
-- How many due executions of each class the queue serves before these.
-- $1 tenant_no, $2 ids, $3 pool_nos, $4 classes, $5 before_ats, $6 ceiling of the count
SELECT q.id, q.class, count(*) AS ahead
FROM unnest($2::uuid[], $3::integer[], $4::smallint[], $5::timestamptz[]) AS q(id, pool_no, class, before_at)
CROSS JOIN LATERAL (
    SELECT FROM ondot.ready r
    WHERE r.pool_no = q.pool_no AND r.class = q.class AND r.tenant_no = $1::integer
      AND r.ready_at <= ondot.clock() AND (r.ready_at, r.execution_id) < (q.before_at, q.id)
    LIMIT $6::integer
) r
GROUP BY q.id, q.class;

-- name: explain_job :one
-- locks: none        index: timer_pkey, execution_fire, execution_other, tenant_pkey
-- The state of a job, of its tenant and of the node that plans it, and whether everything is held. Its live executions are counted up to a limit.
-- $1 tenant_no, $2 job_id, $3 partition_no, $4 ceiling of the count, $5 the job's pool
SELECT nullif(t.next_fire_at, 'infinity') AS timer_at, t.fired_through, t.fires_left, n.host AS node,
       (SELECT count(*) FROM ondot.node n WHERE ondot.is_node_alive(n.expires_at, n.beat_at)) AS nodes,
       (SELECT max(beat_at) FROM ondot.node) AS node_seen_at,
       (SELECT min(a.coordination) FROM ondot.node a
        WHERE a.away_since IS NOT NULL AND a.beat_at > ondot.clock() - interval '30 seconds') AS away,
       live.count AS live, live.running,
       (SELECT held_at FROM ondot.lineage) AS held_at, (SELECT held_why FROM ondot.lineage) AS held_why,
       ondot.clock() AS now, o.name AS tenant, o.state = 'SUSPENDED' AS is_suspended,
       CASE WHEN '*' = ANY (o.pools) OR $5::text = ANY (o.pools) THEN NULL ELSE $5 END AS lost_pool
FROM ondot.partition p
JOIN ondot.tenant o ON o.tenant_no = $1::integer
LEFT JOIN ondot.node n ON n.id = p.owner AND ondot.is_node_alive(n.expires_at, n.beat_at)
LEFT JOIN ondot.timer t ON t.job_id = $2::uuid AND t.tenant_no = $1::integer
CROSS JOIN LATERAL (
    SELECT count(*) AS count, count(*) FILTER (WHERE state = 'RUNNING') AS running
    FROM (
        SELECT state FROM ondot.execution
        WHERE job_id = $2 AND tenant_no = $1 AND origin IN ('fire', 'backfill')
        UNION ALL
        SELECT state FROM ondot.execution
        WHERE job_id = $2 AND tenant_no = $1 AND origin NOT IN ('fire', 'backfill')
        LIMIT $4::integer
    ) e
) live
WHERE p.partition_no = $3::smallint;

-- name: find_oldest_live :many
-- locks: none        index: execution_fire, execution_other
-- The executions of a job that have not ended, oldest fire first.
-- $1 tenant_no, $2 job_id, $3 limit
SELECT id FROM (
    (SELECT id, fire_at FROM ondot.execution
     WHERE job_id = $2::uuid AND tenant_no = $1::integer AND origin IN ('fire', 'backfill')
     ORDER BY fire_at LIMIT $3::integer)
    UNION ALL
    (SELECT id, fire_at FROM ondot.execution
     WHERE job_id = $2 AND tenant_no = $1 AND origin NOT IN ('fire', 'backfill')
     ORDER BY fire_at LIMIT $3)
) e
ORDER BY fire_at, id LIMIT $3;

-- name: owed_of_job :many
-- locks: none        index: owed_job
-- $1 tenant_no, $2 job_id
SELECT from_at, to_at, origin, count, job_version AS schedule_version, newest_first FROM ondot.owed
WHERE job_id = $2::uuid AND tenant_no = $1::integer ORDER BY from_at;

-- name: explain_fire :one
-- locks: none        index: execution_fire, history_job, skipped_pkey, owed_job, job_version_pkey
-- The record of the fire nearest to an instant, and the version of the job in force then. A range is more specific than the
-- calendar's exclusions inside it, and has precedence.
-- $1 tenant_no, $2 job_id, $3 instant, $4 a fire within these seconds is the one that is meant, $5 no execution of such a
-- fire has a smaller id
WITH meant AS (
    SELECT $3::timestamptz - make_interval(secs => $4::double precision) AS from_at,
           $3 + make_interval(secs => $4) AS to_at
), execution AS (
    SELECT e.id, e.fire_at, e.ready_at, e.state, NULL AS reason FROM ondot.execution e, meant m
    WHERE e.job_id = $2::uuid AND e.tenant_no = $1::integer AND e.origin IN ('fire', 'backfill')
      AND e.fire_at BETWEEN m.from_at AND m.to_at
    UNION ALL
    SELECT h.id, h.fire_at, h.ready_at, h.state, h.reason FROM ondot.history h, meant m
    WHERE h.job_id = $2 AND h.tenant_no = $1 AND h.origin IN ('fire', 'backfill')
      AND h.fire_at BETWEEN m.from_at AND m.to_at AND h.id >= $5::uuid
), nearest AS (
    SELECT * FROM execution ORDER BY greatest(fire_at - $3, $3 - fire_at), id DESC LIMIT 1
), skipped AS (
    SELECT s.from_at, s.to_at, s.reason, s.count FROM ondot.skipped s, meant m
    WHERE s.job_id = $2 AND s.tenant_no = $1 AND s.from_at <= m.to_at AND s.to_at >= m.from_at
    ORDER BY s.reason = 'calendar', s.from_at DESC LIMIT 1
), owed AS (
    SELECT o.from_at, o.to_at, o.origin, o.count FROM ondot.owed o, meant m
    WHERE o.job_id = $2 AND o.tenant_no = $1 AND o.from_at <= m.to_at AND o.to_at >= m.from_at
    ORDER BY o.from_at LIMIT 1
)
SELECT n.id, n.fire_at, n.ready_at, n.state, n.reason,
       s.from_at AS skipped_from, s.to_at AS skipped_to, s.reason AS skipped_reason, s.count AS skipped_count,
       o.from_at AS owed_from, o.to_at AS owed_to, o.origin AS owed_origin, o.count AS owed_count,
       (SELECT v.version FROM ondot.job_version v
        WHERE v.job_id = $2 AND v.tenant_no = $1 AND v.created_at <= $3 ORDER BY v.version DESC LIMIT 1) AS job_version
FROM meant m
LEFT JOIN nearest n ON true
LEFT JOIN skipped s ON true
LEFT JOIN owed o ON true;
