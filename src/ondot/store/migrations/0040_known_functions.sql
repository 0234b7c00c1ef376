-- Functions that workers have registered, by release of their app.

-- tenant_no 0: of a worker that serves all tenants. One is live while a worker of its app and release is.
CREATE TABLE ondot.known_function (
    tenant_no         integer NOT NULL,
    name              text NOT NULL,
    app               text NOT NULL,
    release           text NOT NULL,
    digest            text NOT NULL,  -- of all that follows up to `enqueued`
    description       text,
    options           json NOT NULL,  -- fields of its jobs, as in a body
    argument_defaults json NOT NULL,
    schema            json,           -- of its arguments; NULL: it has none that is acceptable
    enqueued          json NOT NULL,  -- the options as fields of a spec, for ondot.enqueue
    registered_at     timestamptz NOT NULL,
    seen_at           timestamptz NOT NULL,  -- when it was last live, to the hour
    PRIMARY KEY (tenant_no, name, app, release)
);
