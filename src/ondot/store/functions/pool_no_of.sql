-- ondot.pool_no_of(tenant, pool): the number of a pool. Pools belong to the installation. Only the first tenant creates
-- one by naming it, as store.pools does.
-- Callers: ondot.submit_spec, ondot.submit_specs.
CREATE OR REPLACE FUNCTION ondot.pool_no_of(tenant integer, pool text) RETURNS integer
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_no integer;
BEGIN
    SELECT p.pool_no INTO found_no FROM ondot.pool p WHERE p.name = pool;
    IF found_no IS NULL AND tenant <> {{default_tenant}} THEN
        RAISE EXCEPTION 'Unknown pool "%".', pool USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Use a pool of this installation, or ask its owner to create it.';
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
