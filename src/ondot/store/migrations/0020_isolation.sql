-- Which tenants a worker serves, where a tenant's calls may go, ondot's own endpoints, and the keys that sign calls.

-- NULL: all tenants, as the workers of the release before.
ALTER TABLE ondot.worker ADD COLUMN tenant_nos integer[];

-- Networks that its calls may reach besides the public internet, as {"private_networks": ["10.1.0.0/16"]}.
ALTER TABLE ondot.tenant ADD COLUMN targets jsonb NOT NULL DEFAULT '{}';

-- Where the API's processes listen, each with its last sign of life: jobs of tenants other than the first never call them.
CREATE TABLE ondot.listener (
    id        uuid PRIMARY KEY,
    tenant_no integer NOT NULL DEFAULT 0,
    host      text NOT NULL,
    addresses inet[] NOT NULL,
    port      integer NOT NULL,
    url       text NOT NULL,
    seen_at   timestamptz NOT NULL DEFAULT ondot.clock()
);

-- The root key of a tenant's signatures, sealed with its data key. The newest version is the current one; older ones sign
-- beside it until they end.
CREATE TABLE ondot.signing_key (
    tenant_no  integer NOT NULL,
    version    integer NOT NULL,
    key_no     integer NOT NULL,
    sealed     bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT ondot.clock(),
    ends_at    timestamptz,
    PRIMARY KEY (tenant_no, version)
);
