-- Secrets at rest. A data key encrypts the secrets of one tenant, and is itself wrapped with a master key that is never in
-- the database: `master` is the id of that key. The place of a sealed value (tenant, name, version) is part of its
-- encryption, so that a value that is moved to another row does not open.

CREATE TABLE ondot.data_key (
    tenant_no  integer NOT NULL,
    key_no     integer NOT NULL,
    master     text NOT NULL,
    wrapped    bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT ondot.clock(),
    wrapped_at timestamptz NOT NULL DEFAULT ondot.clock(),
    PRIMARY KEY (tenant_no, key_no)
);

-- Lists that are NULL: any. `mark` is a keyed hash of the value: the same value again makes no new version.
CREATE TABLE ondot.secret (
    tenant_no  integer NOT NULL,
    name       text NOT NULL,
    version    integer NOT NULL,
    key_no     integer NOT NULL,
    sealed     bytea NOT NULL,
    mark       bytea NOT NULL,
    hosts      text[],
    functions  text[],
    pools      text[],
    created_at timestamptz NOT NULL DEFAULT ondot.clock(),
    created_by text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT ondot.clock(),
    updated_by text NOT NULL,
    PRIMARY KEY (tenant_no, name)
);

-- Which jobs refer to a secret: those that recur or have a key. A row ends with its job.
CREATE TABLE ondot.secret_use (
    tenant_no integer NOT NULL,
    name      text NOT NULL,
    job_id    uuid NOT NULL REFERENCES ondot.job (id) ON DELETE CASCADE,
    PRIMARY KEY (tenant_no, name, job_id)
);
CREATE INDEX secret_use_job ON ondot.secret_use (job_id);
