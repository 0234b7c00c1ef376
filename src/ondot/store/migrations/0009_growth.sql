-- Growth: days are made many at a time, well ahead, and those that a wrong clock made are removed.

-- Gives one table partitions of their own for all days through one, cut off the catch-all ahead; returns how many. One
-- for all of them: the parent is locked once, not once a day. The caller's transaction sets lock_timeout: the detach waits
-- for every statement that is using the table, and new ones wait behind it. What can be made before that is.
CREATE FUNCTION ondot.add_days(parent_name text, through date) RETURNS integer LANGUAGE plpgsql AS $$
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

CREATE FUNCTION ondot.day_name(parent_name text, day date) RETURNS text LANGUAGE sql IMMUTABLE STRICT
    AS $$ SELECT parent_name || '_' || to_char(day, 'YYYYMMDD') $$;

-- Takes back the last days after one that hold nothing, or few rows, which go back into the catch-all; returns how many.
-- As add_days, the caller sets lock_timeout.
CREATE FUNCTION ondot.remove_days(parent_name text, after date, few integer) RETURNS integer LANGUAGE plpgsql AS $$
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

-- What has ended is removed by age, each kind by an index of its own, so that what lives is not looked at.

-- When housekeeping looks next whether the key still says anything: less and less often while its job lives.
ALTER TABLE ondot.claim ADD COLUMN look_at timestamptz NOT NULL DEFAULT ondot.clock();
CREATE INDEX claim_look ON ondot.claim (look_at);

-- Since when there is a newer version; later if something still named it when its age was over. NULL: it is in force.
ALTER TABLE ondot.job_version ADD COLUMN superseded_at timestamptz;
UPDATE ondot.job_version v SET superseded_at = ondot.clock() FROM ondot.job j WHERE j.id = v.job_id AND v.version < j.version;
CREATE INDEX job_version_superseded ON ondot.job_version (superseded_at) WHERE superseded_at IS NOT NULL;

CREATE INDEX job_deleted ON ondot.job (updated_at, id) WHERE state = 'DELETED';
-- Jobs with no fire left, by their last: ended ones, and those that are paused.
CREATE INDEX timer_over ON ondot.timer (fired_through, job_id) WHERE next_fire_at = 'infinity';
CREATE INDEX backfill_ended ON ondot.backfill (ended_at) WHERE ended_at IS NOT NULL;
