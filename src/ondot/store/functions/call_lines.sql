-- ondot.call_lines(gates): has the lines before these gates looked at now, where executions wait in them.
-- Callers: ondot.gated_changed, sql/check.sql. The caller has locked the gates (ondot.lock_gates).
CREATE OR REPLACE FUNCTION ondot.call_lines(gates uuid[]) RETURNS void LANGUAGE sql AS $$
    UPDATE ondot.line l SET look_at = least(l.look_at, ondot.clock())
    WHERE l.gate_id = ANY (gates)
      AND EXISTS (SELECT FROM ondot.waiting w WHERE w.gate_id = l.gate_id AND w.pool_no = l.pool_no)
$$;
