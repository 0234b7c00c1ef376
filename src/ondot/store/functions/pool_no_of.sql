-- ondot.pool_no_of(tenant, pool): the number of a pool. Pools belong to the installation, and a tenant has a list of those that
-- it may name. Only one that may name every pool creates one by naming it, as store.pools does.
-- Callers: ondot.submit_spec, ondot.submit_specs.
CREATE OR REPLACE FUNCTION ondot.pool_no_of(tenant integer, pool text) RETURNS integer
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_no integer;
    granted text[];
BEGIN
    SELECT t.pools, (SELECT p.pool_no FROM ondot.pool p WHERE p.name = pool) INTO granted, found_no
    FROM ondot.tenant t WHERE t.tenant_no = tenant;
    IF NOT '*' = ANY (granted) AND (found_no IS NULL OR pool <> ALL (granted)) THEN
        RAISE EXCEPTION 'Unknown pool "%".', pool USING ERRCODE = 'invalid_parameter_value',
            HINT = format('Use one of: %s; or ask an owner of the installation to grant it.', array_to_string(granted, ', '));
    ELSIF found_no IS NULL THEN
        INSERT INTO ondot.pool (name) VALUES (pool) ON CONFLICT DO NOTHING;
        SELECT p.pool_no INTO found_no FROM ondot.pool p WHERE p.name = pool;
    END IF;
    IF found_no IS NULL THEN
        RAISE EXCEPTION 'The pool "%" was created by another transaction, which this one cannot see.', pool
            USING ERRCODE = 'serialization_failure', HINT = 'Try the transaction again.';
    END IF;
    RETURN found_no;
END $$;
