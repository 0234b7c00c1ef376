-- What lists of executions are ordered by. An id says when an execution was made: a fire is planned up to the horizon
-- before it is due, so lists by id put what ran 13 s ago before what ran 4 s ago.

-- The instant of a UUIDv7. PostgreSQL 15 and 16 have no function for it; that of 17 takes a fifth of the time.
DO $$
DECLARE
    by_hand CONSTANT text := $q$to_timestamp(('x' || left(translate(id::text, '-', ''), 12))::bit(48)::bigint / 1000.0)$q$;
    instant CONSTANT text := CASE WHEN current_setting('server_version_num')::integer >= 170000
                                  THEN 'coalesce(uuid_extract_timestamp(id), ' || by_hand || ')' ELSE by_hand END;
BEGIN
    EXECUTE 'CREATE FUNCTION ondot.instant_of(id uuid) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE'
            || format(' AS %L', 'SELECT ' || instant);
    -- When an execution was due: its fire, or when it was made if that came later (a backfill, a late plan). It never
    -- changes, and is at most the horizon after the id.
    EXECUTE 'CREATE FUNCTION ondot.due_at(id uuid, fire_at timestamptz) RETURNS timestamptz'
            || format(' LANGUAGE sql IMMUTABLE PARALLEL SAFE AS %L', 'SELECT greatest(fire_at, ' || instant || ')');
END $$;
