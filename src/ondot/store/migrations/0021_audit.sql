-- The audit log (T6): where a change came from, its values before and after, and seals that show whether an entry was
-- changed, removed or added later.
--
-- A chain in every write would make each tenant's log a hot row. So an entry that is written also enters audit_open, in the
-- same transaction, and a sealer takes out what has committed, each second. A transaction that commits late delays its own
-- entries only. The trigger also serves roles of the release before; its text in force is in functions/audit_entered.sql.

ALTER TABLE ondot.audit
    ADD COLUMN key_id         uuid,
    ADD COLUMN user_id        uuid,
    ADD COLUMN address        text,
    ADD COLUMN request_id     text,
    ADD COLUMN home_tenant_no integer,
    ADD COLUMN before         jsonb,
    ADD COLUMN after          jsonb;

-- One-time jobs are not in the log: each records the key or user that created it. NULL takes no space.
ALTER TABLE ondot.job_once ADD COLUMN created_by uuid;

CREATE TABLE ondot.audit_open (
    id        uuid PRIMARY KEY,
    tenant_no integer NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);

-- Entries from before this table existed are sealed as they are.
INSERT INTO ondot.audit_open (id, tenant_no) SELECT id, tenant_no FROM ondot.audit;

CREATE TABLE ondot.audit_seal (
    tenant_no integer NOT NULL,
    seq       bigint NOT NULL,
    at        timestamptz NOT NULL,
    from_id   uuid NOT NULL,
    to_id     uuid NOT NULL,
    count     integer NOT NULL,
    format    smallint NOT NULL,
    ids       uuid[] NOT NULL,
    digests   bytea NOT NULL,
    prev      bytea NOT NULL,
    hash      bytea NOT NULL,
    key_id    text,
    mac       bytea,
    PRIMARY KEY (tenant_no, seq)
);
CREATE INDEX audit_seal_range ON ondot.audit_seal (tenant_no, to_id, from_id);

CREATE OR REPLACE FUNCTION ondot.audit_entered() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO ondot.audit_open (id, tenant_no) SELECT id, tenant_no FROM entered;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER audit_entered AFTER INSERT ON ondot.audit REFERENCING NEW TABLE AS entered
    FOR EACH STATEMENT EXECUTE FUNCTION ondot.audit_entered();
