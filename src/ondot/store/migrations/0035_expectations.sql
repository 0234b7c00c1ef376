-- What is expected of jobs: what is to be looked at when, and what was missed.

-- One row for each expectation of a job. after_at: fires up to this one are settled. look_at: when it is looked at next.
CREATE TABLE ondot.watch (
    job_id uuid NOT NULL,
    after_at timestamptz NOT NULL,
    look_at timestamptz NOT NULL,
    tenant_no integer NOT NULL,
    which text NOT NULL CHECK (which IN ('start_within', 'end_within', 'end_by', 'success_every')),
    PRIMARY KEY (job_id, which)
) WITH (fillfactor = 50);
CREATE INDEX watch_look ON ondot.watch (look_at);

-- What was missed, or will be (predicted). There is one open row for each expectation of a job: further fires that miss it
-- while it is open are counted in it. cleared_at: when it came good, or the forecast was withdrawn.
CREATE TABLE ondot.miss (
    id uuid PRIMARY KEY,
    job_id uuid NOT NULL,
    execution_id uuid,
    fire_at timestamptz,
    due_at timestamptz NOT NULL,
    seen_at timestamptz NOT NULL,
    cleared_at timestamptz,
    tenant_no integer NOT NULL,
    count integer NOT NULL,
    predicted boolean NOT NULL,
    which text NOT NULL,
    reason text NOT NULL
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX miss_open ON ondot.miss (job_id, which) WHERE cleared_at IS NULL;
CREATE INDEX miss_job ON ondot.miss (job_id, id);
CREATE INDEX miss_latest ON ondot.miss (tenant_no, due_at);
CREATE INDEX miss_age ON ondot.miss (seen_at);
