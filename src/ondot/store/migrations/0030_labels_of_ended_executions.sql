-- Search by labels: those of its job when an execution ended. NULL: the job had none, or it ended under a release before.
ALTER TABLE ondot.history ADD COLUMN labels jsonb;
