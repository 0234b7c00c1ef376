-- ondot.stand_in_line(ids): executions take their place: in the line before the first gate that they have not passed, or in
-- the queue if they have passed all. Nothing enters the queue with an instant of the past.
-- Callers: ondot.gated_changed.
-- Locks: gates by insert, then lines, each in the order of their keys.
-- A line is looked at from now on, not from when its executions were due: a recovered execution waits at its old place, and
-- the line would otherwise look as if it had not been served since then.
CREATE OR REPLACE FUNCTION ondot.stand_in_line(ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM ondot.make_gates_of(ids);
    -- Lines of all stages, so that admission, which holds gates, finds the next line and waits for no transaction.
    INSERT INTO ondot.line (gate_id, pool_no, tenant_no, is_rate, look_at)
    SELECT (s->>'gate')::uuid, n.pool_no, min(n.tenant_no), bool_or(s->>'kind' = 'rate'),
           min(CASE WHEN n.gate_id = (s->>'gate')::uuid THEN greatest(n.ready_at, ondot.clock()) ELSE 'infinity' END)
    FROM ondot.next_stages(ids) n JOIN ondot.gated d ON d.execution_id = n.execution_id, jsonb_array_elements(d.stages) s
    WHERE n.gate_id IS NOT NULL
    GROUP BY 1, 2 ORDER BY 1, 2
    ON CONFLICT (gate_id, pool_no) DO UPDATE SET look_at = least(line.look_at, excluded.look_at);
    INSERT INTO ondot.waiting (gate_id, pool_no, ready_at, execution_id, tenant_no, stage)
    SELECT gate_id, pool_no, ready_at, execution_id, tenant_no, stage
    FROM ondot.next_stages(ids) WHERE gate_id IS NOT NULL
    ON CONFLICT DO NOTHING;
    WITH through AS (
        UPDATE ondot.execution e SET ready_at = greatest(n.ready_at, ondot.clock()), class = n.class
        FROM ondot.next_stages(ids) n WHERE n.gate_id IS NULL AND e.id = n.execution_id
        RETURNING e.pool_no, e.class, e.tenant_no, e.ready_at, e.id
    )
    INSERT INTO ondot.ready (pool_no, class, tenant_no, ready_at, execution_id)
    SELECT pool_no, class, tenant_no, ready_at, id FROM through
    ON CONFLICT DO NOTHING;
END $$;
