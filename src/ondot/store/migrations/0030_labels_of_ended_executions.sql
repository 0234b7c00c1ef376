-- Search by labels: those of its job when an execution ended. NULL: the job had none, or it ended under a release before.
ALTER TABLE ondot.history ADD COLUMN labels jsonb;

-- Searches of a tenant read its own rows only: how long they take must not depend on how many rows others have. An
-- installation with one tenant has these indexes empty, and writes nothing to them.
CREATE INDEX history_tenant ON ondot.history (tenant_no, id) WHERE tenant_no > 1;
CREATE INDEX job_once_tenant ON ondot.job_once (tenant_no, id) WHERE tenant_no > 1;
CREATE INDEX job_tenant ON ondot.job (tenant_no, id) WHERE tenant_no > 1;
