-- Quotas of tenants that are counted when work is leased, and the slots that tenants hold, as workers report them.

-- One row for each tenant with such a quota, and for each that is suspended or deleted. ondot.tenant_limits_changed writes
-- it. is_counted: tenant_running counts all that runs of it; until then nothing of it is leased.
CREATE TABLE ondot.tenant_limit (
    tenant_no  integer PRIMARY KEY,
    is_stopped boolean NOT NULL,
    is_counted boolean NOT NULL DEFAULT false,
    concurrent integer,
    reserved   integer,
    rate_limit integer,
    rate_per_s double precision,
    rate_burst integer,
    token_at   timestamptz
) WITH (fillfactor=50);

-- How many attempts of such a tenant a worker runs in a pool. Only the sums over workers count: an execution that is taken
-- from a worker in a repair is added to one and subtracted from another.
CREATE TABLE ondot.tenant_running (
    tenant_no integer NOT NULL,
    worker_id uuid NOT NULL,
    pool_no   integer NOT NULL,
    running   integer NOT NULL,
    PRIMARY KEY (tenant_no, worker_id, pool_no)
) WITH (fillfactor=50, autovacuum_vacuum_scale_factor=0.02);

-- [{"tenant_no": 1, "slots": 5}]
ALTER TABLE ondot.worker ADD COLUMN held jsonb NOT NULL DEFAULT '[]';
