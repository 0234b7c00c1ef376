-- ondot.token_full_at(token_at, stage, instant): when a token bucket (GCRA) is full again. It is never emptier than empty:
-- after the clock was set back its instant is far off, and the next token arrives after one length of the bucket at the
-- latest. Treating it as full would start one more than the rate allows.
-- Callers: the other token functions, ondot.admit.
CREATE OR REPLACE FUNCTION ondot.token_full_at(token_at timestamptz, stage jsonb, instant timestamptz) RETURNS timestamptz
    LANGUAGE sql IMMUTABLE AS $$
    SELECT least(greatest(token_at, instant), instant + make_interval(
        secs => ondot.token_burst(stage) * (stage->>'every_s')::double precision))
$$;
