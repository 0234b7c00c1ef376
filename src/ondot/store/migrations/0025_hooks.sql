-- Hooks: a URL with a secret token, which turns a plain webhook into an event of this type and source.
-- The token is stored as its SHA-256. After a rotation the token before it works until `hash_until`, the signing secret
-- before it until `sealed_until`. A sealed value opens only with the id of its hook.
CREATE TABLE ondot.hook (
    id            uuid PRIMARY KEY,
    tenant_no     integer NOT NULL,
    name          text NOT NULL,
    type          text NOT NULL,
    source        text NOT NULL,
    signature     text NOT NULL,
    header        text NOT NULL,
    hash          bytea NOT NULL,
    hash_before   bytea,
    hash_until    timestamptz,
    key_no        integer,
    sealed        bytea,
    key_no_before integer,
    sealed_before bytea,
    sealed_until  timestamptz,
    created_at    timestamptz NOT NULL DEFAULT ondot.clock(),
    created_by    text NOT NULL,
    rotated_at    timestamptz,
    last_used_at  timestamptz,
    UNIQUE (tenant_no, name)
);
CREATE UNIQUE INDEX hook_hash ON ondot.hook (hash);
CREATE UNIQUE INDEX hook_hash_before ON ondot.hook (hash_before) WHERE hash_before IS NOT NULL;

-- Executions that collect events. An open window takes more events of its key (a hash); one that is closed stays until
-- its execution has started. marks: of each event in a list, by which values cancel_on finds it.
CREATE TABLE ondot.event_window (
    execution_id uuid PRIMARY KEY,
    job_id       uuid NOT NULL,
    key          uuid NOT NULL,
    opened_at    timestamptz NOT NULL,
    tenant_no    integer NOT NULL,
    events       integer NOT NULL,
    bytes        integer NOT NULL,
    is_open      boolean NOT NULL,
    marks        jsonb
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX event_window_open ON ondot.event_window (job_id, key) WHERE is_open;

-- By which values of its event (a hash of path and value) cancel_on finds an execution.
CREATE TABLE ondot.cancel_key (
    job_id       uuid NOT NULL,
    key          uuid NOT NULL,
    execution_id uuid NOT NULL,
    tenant_no    integer NOT NULL,
    PRIMARY KEY (job_id, key, execution_id)
);
CREATE INDEX cancel_key_execution ON ondot.cancel_key (execution_id);

-- ondot's own events that wait to be matched. Written by the statement that ends an execution, only if jobs of its tenant
-- start by such events; removed by the transaction that starts what they match.
CREATE INDEX subscription_own ON ondot.subscription (tenant_no, type) WHERE type LIKE 'ondot.%';
CREATE TABLE ondot.own_event (
    no           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at           timestamptz NOT NULL,
    job_id       uuid NOT NULL,
    execution_id uuid,
    tenant_no    integer NOT NULL,
    type         text NOT NULL,
    reason       text
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
CREATE INDEX own_event_tenant ON ondot.own_event (tenant_no, no);

-- Steps of workflows that wait for an event: execution_id is the token of the step, rule the event that it waits for.
CREATE TABLE ondot.event_wait (
    execution_id uuid PRIMARY KEY,
    run_id       uuid NOT NULL,
    tenant_no    integer NOT NULL,
    type         text NOT NULL,
    rule         json NOT NULL
);
CREATE INDEX event_wait_type ON ondot.event_wait (tenant_no, type);
