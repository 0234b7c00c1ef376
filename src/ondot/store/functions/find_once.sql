-- ondot.find_once(tenant, job): a one-time job of any day. The id is written into the text of the statement, so that only the
-- table of its day is planned and locked; a join would open every day's.
-- Callers: functions/labels_of.sql, sql/search.sql.
CREATE OR REPLACE FUNCTION ondot.find_once(tenant integer, job uuid) RETURNS TABLE (name text, labels jsonb, spec json)
    LANGUAGE plpgsql STABLE ROWS 1 AS $$
BEGIN
    RETURN QUERY EXECUTE format('SELECT o.name, o.labels, o.spec FROM ondot.job_once o WHERE o.id = %L AND o.tenant_no = %s',
                                job, tenant);
END $$;
