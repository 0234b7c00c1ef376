-- ondot.next_stages(ids): the first stage of each execution that it has not passed, which is one without a slot. A rate
-- gives no slot: each attempt takes a token. gate_id is NULL if all stages are passed.
-- Callers: ondot.stand_in_line, ondot.gated_changed.
CREATE OR REPLACE FUNCTION ondot.next_stages(ids uuid[])
    RETURNS TABLE (execution_id uuid, ready_at timestamptz, tenant_no integer, pool_no integer, class smallint,
                   gate_id uuid, kind text, stage smallint)
    LANGUAGE sql STABLE AS $$
    SELECT d.execution_id, d.ready_at, d.tenant_no, d.pool_no, d.class, s.gate_id, s.kind, s.stage
    FROM ondot.gated d
    LEFT JOIN LATERAL (
        SELECT (e.stage->>'gate')::uuid AS gate_id, e.stage->>'kind' AS kind, (e.no - 1)::smallint AS stage
        FROM jsonb_array_elements(d.stages) WITH ORDINALITY AS e(stage, no)
        WHERE NOT EXISTS (SELECT FROM ondot.slot h
                          WHERE h.gate_id = (e.stage->>'gate')::uuid AND h.execution_id = d.execution_id)
        ORDER BY e.no LIMIT 1
    ) s ON true
    WHERE d.execution_id = ANY (ids)
$$;
