-- ondot.make_gates_of(ids): creates the gates that are missing for these executions.
-- Callers: ondot.stand_in_line, ondot.gated_changed, ondot.admit.
-- Locks: inserts gates in the order of their ids.
CREATE OR REPLACE FUNCTION ondot.make_gates_of(ids uuid[]) RETURNS void LANGUAGE sql AS $$
    INSERT INTO ondot.gate (id, token_at, tenant_no, kind, name)
    SELECT DISTINCT ON (1) (s->>'gate')::uuid, ondot.token_at_first(s), d.tenant_no, s->>'kind', s->>'name'
    FROM ondot.gated d, jsonb_array_elements(d.stages) s
    WHERE d.execution_id = ANY (ids) AND NOT EXISTS (SELECT FROM ondot.gate g WHERE g.id = (s->>'gate')::uuid)
    ORDER BY 1 ON CONFLICT (id) DO NOTHING
$$;
