-- ondot.remove_rows_of_tenants(of_table, tenants, first_page, pages): removes the rows of tenants from a range of pages of a
-- table, and returns how many there were. Pages, because no index of most tables finds the rows of a tenant: an index on
-- tenant_no would cost every insert.
-- Callers: sql/removal.sql.
CREATE OR REPLACE FUNCTION ondot.remove_rows_of_tenants(of_table oid, tenants integer[], first_page bigint, pages bigint)
    RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    removed bigint;
BEGIN
    EXECUTE format('DELETE FROM %s WHERE ctid >= %L::tid AND ctid < %L::tid AND tenant_no = ANY ($1) AND tenant_no > {{default_tenant}}',
                   of_table::regclass, format('(%s,0)', first_page), format('(%s,0)', first_page + pages)) USING tenants;
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
EXCEPTION WHEN undefined_table OR syntax_error THEN  -- the day was dropped; its oid has no name any more
    RETURN 0;
END $$;
