-- fragment: is_definition
(b.key IS NOT NULL OR v.spec #>> '{schedule,when,kind}' <> 'once')

-- fragment: has_state
CASE $4::text
    WHEN 'PAUSED' THEN b.state = 'PAUSED'
    WHEN 'DELETED' THEN b.state = 'DELETED'
    WHEN 'ACTIVE' THEN b.state = 'ACTIVE' AND ondot.is_live(b.id)
    WHEN 'ENDED' THEN b.state = 'ACTIVE' AND NOT ondot.is_live(b.id)
    ELSE b.state <> 'DELETED' END

-- name: list_definitions :many
-- index: job_pkey or job_tenant, backwards
-- Jobs that recur or have a key, newest first. A one-time job that was changed is among the jobs too, and is left out.
-- $1 tenant_no, $2 before id, $3 limit, $4 state
SELECT j.*, t.next_fire_at AS timer_at, live.count AS live, live.next_fire_at AS planned_at, ondot.clock() AS now
FROM (SELECT b.id, b.key, b.name, b.state, b.state_reason, b.version, b.pool_no, b.created_at, b.updated_at, v.spec
      FROM ondot.job b JOIN ondot.job_version v ON v.job_id = b.id AND v.version = b.version
      WHERE b.tenant_no = $1::integer AND b.id < $2::uuid AND {{is_definition}} AND {{has_state}}
      ORDER BY b.id DESC LIMIT $3::integer) j
LEFT JOIN ondot.timer t ON t.job_id = j.id AND t.next_fire_at < 'infinity'
CROSS JOIN LATERAL ondot.live_executions(j.id) live
ORDER BY j.id DESC;

-- name: list_definitions_by_name :many
-- index: job_name
-- $1 tenant_no, $2 and $3 the name and id of the last one of the page before, $4 state, $5 limit
SELECT j.*, t.next_fire_at AS timer_at, live.count AS live, live.next_fire_at AS planned_at, ondot.clock() AS now
FROM (SELECT b.id, b.key, b.name, b.state, b.state_reason, b.version, b.pool_no, b.created_at, b.updated_at, v.spec
      FROM ondot.job b JOIN ondot.job_version v ON v.job_id = b.id AND v.version = b.version
      WHERE b.tenant_no = $1::integer AND b.name >= $2::text AND (b.name, b.id) > ($2, $3::uuid)
        AND {{is_definition}} AND {{has_state}}
      ORDER BY b.name, b.id LIMIT $5::integer) j
LEFT JOIN ondot.timer t ON t.job_id = j.id AND t.next_fire_at < 'infinity'
CROSS JOIN LATERAL ondot.live_executions(j.id) live
ORDER BY j.name, j.id;

-- name: latest_runs :many
-- index: execution_fire, execution_other, history_job
-- The latest runs of each of these jobs: those that ended in a range of ids, and those that have started. Of live ones
-- the earliest are looked at: the rest of a backlog waits behind them.
-- $1 tenant_no, $2 job_ids, $3 from id, $4 before id, $5 the most of one job
SELECT j.id AS job_id, r.id, r.state, r.fire_at, r.started_at, r.ended_at
FROM unnest($2::uuid[]) AS j (id)
CROSS JOIN LATERAL (
    SELECT * FROM (
        (SELECT id, state, fire_at, started_at, NULL::timestamptz AS ended_at, attempt_no FROM ondot.execution
         WHERE job_id = j.id AND tenant_no = $1::integer AND origin IN ('fire', 'backfill')
         ORDER BY fire_at LIMIT $5::integer)
        UNION ALL
        (SELECT id, state, fire_at, started_at, NULL, attempt_no FROM ondot.execution
         WHERE job_id = j.id AND tenant_no = $1 AND origin NOT IN ('fire', 'backfill')
         ORDER BY fire_at LIMIT $5)
        UNION ALL
        (SELECT id, state, fire_at, started_at, ended_at, 1 FROM ondot.history
         WHERE job_id = j.id AND tenant_no = $1 AND id >= $3::uuid AND id < $4::uuid
         ORDER BY fire_at DESC LIMIT $5)
    ) found
    WHERE attempt_no > 0
    ORDER BY fire_at DESC, id DESC LIMIT $5
) r;
