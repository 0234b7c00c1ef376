-- ondot.object_keys_of_tenants(of_table, tenants, first_page, pages): the keys of the objects in storage whose rows are in a
-- range of pages of a day of `object`. They are deleted there before their rows are.
-- Callers: sql/removal.sql.
CREATE OR REPLACE FUNCTION ondot.object_keys_of_tenants(of_table oid, tenants integer[], first_page bigint, pages bigint)
    RETURNS SETOF text LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY EXECUTE format(
        'SELECT key FROM %s WHERE ctid >= %L::tid AND ctid < %L::tid AND tenant_no = ANY ($1) AND tenant_no > {{default_tenant}}',
        of_table::regclass, format('(%s,0)', first_page), format('(%s,0)', first_page + pages)) USING tenants;
EXCEPTION WHEN undefined_table OR syntax_error THEN  -- the day was dropped; its oid has no name any more
    RETURN;
END $$;
