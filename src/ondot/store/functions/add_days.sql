-- ondot.add_days(parent_name, through): gives one table a partition for every day up to `through`, cut from the catch-all
-- `_ahead`. Returns how many it added.
-- Callers: sql/days.sql, which sets lock_timeout in its transaction.
-- Locks: the row of day_table, then the parent once for all days, not once a day. The detach waits for every statement that
-- uses the table, and new statements wait behind it, so the new tables are created before it.
CREATE OR REPLACE FUNCTION ondot.add_days(parent_name text, through date) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    cut ondot.day_table;
    ahead text := parent_name || '_ahead';
    day date;
BEGIN
    SELECT * INTO STRICT cut FROM ondot.day_table WHERE parent = parent_name FOR UPDATE;
    IF through < cut.next_day THEN
        RETURN 0;
    END IF;
    FOR day IN SELECT cut.next_day + n FROM generate_series(0, through - cut.next_day) AS n LOOP
        EXECUTE format('CREATE TABLE ondot.%I (LIKE ondot.%I INCLUDING ALL)', ondot.day_name(parent_name, day), parent_name);
    END LOOP;
    EXECUTE format('ALTER TABLE ondot.%I DETACH PARTITION ondot.%I', parent_name, ahead);
    FOR day IN SELECT cut.next_day + n FROM generate_series(0, through - cut.next_day) AS n LOOP
        EXECUTE format('WITH moved AS (DELETE FROM ondot.%1$I WHERE %2$I < %3$L RETURNING *)'
                       ' INSERT INTO ondot.%4$I SELECT * FROM moved',
                       ahead, cut.id_column, ondot.day_starts(day + 1), ondot.day_name(parent_name, day));
        EXECUTE format('ALTER TABLE ondot.%I ATTACH PARTITION ondot.%I FOR VALUES FROM (%L) TO (%L)', parent_name,
                       ondot.day_name(parent_name, day), ondot.day_starts(day), ondot.day_starts(day + 1));
    END LOOP;
    EXECUTE format('ALTER TABLE ondot.%I ATTACH PARTITION ondot.%I FOR VALUES FROM (%L) TO (MAXVALUE)', parent_name, ahead,
                   ondot.day_starts(through + 1));
    UPDATE ondot.day_table SET next_day = through + 1 WHERE parent = parent_name;
    RETURN through + 1 - cut.next_day;
END $$;
