-- Traces of requests that start executions.

-- Executions that do not belong to the trace of their job: a person ran, retried or replayed them, or ran a run again, by a
-- request with a trace of its own. Nothing else has a row here.
CREATE TABLE ondot.trace (
    execution_id uuid PRIMARY KEY,
    tenant_no    integer NOT NULL,
    traceparent  text NOT NULL,
    tracestate   text
);

-- Of the requests that started them.
ALTER TABLE ondot.bulk ADD COLUMN traceparent text, ADD COLUMN tracestate text;
ALTER TABLE ondot.backfill ADD COLUMN traceparent text;
