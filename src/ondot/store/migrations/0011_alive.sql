-- Alive means working. A process whose loop is blocked sends no beat, and reports it here: since when, and in which line of
-- code. A worker also names the execution that blocks its loop, and its function, which other workers then run in a child
-- process. A beat clears the first three; the last two are kept as long as the row.

ALTER TABLE ondot.worker
    ADD COLUMN stalled_at timestamptz,
    ADD COLUMN stalled_in text,
    ADD COLUMN stalled_by uuid,
    ADD COLUMN blocked_at timestamptz,
    ADD COLUMN blocked_by text;
CREATE INDEX worker_blocked ON ondot.worker (blocked_at) WHERE blocked_by IS NOT NULL;

ALTER TABLE ondot.node
    ADD COLUMN stalled_at timestamptz,
    ADD COLUMN stalled_in text;

-- formerly 53842efaf53021e1b5075c534da2c469af75e54417c3f7aad5231bf1f285ffd9
