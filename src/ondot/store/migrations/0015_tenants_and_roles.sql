-- Tenants have a state, a weight, pools and quotas; keys have a role, scopes, pools, an end and a last use.
--
-- The release before reads and writes keys and tenants by the columns that it knows: the new ones have defaults. Its keys
-- could do everything that a tenant may, so they become keys of an admin, which have every scope.

CREATE SEQUENCE ondot.tenant_no AS integer;
SELECT setval('ondot.tenant_no', (SELECT max(tenant_no) FROM ondot.tenant));

ALTER TABLE ondot.tenant
    ALTER COLUMN tenant_no SET DEFAULT nextval('ondot.tenant_no'),
    ADD COLUMN state       text NOT NULL DEFAULT 'ACTIVE' CHECK (state IN ('ACTIVE', 'SUSPENDED', 'DELETED')),
    ADD COLUMN weight      double precision NOT NULL DEFAULT 1 CHECK (weight > 0),
    ADD COLUMN pools       text[] NOT NULL DEFAULT '{default}',
    ADD COLUMN quotas      jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN version     integer NOT NULL DEFAULT 1,
    ADD COLUMN updated_at  timestamptz,
    ADD COLUMN deleted_at  timestamptz,
    ADD COLUMN changed_xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    DROP CONSTRAINT tenant_name_key;

-- A tenant of the release before could name every pool that exists.
UPDATE ondot.tenant SET pools = '{*}';

-- The name of a deleted tenant is free; its number never is.
CREATE UNIQUE INDEX tenant_name ON ondot.tenant (name) WHERE state <> 'DELETED';
CREATE INDEX tenant_changed ON ondot.tenant (changed_xid);

ALTER TABLE ondot.key
    ADD COLUMN role         text NOT NULL DEFAULT 'admin'
        CHECK (role IN ('viewer', 'operator', 'editor', 'admin', 'owner', 'worker')),
    ADD COLUMN scopes       text[],
    ADD COLUMN pools        text[],
    ADD COLUMN expires_at   timestamptz,
    ADD COLUMN last_used_at timestamptz,
    ADD COLUMN created_by   text,
    ADD COLUMN replaced_by  uuid;
