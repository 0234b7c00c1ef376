-- ondot.day_starts(day): the first id of a day in UTC, which is the bound of its partition.
-- Callers: the migrations that create partitioned tables, ondot.add_days, ondot.remove_days.
CREATE OR REPLACE FUNCTION ondot.day_starts(day date) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT
    AS $$ SELECT ondot.first_id_at(day::timestamp AT TIME ZONE 'UTC') $$;
