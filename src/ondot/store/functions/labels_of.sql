-- ondot.labels_of(tenant, job): the labels of a job as history keeps them: NULL if it has none. `job` may be the id of a run,
-- as in the executions of its steps: then those of its workflow.
-- Callers: sql/transitions.sql, sql/search.sql.
CREATE OR REPLACE FUNCTION ondot.labels_of(tenant integer, job uuid) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_labels jsonb;
    id_of_job uuid := coalesce((SELECT r.job_id FROM ondot.run r WHERE r.id = job AND r.tenant_no = tenant), job);
BEGIN
    SELECT nullif(b.labels, '{}') INTO found_labels FROM ondot.job b WHERE b.id = id_of_job AND b.tenant_no = tenant;
    IF NOT FOUND THEN
        SELECT nullif(o.labels, '{}') INTO found_labels FROM ondot.find_once(tenant, id_of_job) o;
    END IF;
    RETURN found_labels;
END $$;
