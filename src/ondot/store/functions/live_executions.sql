-- ondot.live_executions(job): 1 if a job has executions or owed ranges, else 0; and the earliest of its planned fires that
-- is not due yet. It reads a few rows, however long the job's backlog is.
-- Callers: sql/jobs.sql, sql/definitions.sql.
CREATE OR REPLACE FUNCTION ondot.live_executions(job uuid) RETURNS TABLE (count bigint, next_fire_at timestamptz)
    LANGUAGE sql STABLE AS $$
    SELECT (EXISTS (SELECT FROM ondot.execution WHERE job_id = job AND origin IN ('fire', 'backfill'))
            OR EXISTS (SELECT FROM ondot.execution WHERE job_id = job AND origin NOT IN ('fire', 'backfill'))
            OR EXISTS (SELECT FROM ondot.owed WHERE job_id = job))::integer::bigint,
           (SELECT fire_at FROM ondot.execution
            WHERE job_id = job AND origin IN ('fire', 'backfill') AND fire_at > ondot.clock() AND attempt_no = 0
            ORDER BY fire_at LIMIT 1)
$$;
