-- ondot.live_executions(job): how many executions and owed ranges a job has, and the earliest of its planned fires that is
-- not due yet.
-- Callers: sql/jobs.sql.
CREATE OR REPLACE FUNCTION ondot.live_executions(job uuid) RETURNS TABLE (count bigint, next_fire_at timestamptz)
    LANGUAGE sql STABLE AS $$
    SELECT count(*), min(fire_at) FILTER (WHERE fire_at > ondot.clock() AND attempt_no = 0)
    FROM (
        SELECT fire_at, attempt_no FROM ondot.execution WHERE job_id = job AND origin IN ('fire', 'backfill')
        UNION ALL
        SELECT 'infinity', 1 FROM ondot.execution WHERE job_id = job AND origin NOT IN ('fire', 'backfill')
        UNION ALL
        SELECT 'infinity', 1 FROM ondot.owed WHERE job_id = job
    ) e
$$;
