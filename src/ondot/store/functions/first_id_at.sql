-- ondot.first_id_at(instant): the smallest UUIDv7 of an instant, as model.ids.first_id_at. It bounds a search by time.
-- Callers: ondot.day_starts, sql/retain.sql, sql/audit.sql.
CREATE OR REPLACE FUNCTION ondot.first_id_at(instant timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$ SELECT (lpad(to_hex(floor(extract(epoch FROM instant) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid $$;
