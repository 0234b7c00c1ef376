-- The tables of the architecture document. Every table has tenant_no; 0 is the installation itself (nodes, workers,
-- leases). There are no foreign keys on hot tables: each costs a row lock and an index probe for every insert and delete.

CREATE TABLE ondot.installation (
    tenant_no       integer NOT NULL DEFAULT 0,
    partitions      integer NOT NULL,
    -- The oldest release that may use this schema. A migration that removes something raises it.
    oldest_release  text NOT NULL,
    one_row         boolean PRIMARY KEY DEFAULT true CHECK (one_row)
);
INSERT INTO ondot.installation (partitions, oldest_release) VALUES (64, '0.1.0');

CREATE TABLE ondot.tenant (
    tenant_no  integer PRIMARY KEY,
    name       text NOT NULL UNIQUE,
    created_at timestamptz NOT NULL DEFAULT statement_timestamp()
);
INSERT INTO ondot.tenant (tenant_no, name) VALUES (0, 'installation'), (1, 'default');

CREATE TABLE ondot.key (
    id         uuid PRIMARY KEY,
    tenant_no  integer NOT NULL,
    name       text NOT NULL,
    hash       bytea NOT NULL UNIQUE,
    created_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    revoked_at timestamptz
);

CREATE TABLE ondot.pool (
    pool_no    integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_no  integer NOT NULL,
    name       text NOT NULL,
    transport  text NOT NULL DEFAULT 'postgres',
    created_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    UNIQUE (tenant_no, name)
);
INSERT INTO ondot.pool (tenant_no, name) VALUES (1, 'default');

-- Jobs ------------------------------------------------------------------------------------------------------------

CREATE TABLE ondot.job (
    id         uuid PRIMARY KEY,
    tenant_no  integer NOT NULL,
    key        text,
    name       text NOT NULL,
    state      text NOT NULL CHECK (state IN ('ACTIVE', 'PAUSED', 'DELETED')), -- shown as ENDED when nothing is left to fire
    version    integer NOT NULL,      -- of the spec: a row of job_version
    pool_no    integer NOT NULL,
    labels     jsonb NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX job_key ON ondot.job (tenant_no, key) WHERE key IS NOT NULL AND state <> 'DELETED';
CREATE INDEX job_name ON ondot.job (tenant_no, name);

CREATE TABLE ondot.job_version (
    job_id     uuid NOT NULL,
    version    integer NOT NULL,
    tenant_no  integer NOT NULL,
    spec       json NOT NULL,         -- as submitted: json keeps the order of a payload's keys, jsonb would not
    created_at timestamptz NOT NULL,
    PRIMARY KEY (job_id, version)
);

-- One-time jobs: written once, by day, dropped with history. A job that is changed moves to job, which takes precedence.
CREATE TABLE ondot.job_once (
    id        uuid NOT NULL PRIMARY KEY,
    tenant_no integer NOT NULL,
    name      text NOT NULL,
    pool_no   integer NOT NULL,
    fire_at   timestamptz NOT NULL,
    labels    jsonb NOT NULL,
    spec      json NOT NULL
) PARTITION BY RANGE (id);

-- Narrow on purpose: moving a wide row somewhere in the table costs a full page of WAL after each checkpoint.
CREATE TABLE ondot.timer (
    job_id        uuid PRIMARY KEY,
    next_fire_at  timestamptz NOT NULL,  -- infinity: paused, or no further fire
    fired_through timestamptz,           -- no fire at or before it is planned again
    version       integer NOT NULL,      -- the fence: every change of the job raises it
    job_version   integer NOT NULL,      -- the spec it fires by
    fires_left    integer,
    tenant_no     integer NOT NULL,
    partition_no  smallint NOT NULL
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX timer_due ON ondot.timer (partition_no, next_fire_at);

CREATE TABLE ondot.skipped (
    job_id    uuid NOT NULL,
    from_at   timestamptz NOT NULL,
    to_at     timestamptz NOT NULL,
    tenant_no integer NOT NULL,
    reason    text NOT NULL,
    count     integer,                   -- NULL: more than were counted
    at        timestamptz NOT NULL DEFAULT statement_timestamp(),
    PRIMARY KEY (job_id, from_at, to_at)
);

-- Ranges still to be run: catch-up after an outage, and backfills.
CREATE TABLE ondot.owed (
    id         uuid PRIMARY KEY,
    tenant_no  integer NOT NULL,
    job_id     uuid NOT NULL,
    job_version integer NOT NULL,
    from_at    timestamptz NOT NULL,
    to_at      timestamptz NOT NULL,
    origin     text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT statement_timestamp()
);
CREATE INDEX owed_job ON ondot.owed (job_id);

-- Executions ------------------------------------------------------------------------------------------------------

-- Every execution that has not ended. No index has a column that a lease changes, and half of each page is free, so that
-- start and retry are HOT updates.
CREATE TABLE ondot.execution (
    id          uuid PRIMARY KEY,
    job_id      uuid NOT NULL,
    worker_id   uuid,
    fire_at     timestamptz NOT NULL,
    ready_at    timestamptz NOT NULL,
    started_at  timestamptz,
    cancel_at   timestamptz,
    tenant_no   integer NOT NULL,
    job_version integer NOT NULL,
    pool_no     integer NOT NULL,
    attempt_no  integer NOT NULL DEFAULT 0,
    failures    integer NOT NULL DEFAULT 0,
    losses      integer NOT NULL DEFAULT 0,
    class       smallint NOT NULL,
    state       text NOT NULL,
    origin      text NOT NULL,
    payload     json                     -- instead of the spec's: run-now and replay
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX execution_fire ON ondot.execution (job_id, fire_at) WHERE origin IN ('fire', 'backfill');
CREATE INDEX execution_other ON ondot.execution (job_id, fire_at) WHERE origin NOT IN ('fire', 'backfill');

-- The queue: rows are only inserted and deleted. A lane is (pool, class, tenant): one range of this index.
CREATE TABLE ondot.ready (
    pool_no      integer NOT NULL,
    class        smallint NOT NULL,
    tenant_no    integer NOT NULL,
    ready_at     timestamptz NOT NULL,
    execution_id uuid NOT NULL,
    PRIMARY KEY (pool_no, class, tenant_no, ready_at, execution_id)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);

-- Executions of limited jobs, until they are admitted into ready; and the counters that admit them.
CREATE TABLE ondot.gate (
    id        uuid PRIMARY KEY,
    tenant_no integer NOT NULL,
    job_id    uuid,
    key       text,
    capacity  integer NOT NULL,
    used      integer NOT NULL DEFAULT 0
);
CREATE TABLE ondot.waiting (
    gate_id      uuid NOT NULL,
    ready_at     timestamptz NOT NULL,
    execution_id uuid NOT NULL,
    tenant_no    integer NOT NULL,
    pool_no      integer NOT NULL,
    class        smallint NOT NULL,
    PRIMARY KEY (gate_id, ready_at, execution_id)
);

-- One row for each leased batch: recovery reads these instead of all executions.
CREATE TABLE ondot.lease (
    id            uuid PRIMARY KEY,
    tenant_no     integer NOT NULL DEFAULT 0,
    worker_id     uuid NOT NULL,
    leased_at     timestamptz NOT NULL,
    execution_ids uuid[] NOT NULL,
    attempt_nos   integer[] NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX lease_worker ON ondot.lease (worker_id);

CREATE TABLE ondot.history (
    id          uuid NOT NULL PRIMARY KEY,
    job_id      uuid NOT NULL,
    worker_id   uuid,
    fire_at     timestamptz NOT NULL,
    ready_at    timestamptz NOT NULL,
    started_at  timestamptz,
    ended_at    timestamptz NOT NULL,
    tenant_no   integer NOT NULL,
    job_version integer NOT NULL,
    pool_no     integer NOT NULL,
    attempt_no  integer NOT NULL,
    failures    integer NOT NULL,
    losses      integer NOT NULL,
    class       smallint NOT NULL,
    state       text NOT NULL,
    origin      text NOT NULL,
    reason      text,
    payload     json,
    result      json,
    error       jsonb
) PARTITION BY RANGE (id);
CREATE INDEX history_job ON ondot.history (job_id, fire_at);
CREATE INDEX history_not_succeeded ON ondot.history (tenant_no, id) WHERE state <> 'SUCCEEDED';

-- Attempts that did not succeed; the one that did is in history.
CREATE TABLE ondot.attempt (
    execution_id uuid NOT NULL,
    attempt_no   integer NOT NULL,
    tenant_no    integer NOT NULL,
    worker_id    uuid,
    outcome      text NOT NULL,
    started_at   timestamptz,
    ended_at     timestamptz NOT NULL,
    error        jsonb,
    PRIMARY KEY (execution_id, attempt_no)
) PARTITION BY RANGE (execution_id);

CREATE TABLE ondot.log (
    execution_id uuid NOT NULL,
    attempt_no   integer NOT NULL,
    line_no      integer NOT NULL,
    tenant_no    integer NOT NULL,
    at           timestamptz NOT NULL,
    stream       text NOT NULL,
    line         text NOT NULL,
    PRIMARY KEY (execution_id, attempt_no, line_no)
) PARTITION BY RANGE (execution_id);

CREATE TABLE ondot.audit (
    id        uuid NOT NULL PRIMARY KEY,
    tenant_no integer NOT NULL,
    actor     text NOT NULL,
    action    text NOT NULL,
    subject   uuid,
    detail    jsonb
) PARTITION BY RANGE (id);

CREATE TABLE ondot.checkpoint (
    execution_id uuid PRIMARY KEY,
    tenant_no    integer NOT NULL,
    checkpoint   json,
    progress     real,
    message      text,
    at           timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE ondot.dead_letter (
    execution_id uuid PRIMARY KEY,
    tenant_no    integer NOT NULL,
    job_id       uuid NOT NULL,
    job_version  integer NOT NULL,
    failed_at    timestamptz NOT NULL,
    reason       text,
    error        jsonb,
    payload      json
);
CREATE INDEX dead_letter_latest ON ondot.dead_letter (tenant_no, failed_at);

CREATE TABLE ondot.idempotency (
    tenant_no    integer NOT NULL,
    key          text NOT NULL,
    request_hash bytea NOT NULL,
    answer       json,                   -- NULL only inside the transaction that creates it
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (tenant_no, key)
);
CREATE INDEX idempotency_age ON ondot.idempotency (created_at);

-- The fleet -------------------------------------------------------------------------------------------------------

CREATE TABLE ondot.worker (
    id          uuid PRIMARY KEY,        -- an incarnation: never used again
    tenant_no   integer NOT NULL DEFAULT 0,
    state       text NOT NULL CHECK (state IN ('ALIVE', 'DRAINING', 'GONE', 'LOST')),
    host        text NOT NULL,
    pid         integer NOT NULL,
    release     text NOT NULL,
    pool_nos    integer[] NOT NULL,
    slots       integer NOT NULL,
    running     integer NOT NULL DEFAULT 0,
    lease_ids   uuid[] NOT NULL DEFAULT '{}',   -- the leases it holds, as of its last beat
    bounds      jsonb NOT NULL DEFAULT '[]',    -- [{pool_no, class, tenant_no, from_at}]: it no longer looks before these
    started_at  timestamptz NOT NULL,
    beat_at     timestamptz NOT NULL,
    beat_no     bigint NOT NULL DEFAULT 0,
    ended_at    timestamptz
) WITH (fillfactor = 50);

CREATE TABLE ondot.node (
    id         uuid PRIMARY KEY,
    tenant_no  integer NOT NULL DEFAULT 0,
    host       text NOT NULL,
    pid        integer NOT NULL,
    release    text NOT NULL,
    started_at timestamptz NOT NULL,
    beat_at    timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Owned until the owner's row in node expires: a node renews one row, not one for each partition.
CREATE TABLE ondot.partition (
    partition_no smallint PRIMARY KEY,
    tenant_no    integer NOT NULL DEFAULT 0,
    owner        uuid,
    epoch        bigint NOT NULL DEFAULT 0,
    owned_since  timestamptz
) WITH (fillfactor = 50);
INSERT INTO ondot.partition (partition_no) SELECT generate_series(0, 63);

-- Day partitions --------------------------------------------------------------------------------------------------

-- Tables partitioned by day on a UUIDv7. There are catch-alls at both ends, because an id without a partition would fail its
-- whole batch; and no DEFAULT, which forbids DETACH CONCURRENTLY. Days from first_day up to next_day (not included) have a
-- partition.
CREATE TABLE ondot.day_table (
    parent    text PRIMARY KEY,
    tenant_no integer NOT NULL DEFAULT 0,
    id_column text NOT NULL,
    first_day date NOT NULL,
    next_day  date NOT NULL
);

DO $$
DECLARE
    today date := (statement_timestamp() AT TIME ZONE 'UTC')::date;
    cut text[];
BEGIN
    FOREACH cut SLICE 1 IN ARRAY ARRAY[
        ['job_once', 'id'], ['history', 'id'], ['attempt', 'execution_id'], ['log', 'execution_id'], ['audit', 'id']
    ] LOOP
        EXECUTE format('CREATE TABLE ondot.%I PARTITION OF ondot.%I FOR VALUES FROM (MINVALUE) TO (%L)',
                       cut[1] || '_past', cut[1], ondot.day_starts(today));
        EXECUTE format('CREATE TABLE ondot.%I PARTITION OF ondot.%I FOR VALUES FROM (%L) TO (MAXVALUE)',
                       cut[1] || '_ahead', cut[1], ondot.day_starts(today));
        INSERT INTO ondot.day_table (parent, id_column, first_day, next_day) VALUES (cut[1], cut[2], today, today);
    END LOOP;
END $$;

-- formerly a089ca803d18d08ea3312763a63b3ba818ccb71af6a15e3ddcd0c2ad3ba00908
