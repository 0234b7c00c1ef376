-- Alive means working. A process whose loop stands still sends no beat, and says so here: since when, and where its
-- code stands. A worker also names the execution that blocks its loop, and the function, which other workers then run
-- in a child process. A beat clears the first three; what blocked is kept for as long as the row.

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
