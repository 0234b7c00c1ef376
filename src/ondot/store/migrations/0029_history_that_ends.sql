-- History that ends: days past their retention are rewritten with what must stay.

-- NULL: as long as the installation keeps history.
ALTER TABLE ondot.tenant ADD COLUMN retention_days integer
    CONSTRAINT tenant_retention_days_check CHECK (retention_days BETWEEN 1 AND 3650);

-- Since when the history of a tenant is complete: what ended before may be gone. It never moves back.
CREATE TABLE ondot.kept_from (
    tenant_no integer PRIMARY KEY,
    at        timestamptz NOT NULL
) WITH (fillfactor = 50);

-- A rewriting under way, at most one for each table that is cut by day. The rows of `sources` that stay are copied into
-- `copy`, some at a time: `place` is the source that is copied now, and its ids below `through_id` are done. Each step
-- locks this row, and writes its progress together with its rows.
CREATE TABLE ondot.day_copy (
    parent       text PRIMARY KEY,
    tenant_no    integer NOT NULL DEFAULT 0,
    sources      text[] NOT NULL,
    copy         text NOT NULL,
    from_id      uuid,
    before_id    uuid NOT NULL,
    days         integer NOT NULL,
    cutoff       timestamptz NOT NULL,
    tenant_nos   integer[] NOT NULL,
    cutoffs      timestamptz[] NOT NULL,
    place        integer NOT NULL DEFAULT 1,
    through_id   uuid,
    is_copied    boolean NOT NULL DEFAULT false,
    started_at   timestamptz NOT NULL DEFAULT statement_timestamp(),
    found        bigint NOT NULL DEFAULT 0,
    bytes_before bigint NOT NULL DEFAULT 0,
    reasons      jsonb NOT NULL DEFAULT '{}'
) WITH (fillfactor = 50);

-- Ids that were written to a day while it is copied: a trigger on the day's table enters them.
CREATE TABLE ondot.day_touched (
    parent    text NOT NULL,
    tenant_no integer NOT NULL DEFAULT 0,
    id        uuid NOT NULL
);

-- The last rewriting of each partition. days: the retention that it applied.
CREATE TABLE ondot.day_rewritten (
    parent       text NOT NULL,
    name         text NOT NULL,
    tenant_no    integer NOT NULL DEFAULT 0,
    days         integer NOT NULL,
    at           timestamptz NOT NULL,
    took_s       double precision NOT NULL,
    removed      bigint NOT NULL,
    kept         bigint NOT NULL,
    bytes_before bigint NOT NULL,
    bytes_after  bigint NOT NULL,
    reasons      jsonb NOT NULL,
    PRIMARY KEY (parent, name)
);

-- The last seal of each audit log that was removed with the entries it lists: the chain goes on from its hash.
CREATE TABLE ondot.audit_cut (
    tenant_no integer PRIMARY KEY,
    seq       bigint NOT NULL,
    hash      bytea NOT NULL,
    at        timestamptz NOT NULL,
    key_id    text,
    mac       bytea
);

-- Each tenant has its own retention, for runs too.
DROP INDEX ondot.run_ended;
CREATE INDEX run_ended ON ondot.run (tenant_no, ended_at) WHERE ended_at IS NOT NULL;
