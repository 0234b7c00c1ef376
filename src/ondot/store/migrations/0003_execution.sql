-- Execution: cancels, start deadlines, gates and their slots, limits of pools, dead letters that are replayed or
-- discarded, keys of unique, debounced and throttled jobs, references to what lies in object storage.

ALTER TABLE ondot.execution
    ADD COLUMN cancel_reason text,                    -- with cancel_at: why it is to end
    ADD COLUMN start_by timestamptz,                  -- the start deadline of its first attempt; NULL: none
    ADD COLUMN replay_of uuid,                        -- the execution it runs again
    ADD COLUMN gated boolean NOT NULL DEFAULT false;  -- it has a row in gated, or a slot of its pool
-- Neither is changed by a lease of other work, so start and retry stay HOT.
CREATE INDEX execution_cancel ON ondot.execution (cancel_at) WHERE cancel_at IS NOT NULL;
CREATE INDEX execution_start_by ON ondot.execution (start_by) WHERE start_by IS NOT NULL;
ALTER TABLE ondot.history ADD COLUMN replay_of uuid;

-- Fires to come were cancelled one by one, the last of them here: up to it, plan looks into history before it makes one.
ALTER TABLE ondot.timer ADD COLUMN guard_until timestamptz;

-- Limits of a pool, taken once a batch when it is leased. NULL: none.
ALTER TABLE ondot.pool
    ADD COLUMN concurrency integer CHECK (concurrency > 0),
    ADD COLUMN rate_limit integer CHECK (rate_limit > 0),
    ADD COLUMN rate_per_s double precision CHECK (rate_per_s > 0),
    ADD COLUMN rate_burst integer CHECK (rate_burst > 0),
    ADD COLUMN token_at timestamptz;                  -- when its bucket is full again

-- Gates -----------------------------------------------------------------------------------------------------------

-- No release has written to the tables of 0001.
DROP TABLE ondot.gate;
DROP TABLE ondot.waiting;

-- What limited executions pass, one after another. Its row is locked by who counts its slots or takes its tokens.
CREATE TABLE ondot.gate (
    id        uuid PRIMARY KEY,        -- made of tenant, kind and job or key (model.gates)
    token_at  timestamptz,             -- of a rate: when its bucket is full again
    tenant_no integer NOT NULL,
    kind      text NOT NULL CHECK (kind IN ('order', 'overlap', 'concurrency', 'rate')),
    name      text NOT NULL            -- the key, or the id of the job
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);

-- Which gates a live execution passes, in their order; as long as the execution lives. Lines and slots follow this row
-- by triggers, so that no statement can forget them: made or changed, the execution stands in line; gone, it holds nothing.
CREATE TABLE ondot.gated (
    execution_id uuid PRIMARY KEY,
    ready_at     timestamptz NOT NULL,
    tenant_no    integer NOT NULL,
    pool_no      integer NOT NULL,
    class        smallint NOT NULL,
    is_fire      boolean NOT NULL,     -- what a person asked for waits where a fire would be skipped
    is_over      boolean NOT NULL DEFAULT false,  -- its execution has ended: the row goes, by the trigger
    stages       jsonb NOT NULL        -- [{gate, kind, name, limit, until_end, overlap, every_s, burst}]
) WITH (fillfactor = 50);

-- The line of one pool before a gate, and when its workers are to look at it. Its row is locked by who comes and by who
-- looks, so that nobody who comes while others look is overlooked.
CREATE TABLE ondot.line (
    gate_id   uuid NOT NULL,
    pool_no   integer NOT NULL,
    tenant_no integer NOT NULL,
    is_rate   boolean NOT NULL,
    look_at   timestamptz NOT NULL,    -- when somebody may pass; infinity: nobody, before somebody leaves or comes
    PRIMARY KEY (gate_id, pool_no)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX line_look ON ondot.line (pool_no, is_rate, look_at) WHERE look_at < 'infinity';

CREATE TABLE ondot.waiting (
    gate_id      uuid NOT NULL,
    pool_no      integer NOT NULL,
    ready_at     timestamptz NOT NULL,
    execution_id uuid NOT NULL,
    tenant_no    integer NOT NULL,
    stage        smallint NOT NULL,    -- from 0: which of its stages this gate is
    PRIMARY KEY (gate_id, pool_no, ready_at, execution_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX waiting_execution ON ondot.waiting (execution_id);

-- Who is through a gate, or runs in a limited pool: a row for each, so that a count cannot drift.
CREATE TABLE ondot.slot (
    gate_id      uuid NOT NULL,
    execution_id uuid NOT NULL,
    tenant_no    integer NOT NULL,
    until_end    boolean NOT NULL,     -- held over retries; otherwise for an attempt
    held_at      timestamptz NOT NULL,
    PRIMARY KEY (gate_id, execution_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX slot_execution ON ondot.slot (execution_id);

-- Under which id a pool's slots are held.
CREATE FUNCTION ondot.pool_gate(pool_no integer) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$ SELECT lpad(to_hex(pool_no), 32, '0')::uuid $$;

-- Locks gates, then the lines before them, each in the order of their keys: the only order in which anybody waits for
-- several of them.
CREATE FUNCTION ondot.lock_gates(ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM ondot.gate WHERE id = ANY (ids) ORDER BY id FOR UPDATE;
    PERFORM FROM ondot.line WHERE gate_id = ANY (ids) ORDER BY gate_id, pool_no FOR UPDATE;
END $$;

-- Makes the gates that are missing.
CREATE FUNCTION ondot.make_gates(of_tenant integer, stages jsonb) RETURNS void LANGUAGE sql AS $$
    INSERT INTO ondot.gate (id, tenant_no, kind, name)
    SELECT DISTINCT ON (1) (s->>'gate')::uuid, of_tenant, s->>'kind', s->>'name' FROM jsonb_array_elements(stages) s
    ORDER BY 1 ON CONFLICT (id) DO NOTHING
$$;

-- Calls those who wait before these gates, which the caller has locked.
CREATE FUNCTION ondot.call_lines(gates uuid[]) RETURNS void LANGUAGE sql AS $$
    UPDATE ondot.line l SET look_at = least(l.look_at, ondot.clock())
    WHERE l.gate_id = ANY (gates)
      AND EXISTS (SELECT FROM ondot.waiting w WHERE w.gate_id = l.gate_id AND w.pool_no = l.pool_no)
$$;

-- The first stage of each that is not passed: one without a slot. A rate gives no slot: each attempt takes a token.
CREATE FUNCTION ondot.next_stages(ids uuid[])
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

-- Executions take their place: in the line before the first gate that they have not passed, or, having passed all, in the
-- queue, where nothing comes in with an instant of the past. All lines are touched in the order of their keys.
CREATE FUNCTION ondot.stand_in_line(ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO ondot.gate (id, tenant_no, kind, name)
    SELECT DISTINCT ON (1) (s->>'gate')::uuid, d.tenant_no, s->>'kind', s->>'name'
    FROM ondot.gated d, jsonb_array_elements(d.stages) s WHERE d.execution_id = ANY (ids)
    ORDER BY 1 ON CONFLICT (id) DO NOTHING;
    -- Of all stages: so that admission, which holds gates, finds the next line there and has to wait for no one.
    INSERT INTO ondot.line (gate_id, pool_no, tenant_no, is_rate, look_at)
    SELECT (s->>'gate')::uuid, n.pool_no, min(n.tenant_no), bool_or(s->>'kind' = 'rate'),
           min(CASE WHEN n.gate_id = (s->>'gate')::uuid THEN n.ready_at ELSE 'infinity' END)
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

-- What follows a row of gated. The gates are locked first, and looked at in statements after it: one that began before
-- the lock would not see who came into line meanwhile, and nobody would call them.
CREATE FUNCTION ondot.gated_changed() RETURNS trigger LANGUAGE plpgsql AS $$
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
    ELSE
        ids := ARRAY(SELECT c.execution_id FROM come c JOIN ondot.execution e ON e.id = c.execution_id
                     WHERE e.state <> 'RUNNING' AND NOT c.is_over);
        over := ARRAY(SELECT execution_id FROM come WHERE is_over);
        gates := ARRAY(SELECT (s->>'gate')::uuid FROM come, jsonb_array_elements(stages) s);
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
CREATE TRIGGER gated_made AFTER INSERT ON ondot.gated REFERENCING NEW TABLE AS come
    FOR EACH STATEMENT EXECUTE FUNCTION ondot.gated_changed();
CREATE TRIGGER gated_again AFTER UPDATE ON ondot.gated REFERENCING NEW TABLE AS come
    FOR EACH STATEMENT EXECUTE FUNCTION ondot.gated_changed();
CREATE TRIGGER gated_over AFTER DELETE ON ondot.gated REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION ondot.gated_changed();

-- One pass of admission at the gates before which work of these pools waits: at the rates, or at the others. Takes with
-- SKIP LOCKED and waits for nobody: whoever holds a gate or a line sees to it. Says what became of whom:
--   ready    through its last gate, and in the queue
--   next     through this one, and in the line before the next
--   start    has its tokens, and is in a lane of its own (class 6), which the caller leases in this very transaction: a
--            token is taken when an attempt starts, not sooner
--   skip     a fire that found its job running, and is not to wait: its end is the caller's to write
--   replace  a fire that waited, and is overtaken by a newer one of a job that cancels what runs
--   cancel   an execution that runs, and has to make room
CREATE FUNCTION ondot.admit(of_pools integer[], at_rates boolean, free integer)
    RETURNS TABLE (execution_id uuid, verdict text, pool_no integer, tenant_no integer, ready_at timestamptz)
    LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    soon CONSTANT interval := interval '20 milliseconds';
    instant CONSTANT timestamptz := ondot.clock();
    due uuid[];
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
    due := ARRAY(SELECT l.gate_id FROM ondot.line l
                 WHERE l.pool_no = ANY (of_pools) AND l.is_rate = at_rates AND l.look_at <= instant AND l.look_at < 'infinity'
                 ORDER BY l.look_at LIMIT 100);
    IF EXISTS (SELECT FROM unnest(due) AS d(id) WHERE NOT EXISTS (SELECT FROM ondot.gate WHERE id = d.id)) THEN
        -- Forgotten in the moment in which somebody came.
        INSERT INTO ondot.gate (id, tenant_no, kind, name)
        SELECT DISTINCT ON (l.gate_id) l.gate_id, d.tenant_no, d.stages->l.stage->>'kind', d.stages->l.stage->>'name'
        FROM ondot.waiting l JOIN ondot.gated d ON d.execution_id = l.execution_id WHERE l.gate_id = ANY (due)
        ORDER BY l.gate_id ON CONFLICT (id) DO NOTHING;
    END IF;
    FOR g IN SELECT * FROM ondot.gate WHERE id = ANY (due) FOR UPDATE SKIP LOCKED LOOP
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
                later := ondot.token_free_at(g.token_at, w.here, instant);
                IF w.beyond IS NOT NULL THEN
                    PERFORM ondot.make_gates(w.tenant_no, jsonb_build_array(w.beyond));
                    SELECT * INTO beyond FROM ondot.gate WHERE id = (w.beyond->>'gate')::uuid FOR UPDATE SKIP LOCKED;
                    later := greatest(later, CASE WHEN FOUND THEN ondot.token_free_at(beyond.token_at, w.beyond, instant)
                                                  ELSE instant + soon END);
                END IF;
                EXIT WHEN later > instant;
                later := NULL;
                g.token_at := ondot.token_taken(g.token_at, w.here, instant);
                IF w.beyond IS NOT NULL THEN
                    UPDATE ondot.gate SET token_at = ondot.token_taken(beyond.token_at, w.beyond, instant)
                    WHERE id = beyond.id;
                END IF;
                free := free - 1;
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
                                             WHERE gate_id = (w.beyond->>'gate')::uuid AND pool_no = w.pool_no) THEN
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
        IF g.kind = 'rate' THEN
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

-- A token bucket by the instant at which it is full again (GCRA). At most what comes in 50 ms may be taken at once, or
-- `burst`: so a worker that looks some hundred times a second reaches any rate. A clock that was set back finds a bucket
-- that is to be full in an hour: one that takes longer than its own length is taken for full.
CREATE FUNCTION ondot.token_burst(stage jsonb) RETURNS double precision LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT greatest((stage->>'burst')::double precision, floor(0.05 / (stage->>'every_s')::double precision))
$$;
CREATE FUNCTION ondot.token_full_at(token_at timestamptz, stage jsonb, instant timestamptz) RETURNS timestamptz
    LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN token_at > instant + make_interval(
                    secs => ondot.token_burst(stage) * (stage->>'every_s')::double precision + 1) THEN instant
                ELSE greatest(token_at, instant) END
$$;
CREATE FUNCTION ondot.token_free_at(token_at timestamptz, stage jsonb, instant timestamptz) RETURNS timestamptz
    LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(instant, ondot.token_full_at(token_at, stage, instant) - make_interval(
        secs => (ondot.token_burst(stage) - 1) * (stage->>'every_s')::double precision))
$$;
CREATE FUNCTION ondot.token_taken(token_at timestamptz, stage jsonb, instant timestamptz) RETURNS timestamptz
    LANGUAGE sql IMMUTABLE AS $$
    SELECT ondot.token_full_at(token_at, stage, instant) + make_interval(secs => (stage->>'every_s')::double precision)
$$;

-- Keys of jobs that are unique, debounced or throttled: which job has the key, since when, and how many came.
CREATE TABLE ondot.claim (
    tenant_no integer NOT NULL,
    kind      text NOT NULL CHECK (kind IN ('unique', 'debounce', 'throttle')),
    key       text NOT NULL,
    job_id    uuid NOT NULL,
    since_at  timestamptz NOT NULL,
    until_at  timestamptz NOT NULL,    -- after it the row says nothing, but for a unique job that lives
    count     integer NOT NULL DEFAULT 1,
    PRIMARY KEY (tenant_no, kind, key)
);
CREATE INDEX claim_age ON ondot.claim (until_at);

-- Dead letters ----------------------------------------------------------------------------------------------------

ALTER TABLE ondot.dead_letter
    ADD COLUMN resolved_at timestamptz,               -- NULL: it waits for a person
    ADD COLUMN resolution text CHECK (resolution IN ('replayed', 'discarded')),
    ADD COLUMN resolved_by text,
    ADD COLUMN resolved_reason text,
    ADD COLUMN replay_id uuid;                        -- the execution that runs it again
DROP INDEX ondot.dead_letter_latest;
CREATE INDEX dead_letter_open ON ondot.dead_letter (tenant_no, failed_at, execution_id) WHERE resolved_at IS NULL;
CREATE INDEX dead_letter_alike ON ondot.dead_letter (tenant_no, (error->>'fingerprint'), failed_at)
    WHERE resolved_at IS NULL;
CREATE INDEX dead_letter_job ON ondot.dead_letter (job_id, failed_at) WHERE resolved_at IS NULL;
CREATE INDEX dead_letter_resolved ON ondot.dead_letter (tenant_no, resolved_at) WHERE resolved_at IS NOT NULL;

-- What is done to all dead letters that match a filter, some at a time.
CREATE TABLE ondot.bulk (
    id         uuid PRIMARY KEY,
    tenant_no  integer NOT NULL,
    action     text NOT NULL CHECK (action IN ('replay', 'discard')),
    filter     jsonb NOT NULL,
    payload    json,                                  -- replay: instead of the old one
    current_version boolean NOT NULL,                 -- replay: by the job's version of today
    reason     text,
    actor      text NOT NULL,
    per_s      double precision NOT NULL,
    total      integer NOT NULL,
    done       integer NOT NULL DEFAULT 0,
    state      text NOT NULL CHECK (state IN ('RUNNING', 'DONE', 'CANCELLED')),
    turn_at    timestamptz NOT NULL,                  -- when it goes on
    through_at timestamptz,                           -- failed_at of the last one looked at
    through_id uuid,                                  -- and its id
    passed_over boolean NOT NULL DEFAULT false,       -- since it was at the oldest, letters that somebody held
    created_at timestamptz NOT NULL,
    ended_at   timestamptz
) WITH (fillfactor = 50);
CREATE INDEX bulk_turn ON ondot.bulk (turn_at) WHERE state = 'RUNNING';
CREATE INDEX bulk_latest ON ondot.bulk (tenant_no, id);

CREATE INDEX audit_latest ON ondot.audit (tenant_no, id);
CREATE INDEX audit_subject ON ondot.audit (subject, id) WHERE subject IS NOT NULL;

-- Output that is too large for the database: where it lies in object storage.
CREATE TABLE ondot.object (
    execution_id uuid NOT NULL,
    attempt_no   integer NOT NULL,
    kind         text NOT NULL CHECK (kind IN ('result', 'log')),
    tenant_no    integer NOT NULL,
    key          text NOT NULL,
    bytes        bigint NOT NULL,
    cut          boolean NOT NULL DEFAULT false,      -- there was more than is kept
    PRIMARY KEY (execution_id, attempt_no, kind)
) PARTITION BY RANGE (execution_id);
DO $$
DECLARE
    today date := (statement_timestamp() AT TIME ZONE 'UTC')::date;
BEGIN
    EXECUTE format('CREATE TABLE ondot.object_past PARTITION OF ondot.object FOR VALUES FROM (MINVALUE) TO (%L)',
                   ondot.day_starts(today));
    EXECUTE format('CREATE TABLE ondot.object_ahead PARTITION OF ondot.object FOR VALUES FROM (%L) TO (MAXVALUE)',
                   ondot.day_starts(today));
    INSERT INTO ondot.day_table (parent, id_column, first_day, next_day) VALUES ('object', 'execution_id', today, today);
END $$;
