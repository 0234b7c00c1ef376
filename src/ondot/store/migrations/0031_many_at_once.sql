-- Operations on many executions, jobs, dead letters or runs, and saved views.

-- A scheduler of the release before takes RUNNING rows by `turn_at`, and would discard dead letters for any action that it
-- does not know. So rows of this release have `turn_at` infinity, and continue at `next_at`.
ALTER TABLE ondot.bulk
    DROP CONSTRAINT bulk_action_check,
    ALTER COLUMN filter SET DEFAULT '{}',
    ALTER COLUMN current_version SET DEFAULT false,
    ALTER COLUMN turn_at SET DEFAULT 'infinity',
    ADD COLUMN kind text NOT NULL DEFAULT 'dead_letters'
        CHECK (kind IN ('executions', 'jobs', 'dead_letters', 'runs')),
    ADD COLUMN q text,                                -- the query; NULL: by ids, by filter, or all
    ADD COLUMN ids uuid[],                            -- the selection, in order; NULL: by query or filter, or an undo
    ADD COLUMN change jsonb,                          -- update: labels and priority
    ADD COLUMN next_at timestamptz,                   -- when it continues; NULL: it is of the release before
    ADD COLUMN refused integer NOT NULL DEFAULT 0,
    ADD COLUMN unchanged integer NOT NULL DEFAULT 0,
    ADD COLUMN later uuid[] NOT NULL DEFAULT '{}',    -- locked by others when their turn came
    ADD COLUMN total_is_least boolean NOT NULL DEFAULT false,
    ADD COLUMN failures integer NOT NULL DEFAULT 0,   -- turns in a row that ended with an error
    ADD COLUMN stopped_because text,                  -- why ondot itself stopped it
    ADD COLUMN undo_of uuid,                          -- its items are those that this operation has changed
    ADD COLUMN undone_by uuid,
    ADD COLUMN key_id uuid,                           -- the caller: its rights are checked in each turn
    ADD COLUMN user_id uuid,
    ADD COLUMN home_tenant_no integer,
    ADD COLUMN address text,
    ADD COLUMN request_id text;
CREATE INDEX bulk_next ON ondot.bulk (coalesce(next_at, turn_at)) WHERE state = 'RUNNING';

-- Results by item: refused ones with the reason; changed ones if that can be undone, with what was before, or if it made
-- an execution.
CREATE TABLE ondot.bulk_item (
    bulk_id uuid NOT NULL,
    id uuid NOT NULL,
    tenant_no integer NOT NULL,
    is_done boolean NOT NULL,
    detail text,
    before jsonb,
    made uuid,
    PRIMARY KEY (bulk_id, id)
);

-- Queries with a name. owner: '' for a view of the whole tenant, else the user or key that it belongs to.
CREATE TABLE ondot.saved_view (
    id uuid PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT ondot.clock(),
    updated_at timestamptz NOT NULL DEFAULT ondot.clock(),
    tenant_no integer NOT NULL,
    kind text NOT NULL CHECK (kind IN ('executions', 'jobs', 'dead_letters', 'runs')),
    name text NOT NULL,
    q text NOT NULL,
    owner text NOT NULL,
    created_by text NOT NULL,
    UNIQUE (tenant_no, owner, kind, name)
);
