-- Lineage: the server, and the history of it, that this installation's rows were written on. One row. When another one
-- is found that may lack what was acknowledged, everything is held until a person has looked.

CREATE TABLE ondot.lineage (
    is_one         boolean PRIMARY KEY DEFAULT true CHECK (is_one),
    tenant_no      integer NOT NULL DEFAULT 0,
    system_id      text NOT NULL,            -- of the cluster, made by initdb
    timeline       integer NOT NULL,         -- a new one begins with each promotion and each recovery to a point in time
    table_id       bigint NOT NULL,          -- of this table: one that was restored from a dump is another
    is_synchronous boolean NOT NULL,         -- whether a standby had each commit before it was acknowledged
    since          timestamptz NOT NULL,
    accepted_at    timestamptz,              -- when a person last said that this is the right one
    held_at        timestamptz,
    held_why       text,
    CHECK ((held_at IS NULL) = (held_why IS NULL))
);

-- A line is looked at when somebody comes into it, and not since before that: what was recovered stands where it stood
-- when it was due, and would else look as if nobody had served it since.
CREATE OR REPLACE FUNCTION ondot.stand_in_line(ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO ondot.gate (id, tenant_no, kind, name)
    SELECT DISTINCT ON (1) (s->>'gate')::uuid, d.tenant_no, s->>'kind', s->>'name'
    FROM ondot.gated d, jsonb_array_elements(d.stages) s WHERE d.execution_id = ANY (ids)
    ORDER BY 1 ON CONFLICT (id) DO NOTHING;
    -- Of all stages: so that admission, which holds gates, finds the next line there and has to wait for no one.
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
