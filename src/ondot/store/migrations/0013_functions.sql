-- Functions and triggers have their text in functions/; this table records which text is applied.
CREATE TABLE ondot.function (
    name       text PRIMARY KEY,
    tenant_no  integer NOT NULL DEFAULT 0,
    checksum   text NOT NULL,
    release    text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT statement_timestamp()
);

-- No role of the release before calls these.
DROP FUNCTION IF EXISTS ondot.add_day(text), ondot.instant_of(uuid), ondot.admit(integer[], boolean, integer);
