-- ondot.make_gates(of_tenant, stages): creates the gates of these stages that are missing.
-- Callers: sql/planned.sql.
-- Locks: inserts gates in the order of their ids.
CREATE OR REPLACE FUNCTION ondot.make_gates(of_tenant integer, stages jsonb) RETURNS void LANGUAGE sql AS $$
    INSERT INTO ondot.gate (id, token_at, tenant_no, kind, name)
    SELECT DISTINCT ON (1) (s->>'gate')::uuid, ondot.token_at_first(s), of_tenant, s->>'kind', s->>'name'
    FROM jsonb_array_elements(stages) s
    WHERE NOT EXISTS (SELECT FROM ondot.gate g WHERE g.id = (s->>'gate')::uuid)
    ORDER BY 1 ON CONFLICT (id) DO NOTHING
$$;
