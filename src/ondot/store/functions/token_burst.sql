-- ondot.token_burst(stage): how many tokens of a rate may be taken at once: its burst, or as many as arrive in 50 ms, so that
-- a worker that looks a few hundred times a second reaches any rate.
-- Callers: ondot.token_full_at, ondot.token_free_at.
CREATE OR REPLACE FUNCTION ondot.token_burst(stage jsonb) RETURNS double precision LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT greatest((stage->>'burst')::double precision, floor(0.05 / (stage->>'every_s')::double precision))
$$;
