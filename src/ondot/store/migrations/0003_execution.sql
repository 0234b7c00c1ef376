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

-- What limited executions pass, one after another: its row is what admission, release and planning lock.
CREATE TABLE ondot.gate (
    id        uuid PRIMARY KEY,        -- made of tenant, kind and job or key (model.gates)
    look_at   timestamptz NOT NULL,    -- when somebody may pass; infinity: nobody, before somebody leaves or comes
    token_at  timestamptz,             -- of a rate: when its bucket is full again
    tenant_no integer NOT NULL,
    pool_no   integer NOT NULL,        -- of who stands first: its workers admit
    kind      text NOT NULL CHECK (kind IN ('order', 'overlap', 'concurrency', 'rate')),
    name      text NOT NULL            -- the key, or the id of the job
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX gate_look ON ondot.gate (pool_no, look_at) WHERE look_at < 'infinity';

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

-- The line before a gate.
CREATE TABLE ondot.waiting (
    gate_id      uuid NOT NULL,
    ready_at     timestamptz NOT NULL,
    execution_id uuid NOT NULL,
    tenant_no    integer NOT NULL,
    stage        smallint NOT NULL,    -- from 0: which of its stages this gate is
    PRIMARY KEY (gate_id, ready_at, execution_id)
);
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

-- Locks gates in the order of their ids, which is the only order in which anybody waits for several of them.
CREATE FUNCTION ondot.lock_gates(ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM ondot.gate WHERE id = ANY (ids) ORDER BY id FOR UPDATE;
END $$;

-- Gives slots back and calls those who wait for them. The gates are locked first, and looked at in a statement after
-- it: one that began before the lock would not see who came into line meanwhile, and nobody would call them.
CREATE FUNCTION ondot.release_slots(ids uuid[], attempts_only boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    gates uuid[];
BEGIN
    gates := ARRAY(SELECT DISTINCT gate_id FROM ondot.slot
                   WHERE execution_id = ANY (ids) AND NOT (attempts_only AND until_end));
    IF gates = '{}' THEN
        RETURN;
    END IF;
    PERFORM ondot.lock_gates(gates);
    DELETE FROM ondot.slot WHERE execution_id = ANY (ids) AND NOT (attempts_only AND until_end);
    UPDATE ondot.gate g SET look_at = least(g.look_at, ondot.clock())
    WHERE g.id = ANY (gates) AND EXISTS (SELECT FROM ondot.waiting w WHERE w.gate_id = g.id);
END $$;

-- Executions take their place: in the line of the first gate that they have not passed, or, having passed all, in the
-- queue.
CREATE FUNCTION ondot.stand_in_line(ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO ondot.gate (id, look_at, tenant_no, pool_no, kind, name)
    SELECT DISTINCT ON (n.gate_id) n.gate_id, n.ready_at, n.tenant_no, n.pool_no, n.kind, n.name
    FROM ondot.next_stages(ids) n WHERE n.gate_id IS NOT NULL
    ORDER BY n.gate_id, n.ready_at
    ON CONFLICT (id) DO UPDATE
    SET look_at = least(gate.look_at, excluded.look_at),
        pool_no = CASE WHEN gate.look_at <= excluded.look_at THEN gate.pool_no ELSE excluded.pool_no END;
    INSERT INTO ondot.waiting (gate_id, ready_at, execution_id, tenant_no, stage)
    SELECT gate_id, ready_at, execution_id, tenant_no, stage
    FROM ondot.next_stages(ids) WHERE gate_id IS NOT NULL
    ON CONFLICT DO NOTHING;
    INSERT INTO ondot.ready (pool_no, class, tenant_no, ready_at, execution_id)
    SELECT pool_no, class, tenant_no, ready_at, execution_id FROM ondot.next_stages(ids) WHERE gate_id IS NULL
    ON CONFLICT DO NOTHING;
END $$;

-- The first stage of each that is not passed: one without a slot. A rate gives no slot: each attempt takes a token.
CREATE FUNCTION ondot.next_stages(ids uuid[])
    RETURNS TABLE (execution_id uuid, ready_at timestamptz, tenant_no integer, pool_no integer, class smallint,
                   gate_id uuid, kind text, name text, stage smallint)
    LANGUAGE sql STABLE AS $$
    SELECT d.execution_id, d.ready_at, d.tenant_no, d.pool_no, d.class, s.gate_id, s.kind, s.name, s.stage
    FROM ondot.gated d
    LEFT JOIN LATERAL (
        SELECT (e.stage->>'gate')::uuid AS gate_id, e.stage->>'kind' AS kind, e.stage->>'name' AS name,
               (e.no - 1)::smallint AS stage
        FROM jsonb_array_elements(d.stages) WITH ORDINALITY AS e(stage, no)
        WHERE NOT EXISTS (SELECT FROM ondot.slot h
                          WHERE h.gate_id = (e.stage->>'gate')::uuid AND h.execution_id = d.execution_id)
        ORDER BY e.no LIMIT 1
    ) s ON true
    WHERE d.execution_id = ANY (ids)
$$;

CREATE FUNCTION ondot.gated_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    ids uuid[];
    over uuid[];
BEGIN
    IF TG_OP = 'DELETE' THEN
        over := ARRAY(SELECT execution_id FROM gone);
        IF over <> '{}' THEN
            PERFORM ondot.release_slots(over, false);
            DELETE FROM ondot.waiting WHERE execution_id = ANY (over);
        END IF;
        RETURN NULL;
    END IF;
    ids := ARRAY(SELECT execution_id FROM come WHERE NOT is_over);
    IF TG_OP = 'UPDATE' THEN
        over := ARRAY(SELECT execution_id FROM come WHERE is_over);
        -- All gates that are touched below, at once: two who each took some and then others would wait for each other.
        PERFORM ondot.lock_gates(ARRAY(SELECT (s->>'gate')::uuid FROM come, jsonb_array_elements(stages) s));
        IF over <> '{}' THEN
            DELETE FROM ondot.gated WHERE execution_id = ANY (over);
        END IF;
        IF ids <> '{}' THEN
            PERFORM ondot.release_slots(ids, true);
            DELETE FROM ondot.waiting WHERE execution_id = ANY (ids);
        END IF;
    END IF;
    IF ids <> '{}' THEN
        PERFORM ondot.stand_in_line(ids);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER gated_made AFTER INSERT ON ondot.gated REFERENCING NEW TABLE AS come
    FOR EACH STATEMENT EXECUTE FUNCTION ondot.gated_changed();
CREATE TRIGGER gated_again AFTER UPDATE ON ondot.gated REFERENCING NEW TABLE AS come
    FOR EACH STATEMENT EXECUTE FUNCTION ondot.gated_changed();
CREATE TRIGGER gated_over AFTER DELETE ON ondot.gated REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION ondot.gated_changed();

-- One pass of admission for the gates before which work of these pools stands first. Takes with SKIP LOCKED and waits for
-- nobody: whoever holds a gate sees to it. Two statements for each gate, lock and pick, each with its own snapshot: one
-- would not see a slot that was given back while it waited. Says what became of whom:
--   ready    through its last gate, and in the queue
--   skip     a fire that found its job running, and is not to wait: its end is the caller's to write
--   replace  a fire that waited, and is overtaken by a newer one of a job that cancels what runs
--   cancel   an execution that runs, and has to make room
CREATE FUNCTION ondot.admit(of_pools integer[], free integer)
    RETURNS TABLE (execution_id uuid, verdict text, pool_no integer, ready_at timestamptz) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    ahead CONSTANT interval := interval '250 milliseconds';  -- of tokens: taken so early, for attempts that begin on time
    soon CONSTANT interval := interval '20 milliseconds';
    g ondot.gate;
    w record;
    held integer;
    instant timestamptz := ondot.clock();
    begin_at timestamptz;
    every interval;
    next_gate uuid;
    newest uuid;
    asked boolean;     -- the caller has something to end: look again in a while, in case it dies before that
    full_up boolean;
    later timestamptz; -- look again then, whoever stands in line
BEGIN
    FOR g IN
        SELECT * FROM ondot.gate WHERE pool_no = ANY (of_pools) AND look_at <= instant
        ORDER BY look_at LIMIT 100 FOR UPDATE SKIP LOCKED
    LOOP
        SELECT count(*) INTO held FROM ondot.slot WHERE gate_id = g.id;
        newest := NULL;
        asked := false;
        full_up := false;
        later := NULL;
        FOR w IN
            SELECT l.ready_at, l.execution_id, l.stage, d.tenant_no, d.pool_no, d.class, d.is_fire,
                   d.stages->l.stage AS here, d.stages->(l.stage + 1) AS beyond
            FROM ondot.waiting l JOIN ondot.gated d ON d.execution_id = l.execution_id
            WHERE l.gate_id = g.id AND l.ready_at <= instant
            ORDER BY l.ready_at, l.execution_id LIMIT 200 FOR UPDATE OF l SKIP LOCKED
        LOOP
            begin_at := instant;
            IF g.kind = 'rate' THEN
                IF free <= 0 THEN
                    later := instant;
                    EXIT;
                END IF;
                every := make_interval(secs => (w.here->>'every_s')::double precision);
                begin_at := greatest(instant, g.token_at - ((w.here->>'burst')::integer - 1) * every);
                IF begin_at > instant + ahead THEN
                    later := begin_at - ahead;
                    EXIT;
                END IF;
            ELSIF held >= (w.here->>'limit')::integer THEN
                IF g.kind = 'overlap' AND w.is_fire AND w.here->>'overlap' = 'skip' THEN
                    RETURN QUERY SELECT w.execution_id, 'skip', w.pool_no, instant;
                    asked := true;
                    CONTINUE;
                ELSIF g.kind = 'overlap' AND w.is_fire AND w.here->>'overlap' = 'cancel' THEN
                    IF newest IS NOT NULL THEN
                        RETURN QUERY SELECT newest, 'replace', w.pool_no, instant;
                    END IF;
                    newest := w.execution_id;
                    asked := true;
                    CONTINUE;
                END IF;
                full_up := true;
                CONTINUE WHEN g.kind = 'overlap';  -- behind what waits there may be a fire that does not
                EXIT;
            END IF;
            IF w.beyond IS NOT NULL THEN
                next_gate := (w.beyond->>'gate')::uuid;
                INSERT INTO ondot.gate (id, look_at, tenant_no, pool_no, kind, name)
                VALUES (next_gate, 'infinity', w.tenant_no, w.pool_no, w.beyond->>'kind', w.beyond->>'name')
                ON CONFLICT (id) DO NOTHING;
                PERFORM FROM ondot.gate WHERE id = next_gate FOR UPDATE SKIP LOCKED;
                IF NOT FOUND THEN
                    later := instant + soon;
                    EXIT;
                END IF;
            END IF;
            IF g.kind = 'rate' THEN
                g.token_at := greatest(g.token_at, begin_at, instant) + every;
                free := free - 1;
            ELSE
                INSERT INTO ondot.slot (gate_id, execution_id, tenant_no, until_end, held_at)
                VALUES (g.id, w.execution_id, w.tenant_no, (w.here->>'until_end')::boolean, instant);
                held := held + 1;
            END IF;
            DELETE FROM ondot.waiting WHERE gate_id = g.id AND ready_at = w.ready_at AND execution_id = w.execution_id;
            IF w.beyond IS NOT NULL THEN
                INSERT INTO ondot.waiting (gate_id, ready_at, execution_id, tenant_no, stage)
                VALUES (next_gate, w.ready_at, w.execution_id, w.tenant_no, w.stage + 1);
                UPDATE ondot.gate
                SET look_at = least(look_at, instant),
                    pool_no = CASE WHEN look_at = 'infinity' THEN w.pool_no ELSE pool_no END
                WHERE id = next_gate;
            ELSE
                UPDATE ondot.execution SET ready_at = begin_at, class = w.class WHERE id = w.execution_id;
                INSERT INTO ondot.ready (pool_no, class, tenant_no, ready_at, execution_id)
                VALUES (w.pool_no, w.class, w.tenant_no, begin_at, w.execution_id);
                RETURN QUERY SELECT w.execution_id, 'ready', w.pool_no, begin_at;
            END IF;
        END LOOP;
        IF newest IS NOT NULL THEN
            RETURN QUERY SELECT s.execution_id, 'cancel', g.pool_no, instant FROM ondot.slot s WHERE s.gate_id = g.id;
        END IF;
        -- When to look again: full, when somebody leaves; else when the next of the line is due.
        UPDATE ondot.gate
        SET token_at = g.token_at,
            look_at = CASE
                WHEN later IS NOT NULL THEN later
                WHEN full_up AND g.kind <> 'overlap' THEN 'infinity'
                ELSE coalesce(least(
                    CASE WHEN asked THEN instant + interval '1 second' END,
                    (SELECT min(l.ready_at) FROM ondot.waiting l
                     WHERE l.gate_id = g.id AND (l.ready_at > instant OR NOT full_up AND NOT asked))), 'infinity') END,
            pool_no = coalesce((SELECT d.pool_no FROM ondot.waiting l JOIN ondot.gated d ON d.execution_id = l.execution_id
                                WHERE l.gate_id = g.id ORDER BY l.ready_at, l.execution_id LIMIT 1), pool_no)
        WHERE id = g.id;
    END LOOP;
END $$;

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
    reason     text,
    actor      text NOT NULL,
    per_s      double precision NOT NULL,
    total      integer NOT NULL,
    done       integer NOT NULL DEFAULT 0,
    state      text NOT NULL CHECK (state IN ('RUNNING', 'DONE', 'CANCELLED')),
    turn_at    timestamptz NOT NULL,                  -- when it goes on
    through_at timestamptz,                           -- failed_at of the last one looked at
    through_id uuid,                                  -- and its id
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
