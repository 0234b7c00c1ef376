-- Rates: a bucket for each distinct rate, which is never emptier than empty; gates and lines that are there when somebody
-- comes to them; suspects that pass no rate while their worker has no room for suspects.

-- The gate of a rate has its id by what it limits, a job or a key, and by the rate itself: two rates in one bucket
-- overwrite each other's instant, and a job that may start once an hour started with every start of a fast one.
-- As model.gates makes it.
CREATE FUNCTION ondot.rate_gate(of_gate uuid, every_s double precision, burst integer) RETURNS uuid
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT md5(of_gate::text || '/' || round(every_s * 1e9)::bigint::text || '/' || burst::text)::uuid
$$;

-- Roles of the release before name a rate's gate by the job or key alone.
CREATE FUNCTION ondot.name_rates() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.stages := (
        SELECT jsonb_agg(CASE WHEN s ? 'every_s' AND NOT s ? 'of' THEN s || jsonb_build_object(
                   'of', s->'gate',
                   'gate', ondot.rate_gate((s->>'gate')::uuid, (s->>'every_s')::double precision, (s->>'burst')::integer))
               ELSE s END ORDER BY no)
        FROM jsonb_array_elements(NEW.stages) WITH ORDINALITY AS e(s, no)
    );
    RETURN NEW;
END $$;
CREATE TRIGGER gated_rates BEFORE INSERT OR UPDATE OF stages ON ondot.gated FOR EACH ROW
    WHEN (NEW.stages @? '$[*] ? (exists (@.every_s) && !exists (@.of))') EXECUTE FUNCTION ondot.name_rates();

-- A token bucket by the instant at which it is full again (GCRA). It is never emptier than empty: after the clock was set
-- back, its instant is far off, and the next token comes after one length of the bucket at the latest. To take it for full
-- would start one more than the rate allows.
CREATE OR REPLACE FUNCTION ondot.token_full_at(token_at timestamptz, stage jsonb, instant timestamptz) RETURNS timestamptz
    LANGUAGE sql IMMUTABLE AS $$
    SELECT least(greatest(token_at, instant), instant + make_interval(
        secs => ondot.token_burst(stage) * (stage->>'every_s')::double precision))
$$;

-- What a new bucket begins with: what its job or key had taken when all its rates had one bucket. That row is forgotten an
-- hour after it is full.
CREATE FUNCTION ondot.token_at_first(stage jsonb) RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT ondot.token_full_at(g.token_at, stage, ondot.clock()) FROM ondot.gate g
    WHERE g.id = (stage->>'of')::uuid AND g.token_at > ondot.clock()
$$;

-- A bucket whose rate is changed lacks as many tokens as before, each of which takes as long as the new rate says.
CREATE FUNCTION ondot.token_carried(token_at timestamptz, old_every_s double precision, new_every_s double precision)
    RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN old_every_s IS NULL OR new_every_s IS NULL THEN token_at
                ELSE ondot.clock() + greatest(token_at - ondot.clock(), interval '0') * (new_every_s / old_every_s) END
$$;

-- Makes the gates that are missing.
CREATE OR REPLACE FUNCTION ondot.make_gates(of_tenant integer, stages jsonb) RETURNS void LANGUAGE sql AS $$
    INSERT INTO ondot.gate (id, token_at, tenant_no, kind, name)
    SELECT DISTINCT ON (1) (s->>'gate')::uuid, ondot.token_at_first(s), of_tenant, s->>'kind', s->>'name'
    FROM jsonb_array_elements(stages) s
    WHERE NOT EXISTS (SELECT FROM ondot.gate g WHERE g.id = (s->>'gate')::uuid)
    ORDER BY 1 ON CONFLICT (id) DO NOTHING
$$;

-- Makes the gates that are missing of executions.
CREATE FUNCTION ondot.make_gates_of(ids uuid[]) RETURNS void LANGUAGE sql AS $$
    INSERT INTO ondot.gate (id, token_at, tenant_no, kind, name)
    SELECT DISTINCT ON (1) (s->>'gate')::uuid, ondot.token_at_first(s), d.tenant_no, s->>'kind', s->>'name'
    FROM ondot.gated d, jsonb_array_elements(d.stages) s
    WHERE d.execution_id = ANY (ids) AND NOT EXISTS (SELECT FROM ondot.gate g WHERE g.id = (s->>'gate')::uuid)
    ORDER BY 1 ON CONFLICT (id) DO NOTHING
$$;

CREATE OR REPLACE FUNCTION ondot.stand_in_line(ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM ondot.make_gates_of(ids);
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

CREATE OR REPLACE FUNCTION ondot.gated_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    ids uuid[];    -- who stands in line now: not what runs, which has only got other gates
    over uuid[];   -- who is gone
    gates uuid[];
BEGIN
    IF TG_OP = 'INSERT' THEN
        ids := ARRAY(SELECT c.execution_id FROM come c JOIN ondot.execution e ON e.id = c.execution_id
                     WHERE e.state <> 'RUNNING');
        IF ids <> '{}' THEN
            PERFORM ondot.stand_in_line(ids);
        END IF;
        RETURN NULL;
    END IF;
    IF TG_OP = 'DELETE' THEN
        ids := '{}';
        over := ARRAY(SELECT execution_id FROM gone);
        gates := ARRAY(SELECT (s->>'gate')::uuid FROM gone, jsonb_array_elements(stages) s);
    ELSIF NOT EXISTS (SELECT FROM come) THEN
        RETURN NULL;
    ELSE
        ids := ARRAY(SELECT c.execution_id FROM come c JOIN ondot.execution e ON e.id = c.execution_id
                     WHERE e.state <> 'RUNNING' AND NOT c.is_over);
        over := ARRAY(SELECT execution_id FROM come WHERE is_over);
        gates := ARRAY(SELECT (s->>'gate')::uuid FROM come, jsonb_array_elements(stages) s);
    END IF;
    -- Before any is locked: somebody who makes the same gate may wait for a line that is locked here.
    IF ids <> '{}' THEN
        PERFORM ondot.make_gates_of(ids);
    END IF;
    -- And those of before, if they have changed.
    gates := gates || ARRAY(SELECT gate_id FROM ondot.slot WHERE execution_id = ANY (ids || over)
                            UNION SELECT gate_id FROM ondot.waiting WHERE execution_id = ANY (ids || over));
    PERFORM ondot.lock_gates(gates);
    DELETE FROM ondot.slot WHERE execution_id = ANY (over);
    DELETE FROM ondot.slot h USING ondot.gated d
    WHERE h.execution_id = ANY (ids) AND d.execution_id = h.execution_id
      AND (NOT h.until_end OR NOT d.stages @> jsonb_build_array(jsonb_build_object('gate', h.gate_id)));
    -- Nobody waits at a gate and holds one beyond it: two who do so could wait for each other for ever.
    DELETE FROM ondot.slot h
    USING ondot.next_stages(ids) n JOIN ondot.gated d ON d.execution_id = n.execution_id,
          jsonb_array_elements(d.stages) WITH ORDINALITY AS e(stage, no)
    WHERE h.execution_id = n.execution_id AND h.gate_id = (e.stage->>'gate')::uuid AND e.no - 1 > n.stage;
    DELETE FROM ondot.waiting WHERE execution_id = ANY (ids || over);
    PERFORM ondot.call_lines(gates);
    IF ids <> '{}' THEN
        PERFORM ondot.stand_in_line(ids);
    END IF;
    IF TG_OP = 'UPDATE' AND over <> '{}' THEN
        DELETE FROM ondot.gated WHERE execution_id = ANY (over);
    END IF;
    RETURN NULL;
END $$;

-- One pass of admission at the gates before which work of these pools waits: at the rates, or at the others. Takes with
-- SKIP LOCKED and waits for nobody: whoever holds a gate or a line sees to it. At rates, no more start than `free`, and no
-- more of class suspect than `free_for_suspects` (NULL: as many). Returns what became of each:
--   ready    through its last gate, and in the queue
--   next     through this one, and in the line before the next
--   start    has its tokens, and is in a lane of its own (class 6), which the caller leases in this very transaction: a
--            token is taken when an attempt starts, not sooner
--   skip     a fire that found its job running, and is not to wait: its end is the caller's to write
--   replace  a fire that waited, and is overtaken by a newer one of a job that cancels what runs
--   cancel   an execution that runs, and has to make room
-- A call with three arguments, as roles of the release before make it, finds this one too.
DROP FUNCTION ondot.admit(integer[], boolean, integer);
CREATE FUNCTION ondot.admit(of_pools integer[], at_rates boolean, free integer, free_for_suspects integer DEFAULT NULL)
    RETURNS TABLE (execution_id uuid, verdict text, pool_no integer, tenant_no integer, ready_at timestamptz)
    LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    suspect CONSTANT smallint := 5;  -- the class
    soon CONSTANT interval := interval '20 milliseconds';
    instant CONSTANT timestamptz := ondot.clock();
    due uuid[];         -- gates
    firsts uuid[];      -- who stands first before each of them
    due_id uuid;
    g ondot.gate;
    beyond ondot.gate;
    lines integer[];
    w record;
    held integer;
    newest uuid;
    room integer;
    asked boolean;      -- the caller has something to end: look again in a while, in case it dies before that
    full_up boolean;
    by_hand boolean;    -- something that a person asked for waits before it
    later timestamptz;  -- look again then, whoever stands in line
BEGIN
    -- First come, first served, also among gates: slots may be fewer than may pass.
    SELECT coalesce(array_agg(f.gate_id ORDER BY f.ready_at, f.execution_id), '{}'),
           coalesce(array_agg(f.execution_id) FILTER (WHERE f.execution_id IS NOT NULL), '{}') INTO due, firsts
    FROM (
        SELECT DISTINCT ON (l.gate_id) l.gate_id, q.ready_at, q.execution_id
        FROM (SELECT gate_id, pool_no FROM ondot.line
              WHERE pool_no = ANY (of_pools) AND is_rate = at_rates AND look_at <= instant AND look_at < 'infinity'
              ORDER BY look_at LIMIT 100) l
        LEFT JOIN LATERAL (SELECT ready_at, execution_id FROM ondot.waiting
                           WHERE gate_id = l.gate_id AND pool_no = l.pool_no
                           ORDER BY ready_at, execution_id LIMIT 1) q ON true
        ORDER BY l.gate_id, q.ready_at, q.execution_id
    ) f;
    -- A gate is forgotten while nobody stands before it, also if somebody on the way to it stands before another. Made
    -- before any gate is locked: somebody who makes the same gate may wait for a line that is locked here.
    PERFORM ondot.make_gates_of(firsts);
    FOREACH due_id IN ARRAY due LOOP
        -- Each is read when its turn comes. A loop over a query reads ahead, and would bring the instant of before another
        -- gate's execution took a token here.
        SELECT * INTO g FROM ondot.gate WHERE id = due_id FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        lines := ARRAY(SELECT l.pool_no FROM ondot.line l WHERE l.gate_id = g.id AND l.pool_no = ANY (of_pools)
                       FOR UPDATE SKIP LOCKED);
        CONTINUE WHEN lines = '{}';
        SELECT count(*) INTO held FROM ondot.slot WHERE gate_id = g.id;
        newest := NULL;
        asked := false;
        full_up := false;
        by_hand := false;
        later := NULL;
        FOR w IN
            SELECT q.ready_at, q.execution_id, q.stage, d.tenant_no, d.pool_no, d.class, d.is_fire,
                   d.stages->q.stage AS here, d.stages->(q.stage + 1) AS beyond
            FROM (
                -- Strict order is over the lines of all pools: only the first of all may pass.
                SELECT x.* FROM ondot.line l CROSS JOIN LATERAL (
                    SELECT * FROM ondot.waiting
                    WHERE gate_id = g.id AND pool_no = l.pool_no AND ready_at <= instant
                    ORDER BY ready_at, execution_id LIMIT CASE WHEN g.kind = 'order' THEN 1 ELSE 500 END
                ) x
                WHERE l.gate_id = g.id AND (g.kind = 'order' OR l.pool_no = ANY (lines))
                ORDER BY x.ready_at, x.execution_id LIMIT CASE WHEN g.kind = 'order' THEN 1 ELSE 500 END
            ) q JOIN ondot.gated d ON d.execution_id = q.execution_id
            ORDER BY q.ready_at, q.execution_id
        LOOP
            IF g.kind = 'order' AND w.pool_no <> ALL (lines) THEN
                full_up := true;  -- when it has ended, or is gone, the others are called
                EXIT;
            ELSIF g.kind = 'rate' THEN
                IF free <= 0 THEN
                    later := instant;
                    EXIT;
                END IF;
                IF w.class = suspect AND free_for_suspects <= 0 THEN
                    asked := true;
                    CONTINUE;  -- in a second, or by another worker; those behind it are no suspects, or wait as well
                END IF;
                -- Kept as it is read: an instant of before the clock was set back would stay one length ahead for as long.
                g.token_at := ondot.token_full_at(g.token_at, w.here, instant);
                later := ondot.token_free_at(g.token_at, w.here, instant);
                IF w.beyond IS NOT NULL THEN
                    SELECT * INTO beyond FROM ondot.gate WHERE id = (w.beyond->>'gate')::uuid FOR UPDATE SKIP LOCKED;
                    later := greatest(later, CASE WHEN FOUND THEN ondot.token_free_at(beyond.token_at, w.beyond, instant)
                                                  ELSE instant + soon END);
                    UPDATE ondot.gate SET token_at = ondot.token_full_at(token_at, w.beyond, instant)
                    WHERE id = beyond.id AND token_at > ondot.token_full_at(token_at, w.beyond, instant);
                END IF;
                EXIT WHEN later > instant;
                later := NULL;
                g.token_at := ondot.token_taken(g.token_at, w.here, instant);
                IF w.beyond IS NOT NULL THEN
                    UPDATE ondot.gate SET token_at = ondot.token_taken(beyond.token_at, w.beyond, instant)
                    WHERE id = beyond.id;
                END IF;
                free := free - 1;
                IF w.class = suspect THEN
                    free_for_suspects := free_for_suspects - 1;
                END IF;
            ELSIF held >= (w.here->>'limit')::integer THEN
                room := (w.here->>'limit')::integer;
                IF g.kind = 'overlap' AND w.is_fire AND w.here->>'overlap' = 'skip' THEN
                    RETURN QUERY SELECT w.execution_id, 'skip', w.pool_no, w.tenant_no, instant;
                    asked := true;
                    CONTINUE;
                ELSIF g.kind = 'overlap' AND w.is_fire AND w.here->>'overlap' = 'cancel' AND NOT by_hand THEN
                    IF newest IS NOT NULL THEN
                        RETURN QUERY SELECT newest, 'replace', w.pool_no, w.tenant_no, instant;
                    END IF;
                    newest := w.execution_id;
                    asked := true;
                    CONTINUE;
                END IF;
                full_up := true;
                by_hand := by_hand OR NOT w.is_fire;
                CONTINUE WHEN g.kind = 'overlap';  -- behind what waits there may be a fire that does not
                EXIT;
            ELSE
                IF w.beyond IS NOT NULL THEN
                    PERFORM FROM ondot.line WHERE gate_id = (w.beyond->>'gate')::uuid AND pool_no = w.pool_no
                    FOR UPDATE SKIP LOCKED;
                    IF NOT FOUND AND EXISTS (SELECT FROM ondot.line
                                             WHERE gate_id = (w.beyond->>'gate')::uuid AND pool_no = w.pool_no)
                       OR NOT EXISTS (SELECT FROM ondot.gate WHERE id = (w.beyond->>'gate')::uuid) THEN
                        later := instant + soon;
                        EXIT;
                    END IF;
                END IF;
                INSERT INTO ondot.slot (gate_id, execution_id, tenant_no, until_end, held_at)
                VALUES (g.id, w.execution_id, w.tenant_no, (w.here->>'until_end')::boolean, instant);
                held := held + 1;
            END IF;
            DELETE FROM ondot.waiting
            WHERE gate_id = g.id AND pool_no = w.pool_no AND ready_at = w.ready_at AND execution_id = w.execution_id;
            IF w.beyond IS NOT NULL AND g.kind <> 'rate' THEN
                INSERT INTO ondot.waiting (gate_id, pool_no, ready_at, execution_id, tenant_no, stage)
                VALUES ((w.beyond->>'gate')::uuid, w.pool_no, w.ready_at, w.execution_id, w.tenant_no, w.stage + 1);
                INSERT INTO ondot.line (gate_id, pool_no, tenant_no, is_rate, look_at)
                VALUES ((w.beyond->>'gate')::uuid, w.pool_no, w.tenant_no, w.beyond->>'kind' = 'rate', instant)
                ON CONFLICT (gate_id, pool_no) DO UPDATE SET look_at = least(line.look_at, instant);
                RETURN QUERY SELECT w.execution_id, 'next', w.pool_no, w.tenant_no, w.ready_at;
            ELSE
                UPDATE ondot.execution SET ready_at = instant, class = w.class WHERE id = w.execution_id;
                INSERT INTO ondot.ready (pool_no, class, tenant_no, ready_at, execution_id)
                VALUES (w.pool_no, CASE WHEN g.kind = 'rate' THEN 6 ELSE w.class END, w.tenant_no, instant, w.execution_id);
                RETURN QUERY SELECT w.execution_id, CASE WHEN g.kind = 'rate' THEN 'start' ELSE 'ready' END, w.pool_no,
                                    w.tenant_no, instant;
            END IF;
        END LOOP;
        IF newest IS NOT NULL THEN
            -- What a person asked for is not cancelled for a fire; of the others no more than have to make room.
            RETURN QUERY SELECT s.execution_id, 'cancel', d.pool_no, s.tenant_no, instant
                         FROM ondot.slot s JOIN ondot.gated d ON d.execution_id = s.execution_id
                         WHERE s.gate_id = g.id AND d.is_fire ORDER BY s.held_at, s.execution_id LIMIT held - room + 1;
        END IF;
        IF g.kind = 'rate' THEN  -- held since it was read: nobody else has taken one
            UPDATE ondot.gate SET token_at = g.token_at WHERE id = g.id;
        END IF;
        -- When to look again: full, when somebody leaves; else when the next of the line is due.
        UPDATE ondot.line l
        SET look_at = CASE
            WHEN later IS NOT NULL THEN later
            WHEN full_up AND g.kind <> 'overlap' THEN 'infinity'
            ELSE coalesce(least(
                CASE WHEN asked THEN instant + interval '1 second' END,
                (SELECT min(x.ready_at) FROM ondot.waiting x
                 WHERE x.gate_id = g.id AND x.pool_no = l.pool_no
                   AND (x.ready_at > instant OR NOT full_up AND NOT asked))), 'infinity') END
        WHERE l.gate_id = g.id AND l.pool_no = ANY (lines);
    END LOOP;
END $$;

-- What stands before a rate now goes over to its new gate: the triggers rewrite the stages, and put it in line again.
UPDATE ondot.gated SET stages = stages WHERE stages @? '$[*] ? (exists (@.every_s) && !exists (@.of))';
