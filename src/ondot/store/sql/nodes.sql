-- name: beat_node :one
-- locks: the node row        index: node_pkey
-- Beat and renewal in one: partitions are owned while their owner is alive (ondot.is_node_alive).
-- $1 id, $2 host, $3 pid, $4 release, $5 lease in seconds, $6 by what the node coordinates
WITH beat AS (
    INSERT INTO ondot.node (id, host, pid, release, started_at, beat_at, expires_at, coordination)
    VALUES ($1::uuid, $2::text, $3::integer, $4::text, ondot.clock(), ondot.clock(),
            ondot.clock() + make_interval(secs => $5::double precision), $6::text)
    ON CONFLICT (id) DO UPDATE SET beat_at = excluded.beat_at, expires_at = excluded.expires_at, stalled_at = NULL,
        stalled_in = NULL, away_since = NULL, away_why = NULL
)
SELECT ondot.clock() AS now,
       ARRAY(SELECT partition_no FROM ondot.partition WHERE owner = $1 ORDER BY partition_no) AS owned,
       1 + count(*) AS live,
       count(*) FILTER (WHERE n.id < $1) AS rank,
       extract(epoch FROM min(n.expires_at) - ondot.clock())::double precision AS next_expiry_s
FROM ondot.node n
WHERE n.id <> $1 AND ondot.is_node_alive(n.expires_at, n.beat_at);

-- name: report_stalled_node :none
-- locks: the node row        index: node_pkey
-- This is no beat: the lease runs out. $1 id, $2 for how many seconds the loop is blocked, $3 where
UPDATE ondot.node
SET stalled_at = ondot.clock() - make_interval(secs => $2::double precision), stalled_in = $3::text
WHERE id = $1::uuid;

-- name: note_coordinator_away :none
-- locks: the node row        index: node_pkey
-- This is no beat: the lease runs out. $1 id, $2 host, $3 pid, $4 release, $5 by what the node coordinates, $6 why it is away
INSERT INTO ondot.node (id, host, pid, release, started_at, beat_at, expires_at, coordination, away_since, away_why)
VALUES ($1::uuid, $2::text, $3::integer, $4::text, ondot.clock(), ondot.clock(), ondot.clock(), $5::text, ondot.clock(),
        $6::text)
ON CONFLICT (id) DO UPDATE SET beat_at = excluded.beat_at, away_why = excluded.away_why,
    away_since = coalesce(ondot.node.away_since, excluded.away_since);

-- name: read_installation :one
SELECT i.id || '-' || d.oid AS name FROM ondot.installation i, pg_database d WHERE d.datname = current_database();

-- name: record_partitions :many
-- locks: partition rows
-- What a node won in another coordinator. A node that was frozen in between has an expired row, and must not displace the
-- owner of today. $1 node id, $2 partition_nos
UPDATE ondot.partition p SET owner = $1::uuid, epoch = p.epoch + 1, owned_since = ondot.clock()
WHERE p.partition_no = ANY ($2::smallint[])
  AND EXISTS (SELECT FROM ondot.node n WHERE n.id = $1 AND ondot.is_node_alive(n.expires_at, n.beat_at))
RETURNING p.partition_no;

-- name: take_partitions :many
-- locks: partition rows, SKIP LOCKED
-- $1 node id, $2 at most
UPDATE ondot.partition SET owner = $1::uuid, epoch = epoch + 1, owned_since = ondot.clock()
WHERE partition_no = ANY (ARRAY(
    SELECT p.partition_no FROM ondot.partition p
    WHERE p.owner IS NULL
       OR NOT EXISTS (SELECT FROM ondot.node n WHERE n.id = p.owner AND ondot.is_node_alive(n.expires_at, n.beat_at))
    ORDER BY p.partition_no LIMIT $2::integer
    FOR UPDATE OF p SKIP LOCKED
))
RETURNING partition_no;

-- name: give_back_partitions :none
-- $1 node id, $2 partition_nos
UPDATE ondot.partition SET owner = NULL, owned_since = NULL
WHERE owner = $1::uuid AND partition_no = ANY ($2::smallint[]);

-- name: retire_node :none
-- locks: the node row        index: node_pkey
-- From here on it is no heir and does not count as alive; any node may take its partitions.
-- $1 node id
UPDATE ondot.node SET expires_at = ondot.clock() WHERE id = $1::uuid;

-- name: find_heirs :many
-- locks: the node rows, shared        index: node_pkey
-- Nodes that may take over from one that leaves, and how many partitions each has. A node that is about to leave too retires
-- either before this, and is no heir, or after the hand-over, and passes on what it got.
-- $1 node id
SELECT n.id, (SELECT count(*) FROM ondot.partition p WHERE p.owner = n.id) AS owned
FROM ondot.node n
WHERE n.id <> $1::uuid AND ondot.is_node_alive(n.expires_at, n.beat_at)
ORDER BY n.id
FOR SHARE OF n;

-- name: list_owned_partitions :many
-- $1 node id
SELECT partition_no FROM ondot.partition WHERE owner = $1::uuid;

-- name: hand_over_partitions :many
-- locks: partition rows
-- $1 node id, $2 partition_nos, $3 their new owners
UPDATE ondot.partition p SET owner = h.heir, epoch = p.epoch + 1, owned_since = ondot.clock()
FROM unnest($2::smallint[], $3::uuid[]) AS h(partition_no, heir)
WHERE p.partition_no = h.partition_no AND p.owner = $1::uuid
RETURNING p.partition_no;

-- name: leave_node :none
-- Partitions that were not handed over have no owner.
-- $1 node id
WITH left_behind AS (
    UPDATE ondot.partition SET owner = NULL, owned_since = NULL WHERE owner = $1::uuid
)
DELETE FROM ondot.node WHERE id = $1::uuid;

-- name: forget_nodes :none
-- Nodes that ended without leaving, an hour ago.
DELETE FROM ondot.node n
WHERE n.expires_at < ondot.clock() - interval '1 hour'
  AND NOT EXISTS (SELECT FROM ondot.partition p WHERE p.owner = n.id);

-- name: has_live_nodes :one
-- index: none, there are few nodes
SELECT EXISTS (SELECT FROM ondot.node WHERE ondot.is_node_alive(expires_at, beat_at)) AS is_so;
