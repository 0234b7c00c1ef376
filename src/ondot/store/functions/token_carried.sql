-- ondot.token_carried(token_at, old_every_s, new_every_s): a bucket whose rate is changed lacks as many tokens as before,
-- and each of them takes as long as the new rate says.
-- Callers: sql/planned.sql, sql/pools.sql.
CREATE OR REPLACE FUNCTION ondot.token_carried(token_at timestamptz, old_every_s double precision, new_every_s double precision)
    RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN old_every_s IS NULL OR new_every_s IS NULL THEN token_at
                ELSE ondot.clock() + greatest(token_at - ondot.clock(), interval '0') * (new_every_s / old_every_s) END
$$;
