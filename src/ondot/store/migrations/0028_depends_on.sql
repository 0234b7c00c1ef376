-- One-time jobs that wait for others (`depends_on`).

-- One row for each job whose execution is BLOCKED until its parents have succeeded; locked before its parents are judged.
CREATE TABLE ondot.dependent (
    child_id uuid PRIMARY KEY,
    execution_id uuid NOT NULL,
    -- Since when a parent has ended without success, so that nothing moves without a person. NULL: all may still succeed.
    stuck_at timestamptz,
    tenant_no integer NOT NULL,
    deadline_s double precision,
    -- The gates that it passes once it may run (NULL: none).
    stages text
) WITH (fillfactor = 80);
CREATE INDEX dependent_stuck ON ondot.dependent (stuck_at) WHERE stuck_at IS NOT NULL;

-- What is known of each parent. Removed together with the row of the child, when that runs or ends.
CREATE TABLE ondot.dependency (
    parent_id uuid NOT NULL,
    child_id uuid NOT NULL,
    -- When the parent is looked at again, unless its end arrives before.
    look_at timestamptz NOT NULL,
    tenant_no integer NOT NULL,
    state text NOT NULL DEFAULT 'WAITING',
    PRIMARY KEY (parent_id, child_id)
) WITH (fillfactor = 80);
CREATE INDEX dependency_child ON ondot.dependency (child_id);
-- Whether a job still waits for any: it may have a thousand parents.
CREATE INDEX dependency_open ON ondot.dependency (child_id) WHERE state <> 'SUCCEEDED';
CREATE INDEX dependency_look ON ondot.dependency (look_at) WHERE state <> 'SUCCEEDED';
