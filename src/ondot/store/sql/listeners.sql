-- name: show_listener :none
-- locks: the row        index: listener_pkey
-- An API process shows where it listens, and removes rows of processes that ended without leaving an hour ago.
-- $1 id, $2 host name, $3 addresses, $4 port, $5 the server's URL for clients
WITH forgotten AS (
    DELETE FROM ondot.listener WHERE seen_at < ondot.clock() - interval '1 hour' AND id <> $1::uuid
)
INSERT INTO ondot.listener (id, host, addresses, port, url) VALUES ($1, $2::text, $3::text[]::inet[], $4::integer, $5::text)
ON CONFLICT (id) DO UPDATE SET addresses = excluded.addresses, url = excluded.url, seen_at = excluded.seen_at;

-- name: remove_listener :none
-- $1 id
DELETE FROM ondot.listener WHERE id = $1::uuid;

-- name: list_own_endpoints :many
-- Where the API's processes listen, where PostgreSQL and its standbys do, as far as this account may see them, and the URLs
-- that clients use. PostgreSQL's address is NULL on a Unix socket: then it is on this machine.
SELECT host(a.address) AS address, l.port, NULL AS url FROM ondot.listener l CROSS JOIN unnest(l.addresses) AS a(address)
UNION ALL
SELECT NULL, NULL, l.url FROM ondot.listener l
UNION ALL
SELECT coalesce(host(inet_server_addr()), '127.0.0.1'), current_setting('port')::integer, NULL
UNION ALL
SELECT host(r.client_addr), current_setting('port')::integer, NULL FROM pg_stat_replication r WHERE r.client_addr IS NOT NULL;
