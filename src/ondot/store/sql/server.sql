-- name: find_old_snapshots :many
-- Sessions and prepared transactions with an old snapshot, which keep dead rows from being removed.
-- $1 seconds
SELECT 'session ' || pid || coalesce(' of ' || usename, '') || coalesce(' (' || nullif(application_name, '') || ')', '')
           AS holder,
       extract(epoch FROM clock_timestamp() - xact_start)::double precision AS age_s
FROM pg_stat_activity
WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND backend_type <> 'autovacuum worker'
  AND xact_start < clock_timestamp() - make_interval(secs => $1::double precision)
UNION ALL
SELECT 'prepared transaction ' || gid || ' of ' || owner,
       extract(epoch FROM clock_timestamp() - prepared)::double precision
FROM pg_prepared_xacts WHERE prepared < clock_timestamp() - make_interval(secs => $1)
ORDER BY age_s DESC LIMIT 5;

-- name: count_sessions :one
SELECT current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
           - coalesce(current_setting('reserved_connections', true)::integer, 0) AS room,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')::integer AS used;
