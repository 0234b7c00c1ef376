-- ondot.drop_copy(parent_name): gives up a rewriting that cannot go on, because its sources are not what they were. Nothing is
-- lost: the sources are complete until the swap.
-- Callers: sql/day_rewrite.sql.
-- Locks: the row of day_copy, and the sources for a moment.
CREATE OR REPLACE FUNCTION ondot.drop_copy(parent_name text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    made ondot.day_copy;
    source text;
BEGIN
    SELECT * INTO made FROM ondot.day_copy WHERE parent = parent_name FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    FOREACH source IN ARRAY made.sources LOOP
        IF to_regclass(format('ondot.%I', source)) IS NOT NULL THEN
            EXECUTE format('DROP TRIGGER IF EXISTS day_touched ON ondot.%I', source);
        END IF;
    END LOOP;
    EXECUTE format('DROP TABLE IF EXISTS ondot.%I', made.copy);
    DELETE FROM ondot.day_touched WHERE parent = parent_name;
    DELETE FROM ondot.day_copy WHERE parent = parent_name;
    RETURN true;
END $$;
