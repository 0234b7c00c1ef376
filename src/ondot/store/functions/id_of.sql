-- ondot.id_of(tick): the UUIDv7 of a tick, 4096 of which are a millisecond, as model.ids: 48 bits of milliseconds, 12 below
-- them (RFC 9562, method 3), 62 random ones. Ids of one statement sort in the order in which they were made.
-- Callers: ondot.new_id, ondot.submit_specs.
CREATE OR REPLACE FUNCTION ondot.id_of(tick bigint) RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT (lpad(to_hex(tick >> 12), 12, '0') || '7' || lpad(to_hex(tick & 4095), 3, '0')
            -- A random UUID has the two bits of the variant in the same place.
            || right(replace(gen_random_uuid()::text, '-', ''), 16))::uuid
$$;
