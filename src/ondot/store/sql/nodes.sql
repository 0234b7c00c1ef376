-- name: beat_node :one
-- locks: the node row        index: node_pkey
-- Beat and renewal in one: partitions are owned while their owner's row has not expired.
-- $1 id, $2 host, $3 pid, $4 release, $5 lease in seconds
WITH beat AS (
    INSERT INTO ondot.node (id, host, pid, release, started_at, beat_at, expires_at)
    VALUES ($1::uuid, $2::text, $3::integer, $4::text, ondot.clock(), ondot.clock(),
            ondot.clock() + make_interval(secs => $5::double precision))
    ON CONFLICT (id) DO UPDATE SET beat_at = excluded.beat_at, expires_at = excluded.expires_at
)
SELECT ondot.clock() AS now,
       ARRAY(SELECT partition_no FROM ondot.partition WHERE owner = $1 ORDER BY partition_no) AS owned,
       1 + (SELECT count(*) FROM ondot.node WHERE expires_at > ondot.clock() AND id <> $1) AS live,
       (SELECT count(*) FROM ondot.node WHERE expires_at > ondot.clock() AND id < $1) AS rank;

-- name: take_partitions :many
-- locks: partition rows, SKIP LOCKED
-- $1 node id, $2 at most
UPDATE ondot.partition SET owner = $1::uuid, epoch = epoch + 1, owned_since = ondot.clock()
WHERE partition_no = ANY (ARRAY(
    SELECT p.partition_no FROM ondot.partition p
    WHERE p.owner IS NULL
       OR NOT EXISTS (SELECT FROM ondot.node n WHERE n.id = p.owner AND n.expires_at > ondot.clock())
    ORDER BY p.partition_no LIMIT $2::integer
    FOR UPDATE OF p SKIP LOCKED
))
RETURNING partition_no;

-- name: give_back_partitions :none
-- $1 node id, $2 partition_nos (NULL: all)
UPDATE ondot.partition SET owner = NULL, owned_since = NULL
WHERE owner = $1::uuid AND ($2::smallint[] IS NULL OR partition_no = ANY ($2));

-- name: leave_node :none
-- $1 node id
DELETE FROM ondot.node WHERE id = $1::uuid;

-- name: forget_nodes :none
-- Nodes that went without leaving, an hour ago.
DELETE FROM ondot.node n
WHERE n.expires_at < ondot.clock() - interval '1 hour'
  AND NOT EXISTS (SELECT FROM ondot.partition p WHERE p.owner = n.id);

-- name: list_nodes :many
SELECT n.id, n.host, n.pid, n.release, n.started_at, n.beat_at, n.expires_at,
       ARRAY(SELECT partition_no FROM ondot.partition p WHERE p.owner = n.id ORDER BY partition_no) AS partitions,
       ondot.clock() AS now
FROM ondot.node n WHERE n.expires_at > ondot.clock() ORDER BY n.id;
