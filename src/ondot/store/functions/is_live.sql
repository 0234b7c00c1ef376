-- ondot.is_live(job): whether a job has anything left to fire or to run, or waits for events. It separates ACTIVE from ENDED.
-- Callers: sql/jobs.sql, sql/retain.sql, sql/unique_keys.sql.
CREATE OR REPLACE FUNCTION ondot.is_live(job uuid) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM ondot.timer WHERE job_id = job AND next_fire_at < 'infinity')
        OR EXISTS (SELECT FROM ondot.execution WHERE job_id = job AND origin IN ('fire', 'backfill'))
        OR EXISTS (SELECT FROM ondot.execution WHERE job_id = job AND origin NOT IN ('fire', 'backfill'))
        OR EXISTS (SELECT FROM ondot.owed WHERE job_id = job)
        OR EXISTS (SELECT FROM ondot.subscription WHERE id = job)
$$;
