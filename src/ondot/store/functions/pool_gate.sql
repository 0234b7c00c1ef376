-- ondot.pool_gate(pool_no): the gate id under which the slots of a limited pool are held.
-- Callers: sql/queue.sql, sql/pools.sql, sql/outcomes.sql, sql/explain.sql, sql/check.sql.
CREATE OR REPLACE FUNCTION ondot.pool_gate(pool_no integer) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$ SELECT lpad(to_hex(pool_no), 32, '0')::uuid $$;
