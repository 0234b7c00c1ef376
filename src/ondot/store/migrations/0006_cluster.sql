-- Cluster: what the self-check found and mended, by kind. A few rows for the whole installation: each count is a bug.

CREATE TABLE ondot.found (
    kind      text PRIMARY KEY,          -- as model.check names it
    tenant_no integer NOT NULL DEFAULT 0,
    count     bigint NOT NULL,
    first_at  timestamptz NOT NULL,
    last_at   timestamptz NOT NULL,
    example   jsonb NOT NULL             -- the latest: a few ids, and what was done
) WITH (fillfactor = 50);
