-- ondot.audit_entered(): trigger. An entry of the audit log waits in audit_open until it is sealed. No statement can forget
-- it, and roles of the release before need not know of it.
CREATE OR REPLACE FUNCTION ondot.audit_entered() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO ondot.audit_open (id, tenant_no) SELECT id, tenant_no FROM entered;
    RETURN NULL;
END $$;

-- triggers
CREATE OR REPLACE TRIGGER audit_entered AFTER INSERT ON ondot.audit REFERENCING NEW TABLE AS entered
    FOR EACH STATEMENT EXECUTE FUNCTION ondot.audit_entered();
