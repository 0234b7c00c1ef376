-- Tenants are created, suspended and deleted (T1, T2).
--
-- The indexes on tenant_no have no entry of the first tenant: an installation with one tenant pays nothing for them. They
-- find the executions and timers of a tenant that is deleted, and count the live jobs of one that has a quota.
--
-- A timer or owed range of a tenant that is not active is parked: its partition_no becomes -1 - partition_no, so that no
-- node reads it again until the tenant is resumed. Roles of the release before do not look there either.

CREATE INDEX timer_tenant ON ondot.timer (tenant_no) WHERE tenant_no > 1;
CREATE INDEX execution_tenant ON ondot.execution (tenant_no) WHERE tenant_no > 1;

ALTER TABLE ondot.tenant
    ADD COLUMN has_parked boolean NOT NULL DEFAULT false, -- timers or owed ranges of it may be parked
    ADD COLUMN removed bigint NOT NULL DEFAULT 0,         -- rows that its deletion has removed
    ADD COLUMN removed_share real NOT NULL DEFAULT 0,     -- how much of the tables was looked at
    ADD COLUMN purged_at timestamptz;                     -- nothing of it is left
CREATE INDEX tenant_stopped ON ondot.tenant (tenant_no) WHERE state <> 'ACTIVE';
CREATE INDEX tenant_chores ON ondot.tenant (tenant_no)
    WHERE has_parked AND state = 'ACTIVE' OR state = 'DELETED' AND purged_at IS NULL;

-- The tokens of a quota that is a rate: empty at token_at, one more each `every` seconds. Separate from the tenant's row,
-- which every process reads again when it changes.
CREATE TABLE ondot.quota_token (
    tenant_no integer NOT NULL,
    quota     text NOT NULL,
    token_at  timestamptz NOT NULL,
    PRIMARY KEY (tenant_no, quota)
) WITH (fillfactor = 50);

-- The live jobs of tenants that have a quota of them, counted each second.
CREATE TABLE ondot.job_count (
    tenant_no  integer PRIMARY KEY,
    jobs       bigint NOT NULL,
    counted_at timestamptz NOT NULL
) WITH (fillfactor = 50);
