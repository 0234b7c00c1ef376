-- ondot.lock_gates(ids): locks gates, then the lines before them, each in the order of their keys. This is the only order in
-- which any transaction waits for several of them.
-- Callers: ondot.gated_changed, sql/planned.sql, sql/endings.sql, sql/dead_letters.sql, sql/check.sql.
CREATE OR REPLACE FUNCTION ondot.lock_gates(ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM ondot.gate WHERE id = ANY (ids) ORDER BY id FOR UPDATE;
    PERFORM FROM ondot.line WHERE gate_id = ANY (ids) ORDER BY gate_id, pool_no FOR UPDATE;
END $$;
