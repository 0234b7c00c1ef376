-- ondot.rate_gate(of_gate, every_s, burst): the gate of a rate, by what it limits (a job or a key) and by the rate itself, as
-- model.gates. With two rates in one bucket each would overwrite the other's instant: a job that may start once an hour
-- started with every start of a fast one.
-- Callers: ondot.name_rates. Exists only for the release before.
CREATE OR REPLACE FUNCTION ondot.rate_gate(of_gate uuid, every_s double precision, burst integer) RETURNS uuid
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT md5(of_gate::text || '/' || round(every_s * 1e9)::bigint::text || '/' || burst::text)::uuid
$$;
