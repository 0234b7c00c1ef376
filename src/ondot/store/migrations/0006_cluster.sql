-- Cluster: what the self-check found and repaired, by kind. A few rows for the whole installation: each count is a bug.

CREATE TABLE ondot.found (
    kind      text PRIMARY KEY,          -- as model.check names it
    tenant_no integer NOT NULL DEFAULT 0,
    count     bigint NOT NULL,
    first_at  timestamptz NOT NULL,
    last_at   timestamptz NOT NULL,
    example   jsonb NOT NULL             -- the latest: a few ids, and what was done
) WITH (fillfactor = 50);

-- formerly 556495ec0e227cd2c6029e8d156f44862d76b72d47b9d2dad8e801fee686e926
