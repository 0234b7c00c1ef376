-- ondot.tenant_no_of(tenant, jobs, payload_bytes): the number of a tenant that may create this many jobs with payloads of at
-- most this size. Raises if it is suspended, or if a quota does not allow it. The number of its live jobs is counted each
-- second, so that quota may be exceeded by what is created in a second. Rates are quotas of the API only.
-- Callers: ondot.submit_spec, ondot.submit_specs.
CREATE OR REPLACE FUNCTION ondot.tenant_no_of(tenant text, jobs integer, payload_bytes integer) RETURNS integer
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_no integer;
    found_state text;
    quotas jsonb;
BEGIN
    SELECT t.tenant_no, t.state, t.quotas INTO found_no, found_state, quotas
    FROM ondot.tenant t WHERE t.name = tenant AND t.state <> 'DELETED' AND t.tenant_no > 0;
    IF found_no IS NULL THEN
        RAISE EXCEPTION 'There is no tenant "%".', tenant USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Leave it out where there is only one.';
    ELSIF found_state <> 'ACTIVE' THEN
        RAISE EXCEPTION 'The tenant "%" is suspended.', tenant USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'Ask an owner of the installation to resume it.';
    ELSIF quotas = '{}' THEN
        RETURN found_no;
    ELSIF payload_bytes > (quotas->'payload_bytes')::bigint THEN
        RAISE EXCEPTION 'A payload has % bytes, and the quota payload_bytes of the tenant "%" is %.',
            payload_bytes, tenant, quotas->'payload_bytes' USING ERRCODE = 'program_limit_exceeded',
            HINT = 'Send less, for example the address of the data, or ask an owner of the installation for more.';
    ELSIF quotas ? 'jobs' AND jobs + coalesce((SELECT c.jobs FROM ondot.job_count c WHERE c.tenant_no = found_no), 0)
                              > (quotas->'jobs')::bigint THEN
        RAISE EXCEPTION 'The quota jobs of the tenant "%" is used up: % live jobs.', tenant, quotas->'jobs'
            USING ERRCODE = 'program_limit_exceeded',
                  HINT = 'Delete jobs or wait until some have ended, or ask an owner of the installation for more.';
    END IF;
    RETURN found_no;
END $$;
