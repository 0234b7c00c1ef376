-- ondot.token_taken(token_at, stage, instant): when the bucket is full again after one more token is taken.
-- Callers: ondot.admit.
CREATE OR REPLACE FUNCTION ondot.token_taken(token_at timestamptz, stage jsonb, instant timestamptz) RETURNS timestamptz
    LANGUAGE sql IMMUTABLE AS $$
    SELECT ondot.token_full_at(token_at, stage, instant) + make_interval(secs => (stage->>'every_s')::double precision)
$$;
