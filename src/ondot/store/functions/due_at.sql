-- ondot.due_at(id, fire_at): when an execution was due: its fire, or when it was created if that was later (a backfill, a
-- late plan). It never changes, and is at most the horizon after the instant of the id. Lists of executions are ordered by
-- it: by id, an execution that ran 13 s ago would be listed before one that ran 4 s ago, because fires are planned ahead.
-- Callers: sql/overview.sql, sql/executions.sql.
-- PostgreSQL 15 and 16 have no function for the instant of a UUIDv7; the one of 17 takes a fifth of the time.
DO $$
DECLARE
    by_hand CONSTANT text := $q$to_timestamp(('x' || left(translate(id::text, '-', ''), 12))::bit(48)::bigint / 1000.0)$q$;
    instant CONSTANT text := CASE WHEN current_setting('server_version_num')::integer >= 170000
                                  THEN 'coalesce(uuid_extract_timestamp(id), ' || by_hand || ')' ELSE by_hand END;
BEGIN
    EXECUTE 'CREATE OR REPLACE FUNCTION ondot.due_at(id uuid, fire_at timestamptz) RETURNS timestamptz'
            || format(' LANGUAGE sql IMMUTABLE PARALLEL SAFE AS %L', 'SELECT greatest(fire_at, ' || instant || ')');
END $$;
