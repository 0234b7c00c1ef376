-- Channels of messages, their deliveries, and pings (O4).
--
-- A delivery is an execution of ondot's own: its id is that of the execution, whose job is the channel's (`job_id`). Those
-- jobs and executions have tenant_no 0, the installation: no list, quota, event or report of a tenant counts them. The
-- message itself is the tenant's, and stays in this table.
CREATE TABLE ondot.channel (
    id         uuid PRIMARY KEY,
    tenant_no  integer NOT NULL,
    name       text NOT NULL,
    job_id     uuid NOT NULL,
    spec       jsonb NOT NULL,
    version    integer NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT ondot.clock(),
    created_by text NOT NULL,
    updated_at timestamptz,
    updated_by text,
    UNIQUE (tenant_no, name)
);

-- joined: the messages that came after the limit of a minute, as one; is_open: it takes more of them.
CREATE TABLE ondot.delivery (
    id          uuid PRIMARY KEY,
    tenant_no   integer NOT NULL,
    channel_id  uuid NOT NULL,
    incident_id uuid,
    kind        text NOT NULL,
    message     jsonb NOT NULL,
    state       text NOT NULL DEFAULT 'QUEUED',
    is_open     boolean NOT NULL DEFAULT false,
    joined      jsonb,
    joined_more integer NOT NULL DEFAULT 0,
    attempts    integer NOT NULL DEFAULT 0,
    answer      text,
    error       text,
    created_at  timestamptz NOT NULL DEFAULT ondot.clock(),
    tried_at    timestamptz,
    ended_at    timestamptz
) WITH (fillfactor = 70);
CREATE INDEX delivery_channel ON ondot.delivery (channel_id, created_at);
CREATE INDEX delivery_incident ON ondot.delivery (incident_id) WHERE incident_id IS NOT NULL;
CREATE INDEX delivery_joined ON ondot.delivery (tenant_no, created_at) WHERE joined IS NOT NULL;
CREATE UNIQUE INDEX delivery_open ON ondot.delivery (channel_id) WHERE is_open;
CREATE INDEX delivery_age ON ondot.delivery (created_at);

-- A ping watches a job that ondot does not run: somebody calls its URL. The token is stored as its SHA-256.
-- due_at: when the next ping is late (NULL: none is expected, or it is paused).
CREATE TABLE ondot.ping (
    id         uuid PRIMARY KEY,
    tenant_no  integer NOT NULL,
    name       text NOT NULL,
    hash       bytea NOT NULL,
    schedule   jsonb,
    period_s   double precision,
    grace_s    double precision NOT NULL,
    state      text NOT NULL DEFAULT 'NEW',
    due_at     timestamptz,
    started_at timestamptz,
    pinged_at  timestamptz,
    took_s     double precision,
    created_at timestamptz NOT NULL DEFAULT ondot.clock(),
    created_by text NOT NULL,
    UNIQUE (tenant_no, name)
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX ping_hash ON ondot.ping (hash);
CREATE INDEX ping_due ON ondot.ping (due_at) WHERE due_at IS NOT NULL;

-- What was received, the newest hundred of each ping.
CREATE TABLE ondot.ping_call (
    id        uuid PRIMARY KEY,
    tenant_no integer NOT NULL,
    ping_id   uuid NOT NULL,
    kind      text NOT NULL,
    exit_code integer,
    took_s    double precision,
    body      text,
    address   text
);
CREATE INDEX ping_call_ping ON ondot.ping_call (ping_id, id);
