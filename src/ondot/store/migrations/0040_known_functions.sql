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

-- Executions that a worker returned because it does not have their function. They are due again in an hour, and sooner if a
-- worker of their pool has registered it.
CREATE TABLE ondot.unknown_call (
    tenant_no    integer NOT NULL,
    function     text NOT NULL,
    pool_no      integer NOT NULL,
    execution_id uuid NOT NULL,
    PRIMARY KEY (tenant_no, function, pool_no, execution_id)
);
