-- Execution: cancels, start deadlines, gates and their slots, limits of pools, dead letters that are replayed or
-- discarded, keys of unique, debounced and throttled jobs, references to object storage.

ALTER TABLE ondot.execution
    ADD COLUMN cancel_reason text,                    -- with cancel_at: why
    ADD COLUMN start_by timestamptz,                  -- the start deadline of its first attempt; NULL: none
    ADD COLUMN replay_of uuid,                        -- the execution it runs again
    ADD COLUMN gated boolean NOT NULL DEFAULT false;  -- it has a row in gated, or a slot of its pool
-- Leases change neither, so start and retry stay HOT updates.
CREATE INDEX execution_cancel ON ondot.execution (cancel_at) WHERE cancel_at IS NOT NULL;
CREATE INDEX execution_start_by ON ondot.execution (start_by) WHERE start_by IS NOT NULL;
ALTER TABLE ondot.history ADD COLUMN replay_of uuid;

-- A person cancelled coming fires one by one, the last of them at this instant. Up to it, plan looks into history before it
-- plans a fire.
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

-- Limited executions pass gates one after another. A transaction that counts slots or takes tokens locks the gate's row.
CREATE TABLE ondot.gate (
    id        uuid PRIMARY KEY,        -- made of tenant, kind and job or key (model.gates)
    token_at  timestamptz,             -- of a rate: when its bucket is full again
    tenant_no integer NOT NULL,
    kind      text NOT NULL CHECK (kind IN ('order', 'overlap', 'concurrency', 'rate')),
    name      text NOT NULL            -- the key, or the id of the job
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);

-- The gates of a live execution, in their order. Lines and slots follow this row by triggers, so that no statement can
-- forget them: when the row is inserted or updated, the execution waits in line; when it is deleted, it holds nothing.
CREATE TABLE ondot.gated (
    execution_id uuid PRIMARY KEY,
    ready_at     timestamptz NOT NULL,
    tenant_no    integer NOT NULL,
    pool_no      integer NOT NULL,
    class        smallint NOT NULL,
    is_fire      boolean NOT NULL,     -- false: a person asked for it; it waits where a fire would be skipped
    is_over      boolean NOT NULL DEFAULT false,  -- its execution has ended: the trigger deletes the row
    stages       jsonb NOT NULL        -- [{gate, kind, name, limit, until_end, overlap, every_s, burst}]
) WITH (fillfactor = 50);

-- The line of one pool before a gate, and when its workers look at it. An execution that enters and a worker that looks both
-- lock the row, so that an execution that enters meanwhile is not overlooked.
CREATE TABLE ondot.line (
    gate_id   uuid NOT NULL,
    pool_no   integer NOT NULL,
    tenant_no integer NOT NULL,
    is_rate   boolean NOT NULL,
    look_at   timestamptz NOT NULL,    -- when one may pass; infinity: none, until one leaves or enters
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

-- One row for each execution that has passed a gate or runs in a limited pool, so that a count cannot drift.
CREATE TABLE ondot.slot (
    gate_id      uuid NOT NULL,
    execution_id uuid NOT NULL,
    tenant_no    integer NOT NULL,
    until_end    boolean NOT NULL,     -- held over retries; otherwise for an attempt
    held_at      timestamptz NOT NULL,
    PRIMARY KEY (gate_id, execution_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX slot_execution ON ondot.slot (execution_id);

-- Keys of jobs that are unique, debounced or throttled: which job has the key, since when, and how many were submitted.
CREATE TABLE ondot.claim (
    tenant_no integer NOT NULL,
    kind      text NOT NULL CHECK (kind IN ('unique', 'debounce', 'throttle')),
    key       text NOT NULL,
    job_id    uuid NOT NULL,
    since_at  timestamptz NOT NULL,
    until_at  timestamptz NOT NULL,    -- after it the row has no effect, except for a unique job that is live
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

-- Operations on all dead letters that match a filter, a few at a time.
CREATE TABLE ondot.bulk (
    id         uuid PRIMARY KEY,
    tenant_no  integer NOT NULL,
    action     text NOT NULL CHECK (action IN ('replay', 'discard')),
    filter     jsonb NOT NULL,
    payload    json,                                  -- replay: instead of the old one
    current_version boolean NOT NULL,                 -- replay: with the job's current version
    reason     text,
    actor      text NOT NULL,
    per_s      double precision NOT NULL,
    total      integer NOT NULL,
    done       integer NOT NULL DEFAULT 0,
    state      text NOT NULL CHECK (state IN ('RUNNING', 'DONE', 'CANCELLED')),
    turn_at    timestamptz NOT NULL,                  -- when it continues
    through_at timestamptz,                           -- failed_at of the last one looked at
    through_id uuid,                                  -- and its id
    passed_over boolean NOT NULL DEFAULT false,       -- in this round some letters were locked by others
    created_at timestamptz NOT NULL,
    ended_at   timestamptz
) WITH (fillfactor = 50);
CREATE INDEX bulk_turn ON ondot.bulk (turn_at) WHERE state = 'RUNNING';
CREATE INDEX bulk_latest ON ondot.bulk (tenant_no, id);

CREATE INDEX audit_latest ON ondot.audit (tenant_no, id);
CREATE INDEX audit_subject ON ondot.audit (subject, id) WHERE subject IS NOT NULL;

-- Output that is too large for the database: its key in object storage.
CREATE TABLE ondot.object (
    execution_id uuid NOT NULL,
    attempt_no   integer NOT NULL,
    kind         text NOT NULL CHECK (kind IN ('result', 'log')),
    tenant_no    integer NOT NULL,
    key          text NOT NULL,
    bytes        bigint NOT NULL,
    cut          boolean NOT NULL DEFAULT false,      -- the rest was cut off
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

-- formerly 736d1cce6e4b85e70657b2bb4a397b49ecef4b268da45960aa6d4ad429f27463
