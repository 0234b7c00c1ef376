-- Sinks: where ondot's own events are sent. types: which ones, each spelled out. spec: where to, and in which form.
-- Apart from its state, which changes with each batch: every statement that ends executions reads this table.
CREATE TABLE ondot.sink (
    id         uuid PRIMARY KEY,
    tenant_no  integer NOT NULL,
    name       text NOT NULL,
    types      text[] NOT NULL,
    spec       json NOT NULL,
    is_paused  boolean NOT NULL DEFAULT false,
    version    integer NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT ondot.clock(),
    created_by text NOT NULL,
    updated_at timestamptz,
    updated_by text,
    UNIQUE (tenant_no, name)
);

-- position: the outbox up to this number is delivered. Counts are of events: sent, sent in a short form because the full
-- one was too large, refused by the receiver in both forms, and dropped because they were too old.
-- failing_since: of the row of failures that goes on; retry_at: when it is tried again.
CREATE TABLE ondot.sink_state (
    sink_id       uuid PRIMARY KEY,
    tenant_no     integer NOT NULL,
    position      bigint NOT NULL,
    sent          bigint NOT NULL DEFAULT 0,
    shortened     bigint NOT NULL DEFAULT 0,
    refused       bigint NOT NULL DEFAULT 0,
    dropped       bigint NOT NULL DEFAULT 0,
    sent_at       timestamptz,
    error         text,
    error_at      timestamptz,
    failing_since timestamptz,
    tries         integer NOT NULL DEFAULT 0,
    retry_at      timestamptz
) WITH (fillfactor = 50);
CREATE INDEX sink_state_tenant ON ondot.sink_state (tenant_no, position);

-- What happened, for sinks. Written by the statement that makes it happen, only if a sink of the tenant wants the type. One
-- row for all executions of a statement that have the same tenant and type, with their ids alone. xid comes before no: a
-- transaction has its number before its rows have theirs (flow.sinks.horizon).
CREATE TABLE ondot.outbox (
    xid           xid8 NOT NULL DEFAULT pg_current_xact_id(),
    no            bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    at            timestamptz NOT NULL DEFAULT ondot.clock(),
    tenant_no     integer NOT NULL,
    type          text NOT NULL,
    job_ids       uuid[] NOT NULL,
    execution_ids uuid[],
    attempt_nos   integer[],
    retry_ats     timestamptz[],
    detail        json,
    PRIMARY KEY (tenant_no, no)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
ALTER TABLE ondot.outbox ALTER job_ids SET STORAGE EXTERNAL, ALTER execution_ids SET STORAGE EXTERNAL;
