-- Connections: the address of a broker or a server and its credentials, kept once for all jobs that name it (E3).
-- spec: credentials in it are sealed. tested_at, test_error: when it was tested last, and what was wrong (NULL: nothing).
CREATE TABLE ondot.connection (
    tenant_no  integer NOT NULL,
    name       text NOT NULL,
    spec       jsonb NOT NULL,
    version    integer NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT ondot.clock(),
    created_by text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT ondot.clock(),
    updated_by text NOT NULL,
    tested_at  timestamptz,
    test_error text,
    PRIMARY KEY (tenant_no, name)
);

-- Which jobs name a connection: those that recur or have a key. A row ends with its job.
CREATE TABLE ondot.connection_use (
    tenant_no integer NOT NULL,
    name      text NOT NULL,
    job_id    uuid NOT NULL REFERENCES ondot.job (id) ON DELETE CASCADE,
    PRIMARY KEY (tenant_no, name, job_id)
);
CREATE INDEX connection_use_job ON ondot.connection_use (job_id);
