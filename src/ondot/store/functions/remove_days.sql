-- ondot.remove_days(parent_name, after, few): removes the last days after `after`, which a wrong clock created, as long as
-- each holds at most `few` rows. These rows move to the catch-all `_ahead`. Returns how many days it removed.
-- Callers: sql/days.sql, which sets lock_timeout in its transaction.
-- Locks: as ondot.add_days.
CREATE OR REPLACE FUNCTION ondot.remove_days(parent_name text, after date, few integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    cut ondot.day_table;
    ahead text := parent_name || '_ahead';
    last_day date;
    rows integer;
BEGIN
    SELECT * INTO STRICT cut FROM ondot.day_table WHERE parent = parent_name FOR UPDATE;
    after := greatest(after, cut.first_day - 1);
    last_day := cut.next_day - 1;
    IF last_day <= after THEN
        RETURN 0;
    END IF;
    EXECUTE format('ALTER TABLE ondot.%I DETACH PARTITION ondot.%I', parent_name, ahead);
    WHILE last_day > after LOOP
        EXECUTE format('SELECT count(*) FROM (SELECT FROM ondot.%I LIMIT %s) r', ondot.day_name(parent_name, last_day),
                       few + 1) INTO rows;
        EXIT WHEN rows > few;
        EXECUTE format('ALTER TABLE ondot.%I DETACH PARTITION ondot.%I', parent_name, ondot.day_name(parent_name, last_day));
        EXECUTE format('INSERT INTO ondot.%I SELECT * FROM ondot.%I', ahead, ondot.day_name(parent_name, last_day));
        EXECUTE format('DROP TABLE ondot.%I', ondot.day_name(parent_name, last_day));
        last_day := last_day - 1;
    END LOOP;
    EXECUTE format('ALTER TABLE ondot.%I ATTACH PARTITION ondot.%I FOR VALUES FROM (%L) TO (MAXVALUE)', parent_name, ahead,
                   ondot.day_starts(last_day + 1));
    UPDATE ondot.day_table SET next_day = last_day + 1 WHERE parent = parent_name;
    RETURN cut.next_day - 1 - last_day;
END $$;
