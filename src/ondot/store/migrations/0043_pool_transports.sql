-- A pool may have a transport of its own; NULL: the installation's. After a change both are used for a while, so the one
-- before is kept, and when it changed. No process has read the column until now.
ALTER TABLE ondot.pool ALTER COLUMN transport DROP NOT NULL, ALTER COLUMN transport DROP DEFAULT;
ALTER TABLE ondot.pool ADD COLUMN transport_was text, ADD COLUMN transport_at timestamptz;
UPDATE ondot.pool SET transport = NULL;
-- The transports that a worker trusts, by its last heartbeat; without any it asks PostgreSQL each second. NULL: a worker
-- of a release that does not report it.
ALTER TABLE ondot.worker ADD COLUMN trusts text[];
