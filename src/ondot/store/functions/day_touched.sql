-- ondot.day_touched(): enters the id of a row that was written to a day while the day is copied. Arguments of the trigger: the
-- table that is cut by day, and its column with the id.
-- Callers: the trigger that ondot.start_copy creates on a day's table.
CREATE OR REPLACE FUNCTION ondot.day_touched() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO ondot.day_touched (parent, id)
    VALUES (TG_ARGV[0], ((CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END) ->> TG_ARGV[1])::uuid);
    RETURN NULL;
END $$;
