-- Lineage: the server, and the timeline of it, on which the rows of this installation were written. One row. If another server
-- is found, which may lack acknowledged rows, everything is held until a person decides.

CREATE TABLE ondot.lineage (
    is_one         boolean PRIMARY KEY DEFAULT true CHECK (is_one),
    tenant_no      integer NOT NULL DEFAULT 0,
    system_id      text NOT NULL,            -- of the cluster, from initdb
    timeline       integer NOT NULL,         -- new after each promotion and each recovery to a point in time
    table_id       bigint NOT NULL,          -- of this table: after a restore from a dump it is another
    is_synchronous boolean NOT NULL,         -- whether a standby had each commit before it was acknowledged
    since          timestamptz NOT NULL,
    accepted_at    timestamptz,              -- when a person last accepted this database
    held_at        timestamptz,
    held_why       text,
    CHECK ((held_at IS NULL) = (held_why IS NULL))
);

-- formerly 2ca5199c588ee0ba2f8cfcff9999e48a72048567d33ebe37952b5c4d8ce3519e
