-- Repairs of runs. All rows go with their run.

-- What people did to a run: retry, skip, a result by hand, pause, and so on. steps: the names that they gave.
CREATE TABLE ondot.repair (
    id uuid PRIMARY KEY,
    run_id uuid NOT NULL,
    at timestamptz NOT NULL,
    tenant_no integer NOT NULL,
    action text NOT NULL,
    actor text NOT NULL,
    reason text,
    steps text[] NOT NULL
);
CREATE INDEX repair_run ON ondot.repair (run_id, id);

-- Steps as they were before a repair replaced them: their earlier generations.
CREATE TABLE ondot.past_step (
    run_id uuid NOT NULL,
    repair_id uuid NOT NULL,
    execution_id uuid,
    released_at timestamptz,
    ended_at timestamptz,
    step_no integer NOT NULL,
    tenant_no integer NOT NULL,
    generation integer NOT NULL,
    state text NOT NULL,
    reason text,
    PRIMARY KEY (run_id, step_no, repair_id)
);

-- The payload that a retry gave the step; NULL: as its workflow says.
ALTER TABLE ondot.step ADD payload json;

-- Of a rerun: no execution whose result it takes over is older than this. NULL: than the run.
ALTER TABLE ondot.run ADD results_from uuid;
