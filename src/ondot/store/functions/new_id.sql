-- ondot.new_id(): a new UUIDv7 of ondot's clock.
-- Callers: ondot.submit_spec.
CREATE OR REPLACE FUNCTION ondot.new_id() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT ondot.id_of((extract(epoch FROM ondot.clock()) * 1000000)::bigint * 4096 / 1000)
$$;
