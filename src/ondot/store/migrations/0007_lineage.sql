-- Lineage: the server, and the history of it, that this installation's rows were written on. One row. When another one
-- is found that may lack what was acknowledged, everything is held until a person has looked.

CREATE TABLE ondot.lineage (
    is_one         boolean PRIMARY KEY DEFAULT true CHECK (is_one),
    tenant_no      integer NOT NULL DEFAULT 0,
    system_id      text NOT NULL,            -- of the cluster, made by initdb
    timeline       integer NOT NULL,         -- a new one begins with each promotion and each recovery to a point in time
    table_id       bigint NOT NULL,          -- of this table: one that was restored from a dump is another
    is_synchronous boolean NOT NULL,         -- whether a standby had each commit before it was acknowledged
    since          timestamptz NOT NULL,
    accepted_at    timestamptz,              -- when a person last said that this is the right one
    held_at        timestamptz,
    held_why       text,
    CHECK ((held_at IS NULL) = (held_why IS NULL))
);

-- formerly 2ca5199c588ee0ba2f8cfcff9999e48a72048567d33ebe37952b5c4d8ce3519e
