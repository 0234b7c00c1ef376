-- ondot.swap_copy(parent_name): puts a complete copy in the place of its sources, with the rows that were written to them
-- meanwhile, and drops the sources. Those of `object` with rows are kept apart, as <name>_gone: they name what is deleted from
-- storage next. Returns how many rows were removed, or NULL if there is no complete copy.
-- Callers: sql/day_rewrite.sql, which sets lock_timeout in its transaction.
-- Locks: the row of day_copy, the row of day_table, then the whole parent for some milliseconds: nothing is read but what was
-- touched.
CREATE OR REPLACE FUNCTION ondot.swap_copy(parent_name text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    made ondot.day_copy;
    cut ondot.day_table;
    source text;
    name text;
    kept bigint;
    touched uuid[];
    late bigint := 0;
    has_rows boolean;
    rows bigint;
    columns text;
BEGIN
    SELECT * INTO made FROM ondot.day_copy WHERE parent = parent_name AND is_copied FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT * INTO STRICT cut FROM ondot.day_table WHERE parent = parent_name FOR UPDATE;
    name := made.sources[1];  -- days that are merged into _past come after it
    -- The parent stops those that write through it, the sources those that write to a day itself.
    EXECUTE format('LOCK TABLE ONLY ondot.%I IN ACCESS EXCLUSIVE MODE', parent_name);
    FOREACH source IN ARRAY made.sources LOOP
        EXECUTE format('LOCK TABLE ondot.%I IN ACCESS EXCLUSIVE MODE', source);
    END LOOP;
    SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) INTO columns FROM pg_attribute
    WHERE attrelid = format('ondot.%I', parent_name)::regclass AND attnum > 0 AND NOT attisdropped;
    SELECT array_agg(DISTINCT id) INTO touched FROM ondot.day_touched WHERE parent = parent_name;
    IF parent_name = 'job_once' THEN
        -- Jobs that were run again after their part was copied: that writes no row of theirs.
        EXECUTE format('SELECT $1 || array_agg(DISTINCT e.job_id) FROM ondot.execution e'
                       ' WHERE e.job_id >= $2 AND e.job_id < $3 AND e.origin NOT IN (''fire'', ''backfill'')'
                       ' AND NOT EXISTS (SELECT FROM ondot.%I c WHERE c.id = e.job_id)', made.copy)
        INTO touched USING touched, coalesce(made.from_id, '00000000-0000-0000-0000-000000000000'), made.before_id;
    END IF;
    IF touched IS NOT NULL THEN
        EXECUTE format('DELETE FROM ondot.%I WHERE %I = ANY ($1)', made.copy, cut.id_column) USING touched;
        GET DIAGNOSTICS rows = ROW_COUNT;
        late := -rows;
    END IF;
    FOREACH source IN ARRAY made.sources LOOP
        IF touched IS NOT NULL THEN
            EXECUTE format('INSERT INTO ondot.%1$I (%2$s) SELECT %2$s FROM ondot.%3$I WHERE %4$I = ANY ($1)', made.copy, columns,
                           source, cut.id_column) USING touched;
            GET DIAGNOSTICS rows = ROW_COUNT;
            late := late + rows;
        END IF;
        EXECUTE format('ALTER TABLE ondot.%I DETACH PARTITION ondot.%I', parent_name, source);
        -- A list of no objects is not needed. Most days are one: each would be a table to make, to read and to drop.
        EXECUTE format('SELECT EXISTS (SELECT FROM ondot.%I)', source) INTO has_rows;
        IF parent_name = 'object' AND has_rows THEN
            EXECUTE format('DROP TRIGGER day_touched ON ondot.%I', source);
            EXECUTE format('ALTER TABLE ondot.%I RENAME TO %I', source,
                           source || '_gone_' || floor(extract(epoch FROM clock_timestamp()) * 1000));
        ELSE
            EXECUTE format('DROP TABLE ondot.%I', source);
        END IF;
        DELETE FROM ondot.day_rewritten r WHERE r.parent = parent_name AND r.name = source;
    END LOOP;
    EXECUTE format('ALTER TABLE ondot.%I RENAME TO %I', made.copy, name);
    EXECUTE format('ALTER TABLE ondot.%I ATTACH PARTITION ondot.%I FOR VALUES FROM (%s) TO (%L)', parent_name, name,
                   coalesce(quote_literal(made.from_id), 'MINVALUE'), made.before_id);
    EXECUTE format('ALTER TABLE ondot.%I DROP CONSTRAINT day_bounds', name);
    IF made.from_id IS NULL THEN
        UPDATE ondot.day_table d SET first_day = d.first_day + cardinality(made.sources) - 1 WHERE d.parent = parent_name;
    END IF;
    kept := (SELECT coalesce(sum(value::bigint), 0) FROM jsonb_each_text(made.reasons)) + late;
    INSERT INTO ondot.day_rewritten (parent, name, days, at, took_s, removed, kept, bytes_before, bytes_after, reasons)
    VALUES (parent_name, name, made.days, ondot.clock(), extract(epoch FROM clock_timestamp() - made.started_at),
            made.found - kept, kept, made.bytes_before, pg_total_relation_size(format('ondot.%I', name)::regclass),
            made.reasons);
    DELETE FROM ondot.day_touched WHERE parent = parent_name;
    DELETE FROM ondot.day_copy WHERE parent = parent_name;
    RETURN greatest(made.found - kept, 0);
END $$;
