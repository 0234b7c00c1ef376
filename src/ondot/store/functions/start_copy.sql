-- ondot.start_copy(parent_name, source_names, days, cutoff, tenant_nos, cutoffs): starts the rewriting of neighbouring
-- partitions of a table that is cut by day into one. Creates the empty copy, and from here on enters what is written to the
-- sources. Raises kept_from, too: a transaction that holds the row of `history` in day_table shared still sees the instant before.
-- Callers: sql/day_rewrite.sql, which sets lock_timeout in its transaction.
-- Locks: the row of day_table, then each source against writers for a moment. Readers, a dump too, go on.
CREATE OR REPLACE FUNCTION ondot.start_copy(parent_name text, source_names text[], days integer, cutoff timestamptz,
                                            tenant_nos integer[], cutoffs timestamptz[]) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    cut ondot.day_table;
    copy_name text := parent_name || '_copy';
    source text;
    bounds text[];
    from_bound uuid;
    before_bound uuid;
    bytes bigint := 0;
BEGIN
    SELECT * INTO STRICT cut FROM ondot.day_table WHERE parent = parent_name FOR UPDATE;
    IF EXISTS (SELECT FROM ondot.day_copy c WHERE c.parent = parent_name) THEN
        RETURN false;
    END IF;
    -- Of the audit log too: entries before it are not missing, they are gone.
    INSERT INTO ondot.kept_from AS k (tenant_no, at)
    SELECT t.tenant_no, coalesce(c.at, cutoff)
    FROM (SELECT t.tenant_no FROM ondot.tenant t WHERE t.state <> 'DELETED' UNION SELECT 0) t
    LEFT JOIN unnest(tenant_nos, cutoffs) AS c(tenant_no, at) ON c.tenant_no = t.tenant_no
    ON CONFLICT (tenant_no) DO UPDATE SET at = excluded.at WHERE k.at < excluded.at;
    FOREACH source IN ARRAY source_names LOOP
        -- FOR VALUES FROM ('…') TO ('…'), or FROM (MINVALUE)
        SELECT regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM \((?:''(.+)''|MINVALUE)\) TO \(''(.+)''\)') INTO bounds
        FROM pg_class c WHERE c.oid = format('ondot.%I', source)::regclass;
        IF bounds IS NULL OR before_bound <> bounds[1]::uuid THEN
            RETURN false;  -- it is not what the caller saw
        END IF;
        IF before_bound IS NULL THEN
            from_bound := bounds[1]::uuid;
        END IF;
        before_bound := bounds[2]::uuid;
        bytes := bytes + pg_total_relation_size(format('ondot.%I', source)::regclass);
        EXECUTE format('CREATE TRIGGER day_touched AFTER INSERT OR UPDATE OR DELETE ON ondot.%I FOR EACH ROW'
                       ' EXECUTE FUNCTION ondot.day_touched(%L, %L)', source, parent_name, cut.id_column);
    END LOOP;
    EXECUTE format('CREATE TABLE ondot.%I (LIKE ondot.%I INCLUDING ALL)', copy_name, parent_name);
    -- It proves the bounds, so that the attach reads no row.
    EXECUTE format('ALTER TABLE ondot.%I ADD CONSTRAINT day_bounds CHECK (%I < %L%s)', copy_name, cut.id_column, before_bound,
                   CASE WHEN from_bound IS NULL THEN '' ELSE format(' AND %I >= %L', cut.id_column, from_bound) END);
    INSERT INTO ondot.day_copy (parent, sources, copy, from_id, before_id, days, cutoff, tenant_nos, cutoffs, bytes_before)
    VALUES (parent_name, source_names, copy_name, from_bound, before_bound, days, cutoff, tenant_nos, cutoffs, bytes);
    RETURN true;
END $$;
