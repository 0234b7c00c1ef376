-- name: fleet_nodes :many
-- index: node_pkey, partition_pkey
-- Scheduler nodes with their partitions, and partitions without an owner: a row for each partition and for each node
-- without one, each with the state of the installation (held or not). One statement, so that no reader sees a partition
-- between two owners. Alive: ondot.is_node_alive. There are few nodes and partitions: a node that ended without leaving is
-- removed after an hour.
SELECT ondot.clock() AS now, p.partition_no, p.epoch, p.owned_since, n.id, n.host, n.pid, n.release, n.started_at,
       n.beat_at, n.expires_at, n.stalled_at, n.stalled_in, n.coordination, n.away_since, n.away_why,
       coalesce(ondot.is_node_alive(n.expires_at, n.beat_at), false) AS is_alive,
       (SELECT held_at FROM ondot.lineage) AS held_at, (SELECT held_why FROM ondot.lineage) AS held_why
FROM ondot.partition p FULL JOIN ondot.node n ON n.id = p.owner
ORDER BY n.started_at, n.id, p.partition_no;

-- name: list_workers :many
-- index: worker_pkey, backwards
-- Workers, newest first, with the pools they serve; ended ones for ten minutes. Schedulers that deliver messages are left
-- out: their pool is ondot's own. For a tenant: those that serve it, with the
-- pools that it may name.
-- $1 state (NULL: all), $2 before which id (NULL: from the newest), $3 limit (NULL: none), $4 tenant_no (NULL: all)
SELECT w.id, w.state, w.host, w.pid, w.release, w.slots, w.running, w.started_at, w.beat_at, w.ended_at, w.stalled_at,
       w.stalled_in, served.pools, ondot.clock() AS now, w.tenant_nos, w.app, w.app_release, w.trusts
FROM ondot.worker w
CROSS JOIN LATERAL (
    SELECT ARRAY(
        SELECT p.name FROM ondot.pool p
        WHERE p.pool_no = ANY (w.pool_nos) AND p.name NOT LIKE ':%' AND ($4::integer IS NULL OR EXISTS (
            SELECT FROM ondot.tenant t
            WHERE t.tenant_no = $4 AND ('*' = ANY (t.pools) OR p.name = ANY (t.pools))))
        ORDER BY p.name
    ) AS pools
) served
WHERE (w.state IN ('ALIVE', 'DRAINING') OR w.ended_at > ondot.clock() - interval '10 minutes')
  AND ($1::text IS NULL OR w.state = $1) AND ($2::uuid IS NULL OR w.id < $2)
  AND (served.pools <> '{}' OR w.pool_nos = '{}')
  AND ($4 IS NULL OR (served.pools <> '{}' AND (w.tenant_nos IS NULL OR $4 = ANY (w.tenant_nos))))
ORDER BY w.id DESC LIMIT $3::integer;
