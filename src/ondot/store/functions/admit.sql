-- ondot.admit(of_pools, at_rates, free, free_for_suspects, of_tenants, of_limited): one pass of admission at the gates before
-- which work of these pools and tenants (NULL: all) waits: at the rates, or at the others. At rates, at most `free`
-- executions start, and at most `free_for_suspects` of the class suspect (NULL: no bound), of tenants without quotas
-- that are counted at the lease, or of `of_limited` alone. Roles of the release before pass four arguments; their signature
-- goes in the same transaction in which this one comes. Returns the verdict on each:
--   ready    passed its last gate, and is in the queue
--   next     passed this gate, and is in the line before the next
--   start    has its tokens, and is in a lane of its own (class {{class_admitted}}), which the caller leases in the same
--            transaction: a token is taken when an attempt starts, not sooner
--   skip     a fire that found its job running and does not wait: the caller ends it
--   replace  a fire that waited and was overtaken by a newer one of a job that cancels what runs: the caller ends it
--   cancel   an execution that runs and must make room: the caller cancels it
-- Callers: sql/queue.sql.
-- Locks: missing gates by insert, then gate by gate with its lines, all with SKIP LOCKED: it waits for no transaction.
-- Whichever transaction holds a gate or a line takes care of it.
DROP FUNCTION IF EXISTS ondot.admit(integer[], boolean, integer, integer);
DROP FUNCTION IF EXISTS ondot.admit(integer[], boolean, integer, integer, integer[]);
CREATE OR REPLACE FUNCTION ondot.admit(of_pools integer[], at_rates boolean, free integer,
                                       free_for_suspects integer DEFAULT NULL, of_tenants integer[] DEFAULT NULL,
                                       of_limited integer DEFAULT NULL)
    RETURNS TABLE (execution_id uuid, verdict text, pool_no integer, tenant_no integer, ready_at timestamptz)
    LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    suspect CONSTANT smallint := {{class_suspect}};  -- the class
    soon CONSTANT interval := interval '20 milliseconds';
    instant CONSTANT timestamptz := ondot.clock();
    due uuid[];         -- gates
    firsts uuid[];      -- the first execution in line before each of them
    due_id uuid;
    g ondot.gate;
    beyond ondot.gate;
    lines integer[];
    w record;
    held integer;
    newest uuid;
    room integer;
    asked boolean;      -- the caller has something to end: look again in a second, in case it dies before that
    full_up boolean;
    by_hand boolean;    -- an execution that a person asked for waits before it
    later timestamptz;  -- look again then, whatever waits in line
    stopped CONSTANT integer[] := ARRAY(SELECT t.tenant_no FROM ondot.tenant t WHERE t.state <> 'ACTIVE');
BEGIN
    -- First come, first served, among gates too: there may be fewer free slots than executions that may pass.
    SELECT coalesce(array_agg(f.gate_id ORDER BY f.ready_at, f.execution_id), '{}'),
           coalesce(array_agg(f.execution_id) FILTER (WHERE f.execution_id IS NOT NULL), '{}') INTO due, firsts
    FROM (
        SELECT DISTINCT ON (l.gate_id) l.gate_id, q.ready_at, q.execution_id
        FROM (SELECT gate_id, pool_no FROM ondot.line
              WHERE pool_no = ANY (of_pools) AND is_rate = at_rates AND look_at <= instant AND look_at < 'infinity'
                AND (of_tenants IS NULL OR tenant_no = ANY (of_tenants))
                AND (NOT at_rates OR CASE
                    WHEN of_limited IS NULL
                    THEN NOT EXISTS (SELECT FROM ondot.tenant_limit x WHERE x.tenant_no = line.tenant_no)
                    ELSE tenant_no = of_limited END)
              ORDER BY look_at LIMIT 100) l
        LEFT JOIN LATERAL (SELECT ready_at, execution_id FROM ondot.waiting
                           WHERE gate_id = l.gate_id AND pool_no = l.pool_no
                           ORDER BY ready_at, execution_id LIMIT 1) q ON true
        ORDER BY l.gate_id, q.ready_at, q.execution_id
    ) f;
    -- A gate is removed while nothing waits before it, even if an execution that will reach it waits before another. It is
    -- created before any gate is locked: a transaction that creates the same gate may wait for a line that is locked here.
    PERFORM ondot.make_gates_of(firsts);
    FOREACH due_id IN ARRAY due LOOP
        -- Each gate is read when its turn comes. A loop over a query reads ahead, and would return the token_at from before
        -- an execution of another gate took a token here.
        SELECT * INTO g FROM ondot.gate WHERE id = due_id FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        lines := ARRAY(SELECT l.pool_no FROM ondot.line l WHERE l.gate_id = g.id AND l.pool_no = ANY (of_pools)
                       FOR UPDATE SKIP LOCKED);
        CONTINUE WHEN lines = '{}';
        IF g.tenant_no = ANY (stopped) THEN
            -- Nothing of it passes until it is resumed. The share lock makes a resume wait, and call the line again.
            PERFORM FROM ondot.tenant t WHERE t.tenant_no = g.tenant_no AND t.state <> 'ACTIVE' FOR SHARE SKIP LOCKED;
            IF FOUND THEN
                UPDATE ondot.line l SET look_at = 'infinity' WHERE l.gate_id = g.id AND l.pool_no = ANY (lines);
            END IF;
            CONTINUE;
        END IF;
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
                -- Strict order spans the lines of all pools: only the first of all may pass.
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
                full_up := true;  -- the others are called when it has ended or is removed
                EXIT;
            ELSIF g.kind = 'rate' THEN
                IF free <= 0 THEN
                    later := instant;
                    EXIT;
                END IF;
                IF w.class = suspect AND free_for_suspects <= 0 THEN
                    asked := true;
                    CONTINUE;  -- it starts in a second, or on another worker; those behind it are no suspects, or wait as well
                END IF;
                -- Stored as read: an instant from before the clock was set back would otherwise stay one length ahead.
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
                CONTINUE WHEN g.kind = 'overlap';  -- a fire that does not wait may be behind one that does
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
                VALUES (w.pool_no, CASE WHEN g.kind = 'rate' THEN {{class_admitted}} ELSE w.class END, w.tenant_no, instant, w.execution_id);
                RETURN QUERY SELECT w.execution_id, CASE WHEN g.kind = 'rate' THEN 'start' ELSE 'ready' END, w.pool_no,
                                    w.tenant_no, instant;
            END IF;
        END LOOP;
        IF newest IS NOT NULL THEN
            -- An execution that a person asked for is not cancelled for a fire. Of the others, only as many as must make room.
            RETURN QUERY SELECT s.execution_id, 'cancel', d.pool_no, s.tenant_no, instant
                         FROM ondot.slot s JOIN ondot.gated d ON d.execution_id = s.execution_id
                         WHERE s.gate_id = g.id AND d.is_fire ORDER BY s.held_at, s.execution_id LIMIT held - room + 1;
        END IF;
        IF g.kind = 'rate' THEN  -- locked since it was read: no other transaction has taken a token
            UPDATE ondot.gate SET token_at = g.token_at WHERE id = g.id;
        END IF;
        -- When to look again: if full, when an execution leaves; otherwise when the next one in line is due.
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
