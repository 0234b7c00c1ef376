-- Maps, waits, approvals and children of runs. All rows go with their run.

-- One row for each mapped step that has started: how far it is. Changed only by who has the run locked.
-- concurrency, tolerate_count, tolerate_percent: set while it runs; NULL as the workflow has it.
CREATE TABLE ondot.mapped (
    run_id uuid NOT NULL,
    step_no integer NOT NULL,
    tenant_no integer NOT NULL,
    total integer NOT NULL,
    cursor integer NOT NULL DEFAULT 0,
    waiting integer NOT NULL DEFAULT 0,
    active integer NOT NULL DEFAULT 0,
    stuck integer NOT NULL DEFAULT 0,
    succeeded integer NOT NULL DEFAULT 0,
    failed integer NOT NULL DEFAULT 0,
    concurrency integer,
    tolerate_count integer,
    tolerate_percent double precision,
    is_open boolean NOT NULL DEFAULT false,
    PRIMARY KEY (run_id, step_no)
) WITH (fillfactor = 50);

-- The list of a map, in portions, so that a window reads only its own.
CREATE TABLE ondot.map_portion (
    run_id uuid NOT NULL,
    step_no integer NOT NULL,
    first_no integer NOT NULL,
    tenant_no integer NOT NULL,
    items json NOT NULL,
    PRIMARY KEY (run_id, step_no, first_no)
);

-- One thin row for each item that was made, or may be made. An arrival counts if execution_id still names it.
CREATE TABLE ondot.item (
    run_id uuid NOT NULL,
    execution_id uuid,
    step_no integer NOT NULL,
    item_no integer NOT NULL,
    tenant_no integer NOT NULL,
    generation integer NOT NULL DEFAULT 0,
    state text NOT NULL,
    PRIMARY KEY (run_id, step_no, item_no)
) WITH (fillfactor = 70);
CREATE INDEX item_waiting ON ondot.item (run_id, step_no, item_no) WHERE state = 'WAITING';

-- Steps that wait for a time, an event or a person. execution_id is the token of the step's generation; an end is an
-- arrival that names it. state: NULL while it waits. result and reason: what the step takes over.
CREATE TABLE ondot.step_wait (
    run_id uuid NOT NULL,
    execution_id uuid NOT NULL,
    due_at timestamptz,
    ended_at timestamptz,
    step_no integer NOT NULL,
    tenant_no integer NOT NULL,
    kind text NOT NULL CHECK (kind IN ('time', 'event', 'approval')),
    role text,
    state text CHECK (state IN ('SUCCEEDED', 'FAILED')),
    reason text,
    result json,
    PRIMARY KEY (run_id, execution_id)
) WITH (fillfactor = 70);
CREATE INDEX step_wait_due ON ondot.step_wait (due_at) WHERE ended_at IS NULL AND due_at IS NOT NULL;
