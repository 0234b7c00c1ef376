-- What the code of apps declares, apart from what is in force (D4).

-- release: whose declarations were applied last.
CREATE TABLE ondot.app (
    tenant_no   integer NOT NULL,
    name        text NOT NULL,
    release     text,
    declared_at timestamptz,
    PRIMARY KEY (tenant_no, name)
);

-- no: the order in which releases were first seen. seen_at: when one of its workers was last alive.
CREATE TABLE ondot.app_release (
    tenant_no     integer NOT NULL,
    app           text NOT NULL,
    release       text NOT NULL,
    no            bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    first_seen_at timestamptz NOT NULL DEFAULT ondot.clock(),
    seen_at       timestamptz NOT NULL DEFAULT ondot.clock(),
    PRIMARY KEY (tenant_no, app, release)
);

-- document: as the code last declared the job with this key. release, declared_at: when that last changed.
-- version: the version of the job that is as declared (NULL: what an operator changed was kept).
-- dropped_at, dropped_release: the code no longer declares it.
CREATE TABLE ondot.declared (
    tenant_no       integer NOT NULL,
    key             text NOT NULL,
    app             text NOT NULL,
    job_id          uuid NOT NULL,
    document        json NOT NULL,
    first_release   text NOT NULL,
    release         text NOT NULL,
    declared_at     timestamptz NOT NULL DEFAULT ondot.clock(),
    version         integer,
    dropped_at      timestamptz,
    dropped_release text,
    PRIMARY KEY (tenant_no, key)
);
CREATE INDEX declared_job ON ondot.declared (job_id);
CREATE INDEX declared_app ON ondot.declared (tenant_no, app);

-- Declarations that were not applied, and why; those of an app's last declaration.
CREATE TABLE ondot.declared_refused (
    tenant_no  integer NOT NULL,
    app        text NOT NULL,
    key        text NOT NULL,
    release    text NOT NULL,
    why        text NOT NULL,
    refused_at timestamptz NOT NULL DEFAULT ondot.clock(),
    PRIMARY KEY (tenant_no, app, key)
);
