-- Runs of workflows. A run is an execution of a job whose target is a workflow; its id is the execution's.

-- awaited_by: where the end of this execution is reported, as an arrival: the run of which it is a step, the run that made
-- it as a child, or its own job if other jobs depend on it. NULL: nobody waits for it. The job_id of a step is its run.
ALTER TABLE ondot.execution ADD awaited_by uuid, ADD step_no integer, ADD item_no integer;
ALTER TABLE ondot.history ADD step_no integer, ADD item_no integer;
-- job_id of a letter is that of the workflow.
ALTER TABLE ondot.dead_letter ADD run_id uuid, ADD step_no integer;
ALTER TABLE ondot.dead_letter DROP CONSTRAINT dead_letter_resolution_check;
ALTER TABLE ondot.dead_letter ADD CONSTRAINT dead_letter_resolution_check
    CHECK (resolution IN ('replayed', 'discarded', 'handled'));
CREATE INDEX dead_letter_run ON ondot.dead_letter (run_id) WHERE run_id IS NOT NULL AND resolved_at IS NULL;

-- One row for each run, changed only by the transaction that has it locked. The counts are of its steps without `finally`
-- ones. fire_at, class and own_payload are those of its execution, and of its steps. look_at: when housekeeping looks at it
-- next (its timeout, the end of `blocked_for`). is_counted: it has counted as a failure of its job.
CREATE TABLE ondot.run (
    id uuid PRIMARY KEY,
    job_id uuid NOT NULL,
    parent_run_id uuid,
    rerun_of uuid,
    fire_at timestamptz,
    started_at timestamptz,
    blocked_at timestamptz,
    ended_at timestamptz,
    look_at timestamptz,
    tenant_no integer NOT NULL,
    job_version integer NOT NULL,
    parent_step_no integer,
    parent_item_no integer,
    depth smallint NOT NULL DEFAULT 0,
    class smallint NOT NULL DEFAULT 2,
    own_payload boolean NOT NULL DEFAULT false,
    is_paused boolean NOT NULL DEFAULT false,
    is_counted boolean NOT NULL DEFAULT false,
    waiting integer NOT NULL DEFAULT 0,
    active integer NOT NULL DEFAULT 0,
    succeeded integer NOT NULL DEFAULT 0,
    failed integer NOT NULL DEFAULT 0,
    skipped integer NOT NULL DEFAULT 0,
    blocked integer NOT NULL DEFAULT 0,
    superseded integer NOT NULL DEFAULT 0,
    state text NOT NULL CHECK (state IN ('PENDING', 'RUNNING', 'BLOCKED', 'ENDING', 'SUCCEEDED', 'FAILED', 'CANCELLED')),
    verdict text CHECK (verdict IN ('SUCCEEDED', 'FAILED', 'CANCELLED')),
    reason text
) WITH (fillfactor = 50);
CREATE INDEX run_live ON ondot.run (id) WHERE ended_at IS NULL;
CREATE INDEX run_job ON ondot.run (job_id, id);
CREATE INDEX run_look ON ondot.run (look_at) WHERE look_at IS NOT NULL;
CREATE INDEX run_parent ON ondot.run (parent_run_id) WHERE parent_run_id IS NOT NULL;
CREATE INDEX run_ended ON ondot.run (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX run_tenant ON ondot.run (tenant_no, id);

-- One thin row for each step of a run, with what is known of its parents. An arrival counts if execution_id still names it.
CREATE TABLE ondot.step (
    run_id uuid NOT NULL,
    execution_id uuid,
    released_at timestamptz,
    ended_at timestamptz,
    step_no integer NOT NULL,
    tenant_no integer NOT NULL,
    generation integer NOT NULL DEFAULT 0,
    parents_succeeded integer NOT NULL DEFAULT 0,
    parents_failed integer NOT NULL DEFAULT 0,
    parents_skipped integer NOT NULL DEFAULT 0,
    state text NOT NULL,
    reason text,
    result json,
    PRIMARY KEY (run_id, step_no)
) WITH (fillfactor = 70);

-- Ends that their run has not seen yet. Inserted by the statement that ends the execution; taken by who has the run locked.
CREATE TABLE ondot.arrival (
    run_id uuid NOT NULL,
    execution_id uuid NOT NULL,
    at timestamptz NOT NULL,
    tenant_no integer NOT NULL,
    step_no integer,
    item_no integer,
    state text NOT NULL,
    PRIMARY KEY (run_id, execution_id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
CREATE INDEX arrival_at ON ondot.arrival (at);
