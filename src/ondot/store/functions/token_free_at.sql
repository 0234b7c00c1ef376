-- ondot.token_free_at(token_at, stage, instant): when the next token of a bucket may be taken; `instant` if at once.
-- Callers: ondot.admit.
CREATE OR REPLACE FUNCTION ondot.token_free_at(token_at timestamptz, stage jsonb, instant timestamptz) RETURNS timestamptz
    LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(instant, ondot.token_full_at(token_at, stage, instant) - make_interval(
        secs => (ondot.token_burst(stage) - 1) * (stage->>'every_s')::double precision))
$$;
