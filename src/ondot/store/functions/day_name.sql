-- ondot.day_name(parent_name, day): the name of one day's partition, such as history_20301231.
-- Callers: ondot.add_days, ondot.remove_days.
CREATE OR REPLACE FUNCTION ondot.day_name(parent_name text, day date) RETURNS text LANGUAGE sql IMMUTABLE STRICT
    AS $$ SELECT parent_name || '_' || to_char(day, 'YYYYMMDD') $$;
