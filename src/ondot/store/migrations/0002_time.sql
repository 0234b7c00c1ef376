-- Time: owed ranges are worked off, backfills have progress, a job has the reason why it is paused, failures in a row are
-- counted, and the release of tzdata that stored fires were computed with is recorded.

ALTER TABLE ondot.job ADD COLUMN state_reason text;  -- why it is in its state, if not by hand

ALTER TABLE ondot.skipped ADD COLUMN job_version integer;  -- whose schedule has these fires
CREATE INDEX skipped_recent ON ondot.skipped (tenant_no, at);

-- NULL: unknown. While stored fires are recomputed: the next release, and the last job that was looked at.
ALTER TABLE ondot.installation ADD COLUMN tzdata text, ADD COLUMN tzdata_next text, ADD COLUMN tzdata_through uuid;

-- Ranges still to be run: catch-up after an outage, and backfills. No release has written to the table of 0001.
DROP TABLE ondot.owed;
CREATE TABLE ondot.owed (
    id           uuid PRIMARY KEY,         -- of a backfill: the same as in backfill
    job_id       uuid NOT NULL,
    from_at      timestamptz NOT NULL,     -- the rest, both ends included; to_at before from_at: empty, but some of
    to_at        timestamptz NOT NULL,     -- its executions have not ended
    turn_at      timestamptz NOT NULL,     -- when it is looked at next
    count        integer,                  -- fires left; NULL: more than were counted
    tenant_no    integer NOT NULL,
    job_version  integer NOT NULL,         -- whose schedule has the instants
    concurrency  integer NOT NULL,         -- at most this many of its executions are live at once
    partition_no smallint NOT NULL,
    newest_first boolean NOT NULL,
    origin       text NOT NULL CHECK (origin IN ('fire', 'backfill'))
) WITH (fillfactor = 50);
CREATE INDEX owed_turn ON ondot.owed (partition_no, turn_at);
CREATE INDEX owed_job ON ondot.owed (job_id);

CREATE TABLE ondot.backfill (
    id           uuid PRIMARY KEY,
    job_id       uuid NOT NULL,
    from_at      timestamptz NOT NULL,
    to_at        timestamptz NOT NULL,
    created_at   timestamptz NOT NULL,
    ended_at     timestamptz,
    tenant_no    integer NOT NULL,
    job_version  integer NOT NULL,
    concurrency  integer NOT NULL,
    total        integer NOT NULL,           -- fires in the range
    made         integer NOT NULL DEFAULT 0, -- executions made for them
    existing     integer NOT NULL DEFAULT 0, -- fires that had an execution already
    newest_first boolean NOT NULL,
    state        text NOT NULL CHECK (state IN ('RUNNING', 'DONE', 'CANCELLED'))
) WITH (fillfactor = 80);
CREATE INDEX backfill_job ON ondot.backfill (job_id, id);
CREATE UNIQUE INDEX backfill_open ON ondot.backfill (job_id) WHERE state = 'RUNNING';

-- For jobs that pause after a number of failures in a row: how many there were. Written by complete, which never touches
-- job.
CREATE TABLE ondot.streak (
    job_id      uuid PRIMARY KEY,
    tenant_no   integer NOT NULL,
    failures    integer NOT NULL,
    pause_after integer NOT NULL,
    succeeded   boolean NOT NULL            -- whether the last batch had a success, which restarts the count
) WITH (fillfactor = 50);
CREATE INDEX streak_over ON ondot.streak (job_id) WHERE failures >= pause_after;

-- formerly f576b16d2f9ad0a8d748abbca86722e95963649741a92ab406df75fbad6d8ca4
