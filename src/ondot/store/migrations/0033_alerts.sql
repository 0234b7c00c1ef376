-- Alerts, the causes that they watch, and incidents.

-- Facts that other parts know and that alerts read: the archive cannot be reached, a quota is reached, a deadline was missed.
-- tenant_no 0: of the installation. until_at: when it ends unless it is reported again; NULL: when it is cleared.
CREATE TABLE ondot.condition (
    kind text NOT NULL,
    tenant_no integer NOT NULL,
    subject text NOT NULL,
    job_id uuid,
    since timestamptz NOT NULL,
    seen_at timestamptz NOT NULL,
    until_at timestamptz,
    message text NOT NULL,
    details jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (kind, tenant_no, subject)
) WITH (fillfactor = 70);
CREATE INDEX condition_until ON ondot.condition (until_at) WHERE until_at IS NOT NULL;

-- What people want to be notified of. "when" is one kind with its thresholds, in its long form; seconds are numbers.
CREATE TABLE ondot.alert (
    id uuid PRIMARY KEY,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    muted_until timestamptz,
    for_s double precision NOT NULL,
    repeat_s double precision,
    tenant_no integer NOT NULL,
    version integer NOT NULL DEFAULT 1,
    name text NOT NULL,
    "when" jsonb NOT NULL,
    scope jsonb NOT NULL,
    notify text[] NOT NULL,
    created_by text NOT NULL,
    UNIQUE (tenant_no, name)
);

-- One row. generation: raised by each change that the evaluation must see. evaluator: the process that has the state in its
-- memory; another one that takes over writes its own id, and the writes of the first are refused from then on.
CREATE TABLE ondot.alert_state (
    one_row boolean PRIMARY KEY DEFAULT true CHECK (one_row),
    tenant_no integer NOT NULL DEFAULT 0,
    generation bigint NOT NULL DEFAULT 0,
    evaluator uuid
) WITH (fillfactor = 50);
INSERT INTO ondot.alert_state DEFAULT VALUES;

-- One time that something went wrong: from the first message to the recovery. notified: the channels that were sent its
-- opening, and so get its recovery. clear_at: since when no cause holds. reopened: how often it came back soon after.
CREATE TABLE ondot.incident (
    id uuid PRIMARY KEY,
    alert_id uuid NOT NULL,
    job_id uuid,
    since timestamptz NOT NULL,
    opened_at timestamptz NOT NULL,
    clear_at timestamptz,
    remind_at timestamptz,
    resolved_at timestamptz,
    acknowledged_at timestamptz,
    tenant_no integer NOT NULL,
    reopened integer NOT NULL DEFAULT 0,
    causes integer NOT NULL DEFAULT 0,
    messages integer NOT NULL DEFAULT 0,
    kind text NOT NULL,
    reason text NOT NULL,
    alert text NOT NULL,
    title text NOT NULL,
    notified text[] NOT NULL DEFAULT '{}',
    acknowledged_by text,
    resolved_by text,
    note text
) WITH (fillfactor = 70);
CREATE INDEX incident_open ON ondot.incident (tenant_no, id) WHERE resolved_at IS NULL;
CREATE INDEX incident_latest ON ondot.incident (tenant_no, id);
CREATE INDEX incident_resolved ON ondot.incident (resolved_at) WHERE resolved_at IS NOT NULL;

-- What an alert found: from when it held until it ended, and how often it started while its incident was open. Those without an
-- incident do not hold for long enough yet.
CREATE TABLE ondot.cause (
    id uuid PRIMARY KEY,
    alert_id uuid NOT NULL,
    incident_id uuid,
    job_id uuid,
    since timestamptz NOT NULL,
    ended_at timestamptz,
    tenant_no integer NOT NULL,
    times integer NOT NULL DEFAULT 1,
    kind text NOT NULL,
    key text NOT NULL,
    reason text NOT NULL,
    subject text NOT NULL,
    message text NOT NULL,
    details jsonb NOT NULL DEFAULT '{}'
) WITH (fillfactor = 70);
-- Two schedulers that both believe to be on duty cannot both record it, so neither sends a second message.
CREATE UNIQUE INDEX cause_live ON ondot.cause (alert_id, key) WHERE ended_at IS NULL;
CREATE INDEX cause_incident ON ondot.cause (incident_id, id) WHERE incident_id IS NOT NULL;
CREATE INDEX cause_job ON ondot.cause (job_id) WHERE ended_at IS NULL AND incident_id IS NOT NULL AND job_id IS NOT NULL;

-- Failures that were handled since, for alerts that count failures within a time; written when a dead letter is resolved.
CREATE INDEX dead_letter_handled ON ondot.dead_letter (tenant_no, failed_at) WHERE resolved_at IS NOT NULL;
-- Runs that wait for a person; blocked_at changes a few times in the life of a run.
CREATE INDEX run_blocked ON ondot.run (tenant_no, blocked_at) WHERE blocked_at IS NOT NULL AND ended_at IS NULL;
