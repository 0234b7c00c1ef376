-- ondot.mark_tenant_changed(): records the transaction that changed a tenant.
-- Callers: the trigger below. Processes remember tenants and read only those that changed since their last snapshot: by
-- transaction, because times and the numbers of a sequence become visible out of order.
CREATE OR REPLACE FUNCTION ondot.mark_tenant_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.changed_xid := pg_current_xact_id();
    RETURN NEW;
END $$;

-- triggers
CREATE OR REPLACE TRIGGER tenant_changed BEFORE UPDATE ON ondot.tenant
    FOR EACH ROW EXECUTE FUNCTION ondot.mark_tenant_changed();
