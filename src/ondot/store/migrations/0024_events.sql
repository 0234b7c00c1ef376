-- Events: what was sent, what each started, which jobs they start.

-- One row for each event that was accepted, kept by day like history. body is the whole CloudEvent.
CREATE TABLE ondot.event (
    id          uuid NOT NULL,
    received_at timestamptz NOT NULL,
    time        timestamptz,
    tenant_no   integer NOT NULL,
    matched     integer NOT NULL,
    type        text NOT NULL,
    source      text NOT NULL,
    event_id    text NOT NULL,
    subject     text,
    body        json NOT NULL,
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);
CREATE INDEX event_latest ON ondot.event (tenant_no, id);
CREATE INDEX event_type ON ondot.event (tenant_no, type, id);

-- What an event did to each job that it matched. held: the job is paused, and its misfire policy decides at the resume.
CREATE TABLE ondot.event_match (
    event_id     uuid NOT NULL,
    job_id       uuid NOT NULL,
    execution_id uuid,
    tenant_no    integer NOT NULL,
    outcome      text NOT NULL CHECK (outcome IN ('started', 'held', 'skipped')),
    PRIMARY KEY (event_id, job_id)
) PARTITION BY RANGE (event_id);
CREATE INDEX event_match_execution ON ondot.event_match (execution_id) WHERE execution_id IS NOT NULL;
CREATE INDEX event_match_held ON ondot.event_match (job_id, event_id) WHERE outcome = 'held';

DO $$
DECLARE
    today date := (statement_timestamp() AT TIME ZONE 'UTC')::date;
    cut text[];
BEGIN
    FOREACH cut SLICE 1 IN ARRAY ARRAY[['event', 'id'], ['event_match', 'event_id']] LOOP
        EXECUTE format('CREATE TABLE ondot.%I PARTITION OF ondot.%I FOR VALUES FROM (MINVALUE) TO (%L)',
                       cut[1] || '_past', cut[1], ondot.day_starts(today));
        EXECUTE format('CREATE TABLE ondot.%I PARTITION OF ondot.%I FOR VALUES FROM (%L) TO (MAXVALUE)',
                       cut[1] || '_ahead', cut[1], ondot.day_starts(today));
        INSERT INTO ondot.day_table (parent, id_column, first_day, next_day) VALUES (cut[1], cut[2], today, today);
    END LOOP;
END $$;

-- A hash of (source, id) of each event of the last 7 days: the same one again starts nothing. Not by day: a key is unique
-- over all of them.
CREATE TABLE ondot.event_key (
    key       uuid NOT NULL,
    event_id  uuid NOT NULL,
    tenant_no integer NOT NULL,
    PRIMARY KEY (tenant_no, key)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000);
CREATE INDEX event_key_age ON ondot.event_key (event_id);

-- What waits for events: jobs (kind job, id is the job's). generation: that of the tenant when the row changed last.
CREATE TABLE ondot.subscription (
    id         uuid PRIMARY KEY,
    generation bigint NOT NULL,
    paused_at  timestamptz,
    tenant_no  integer NOT NULL,
    version    integer NOT NULL,
    is_indexed boolean NOT NULL,
    kind       text NOT NULL DEFAULT 'job',
    type       text NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX subscription_tenant ON ondot.subscription (tenant_no, id) INCLUDE (generation);
CREATE INDEX subscription_type ON ondot.subscription (tenant_no, type) WHERE NOT is_indexed;

-- Raised by each change of a tenant's subscriptions, under the advisory lock that senders share.
CREATE TABLE ondot.subscription_generation (
    tenant_no  integer PRIMARY KEY,
    generation bigint NOT NULL
) WITH (fillfactor = 50);
