-- fragment: live_of_tenant
-- Releases that a live worker runs for tenant $1.
SELECT DISTINCT w.app, w.app_release AS release FROM ondot.worker w
WHERE w.state = 'ALIVE' AND w.app IS NOT NULL AND (w.tenant_nos IS NULL OR $1::integer = ANY (w.tenant_nos))

-- fragment: is_live
-- Whether a live worker runs the release of `f` for its tenant.
EXISTS (SELECT FROM ondot.worker w
        WHERE w.state = 'ALIVE' AND w.app = f.app AND w.app_release = f.release
          AND (w.tenant_nos IS NULL OR f.tenant_no = ANY (w.tenant_nos)))

-- name: register_functions :none
-- locks: rows of the release, in the order of names        index: known_function_pkey
-- Two workers of one release that start at once register the same. What the release no longer has goes.
-- $1 tenant_no (0: all), $2 app, $3 release, $4 names (sorted), $5 digests, $6 descriptions, $7 options,
-- $8 argument_defaults, $9 schemas, $10 enqueued
WITH gone AS (
    DELETE FROM ondot.known_function
    WHERE tenant_no = $1::integer AND app = $2::text AND release = $3::text AND name <> ALL ($4::text[])
)
INSERT INTO ondot.known_function AS f
    (tenant_no, name, app, release, digest, description, options, argument_defaults, schema, enqueued, registered_at, seen_at)
SELECT $1, n.name, $2, $3, n.digest, n.description, n.options::json, n.argument_defaults::json, n.schema::json,
       n.enqueued::json, ondot.clock(), ondot.clock()
FROM unnest($4, $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[])
     AS n(name, digest, description, options, argument_defaults, schema, enqueued)
ON CONFLICT (tenant_no, name, app, release) DO UPDATE
SET digest = excluded.digest, description = excluded.description, options = excluded.options,
    argument_defaults = excluded.argument_defaults, schema = excluded.schema, enqueued = excluded.enqueued,
    seen_at = excluded.seen_at
WHERE f.digest <> excluded.digest OR f.seen_at < excluded.seen_at - interval '1 hour';

-- name: list_known :many
-- index: known_function_pkey
-- What is known of each release of the functions of a tenant, without what is long.
-- $1 tenant_no
WITH live AS MATERIALIZED (
    {{live_of_tenant}}
)
SELECT f.name, f.app, f.release, f.digest, l.app IS NOT NULL AS is_live
FROM ondot.known_function f LEFT JOIN live l ON l.app = f.app AND l.release = f.release
WHERE (f.tenant_no = $1 OR f.tenant_no = 0)
ORDER BY f.name, l.app IS NULL, f.registered_at DESC, f.app;

-- name: read_definitions :many
-- index: known_function_pkey
-- $1 tenant_no, $2 digests
SELECT DISTINCT ON (digest) digest, name, options, argument_defaults, schema
FROM ondot.known_function WHERE (tenant_no = $1::integer OR tenant_no = 0) AND digest = ANY ($2::text[]);

-- name: list_functions :many
-- index: known_function_pkey
-- One row for each name, of its newest live release, else its newest; `workers` are those of all its releases.
-- $1 tenant_no, $2 names after this one, $3 part of a name in lower case (NULL: all), $4 app (NULL: all), $5 limit
WITH live AS MATERIALIZED (
    SELECT w.app, w.app_release AS release, count(*) AS workers FROM ondot.worker w
    WHERE w.state = 'ALIVE' AND w.app IS NOT NULL AND (w.tenant_nos IS NULL OR $1::integer = ANY (w.tenant_nos))
    GROUP BY 1, 2
), known AS (
    SELECT f.name, f.app, f.release, f.description, f.options, f.registered_at, f.seen_at, l.workers,
           row_number() OVER (PARTITION BY f.name ORDER BY l.app IS NULL, f.registered_at DESC, f.app) AS place,
           count(*) OVER (PARTITION BY f.name) AS releases,
           coalesce(sum(l.workers) OVER (PARTITION BY f.name), 0) AS all_workers
    FROM ondot.known_function f LEFT JOIN live l ON l.app = f.app AND l.release = f.release
    WHERE (f.tenant_no = $1 OR f.tenant_no = 0) AND f.name > $2::text AND ($3::text IS NULL OR position($3 IN lower(f.name)) > 0)
      AND ($4::text IS NULL OR f.app = $4)
)
SELECT name, app, release, description, options, registered_at, seen_at, releases, all_workers::integer AS workers
FROM known WHERE place = 1 ORDER BY name LIMIT $5::integer;

-- name: get_function :many
-- index: known_function_pkey
-- All releases of one function, the one in force first.
-- $1 tenant_no, $2 name
WITH live AS MATERIALIZED (
    SELECT w.app, w.app_release AS release, count(*) AS workers FROM ondot.worker w
    WHERE w.state = 'ALIVE' AND w.app IS NOT NULL AND (w.tenant_nos IS NULL OR $1::integer = ANY (w.tenant_nos))
    GROUP BY 1, 2
)
SELECT f.name, f.app, f.release, f.description, f.options, f.argument_defaults, f.schema, f.registered_at, f.seen_at,
       coalesce(l.workers, 0)::integer AS workers
FROM ondot.known_function f LEFT JOIN live l ON l.app = f.app AND l.release = f.release
WHERE (f.tenant_no = $1 OR f.tenant_no = 0) AND f.name = $2::text
ORDER BY l.app IS NULL, f.registered_at DESC, f.app;

-- name: list_workers_of_function :many
-- index: known_function_pkey
-- $1 tenant_no, $2 name, $3 limit
SELECT w.id, w.host, w.pid, w.app, w.app_release AS release, w.started_at,
       ARRAY(SELECT p.name FROM ondot.pool p WHERE p.pool_no = ANY (w.pool_nos) ORDER BY p.name) AS pools
FROM ondot.worker w
WHERE w.state = 'ALIVE' AND (w.tenant_nos IS NULL OR $1::integer = ANY (w.tenant_nos))
  AND EXISTS (SELECT FROM ondot.known_function f
              WHERE (f.tenant_no = $1 OR f.tenant_no = 0) AND f.name = $2::text AND f.app = w.app AND f.release = w.app_release)
ORDER BY w.started_at DESC, w.id LIMIT $3::integer;

-- name: mark_live_functions :none
-- locks: rows
-- Housekeeping: to the hour.
UPDATE ondot.known_function f SET seen_at = ondot.clock()
WHERE f.seen_at < ondot.clock() - interval '1 hour' AND {{is_live}};

-- name: forget_functions :one
-- locks: rows        index: known_function_pkey
-- Releases without a live worker: those that a newer one has replaced, and those that have not run for days.
-- $1 days, $2 limit
WITH gone AS (
    DELETE FROM ondot.known_function WHERE ctid = ANY (ARRAY(
        SELECT f.ctid FROM ondot.known_function f
        WHERE NOT {{is_live}}
          AND (f.seen_at < ondot.clock() - make_interval(days => $1::integer)
               OR f.seen_at < ondot.clock() - interval '2 hours'
                  AND EXISTS (SELECT FROM ondot.known_function n
                              WHERE n.tenant_no = f.tenant_no AND n.name = f.name AND n.registered_at > f.registered_at))
        LIMIT $2::integer
    ))
    RETURNING 1
)
SELECT count(*) AS count FROM gone;

-- name: find_known_calls :many
-- index: unknown_call_pkey
-- Executions that were returned and whose function a live worker of their pool has now. Names first: a hundred thousand
-- executions of one unknown function are one name.
-- $1 limit
WITH names AS MATERIALIZED (
    SELECT DISTINCT tenant_no, function, pool_no FROM ondot.unknown_call
), known AS MATERIALIZED (
    SELECT n.tenant_no, n.function, n.pool_no FROM names n
    WHERE EXISTS (SELECT FROM ondot.worker w
                  JOIN ondot.known_function f ON f.app = w.app AND f.release = w.app_release
                  WHERE w.state = 'ALIVE' AND n.pool_no = ANY (w.pool_nos)
                    AND (w.tenant_nos IS NULL OR n.tenant_no = ANY (w.tenant_nos))
                    AND f.name = n.function AND (f.tenant_no = n.tenant_no OR f.tenant_no = 0))
)
SELECT u.tenant_no, u.execution_id FROM known k
JOIN ondot.unknown_call u ON u.tenant_no = k.tenant_no AND u.function = k.function AND u.pool_no = k.pool_no
LIMIT $1::integer;

-- name: forget_call :none
-- index: unknown_call_pkey
-- $1 tenant_no, $2 execution_id
DELETE FROM ondot.unknown_call WHERE tenant_no = $1::integer AND execution_id = $2::uuid;

-- name: count_unknown_calls :many
-- index: unknown_call_pkey
-- `ondot doctor`: functions that executions wait for, and how many.
-- $1 limit
SELECT function, count(*)::integer AS count FROM ondot.unknown_call GROUP BY function ORDER BY 2 DESC, 1 LIMIT $1::integer;

-- name: list_shared_names :many
-- index: known_function_pkey
-- `ondot doctor`: functions of one name in several apps whose live workers serve the same pool. An execution may run in
-- either. The same code under two names of an app is not among them.
-- $1 limit
SELECT DISTINCT f.name, array_agg(DISTINCT f.app) AS apps, p.name AS pool
FROM ondot.known_function f
JOIN ondot.worker w ON w.state = 'ALIVE' AND w.app = f.app AND w.app_release = f.release
     AND (w.tenant_nos IS NULL OR f.tenant_no = 0 OR f.tenant_no = ANY (w.tenant_nos))
JOIN ondot.pool p ON p.pool_no = ANY (w.pool_nos)
GROUP BY f.tenant_no, f.name, p.name
HAVING count(DISTINCT f.app) > 1 AND count(DISTINCT f.digest) > 1
ORDER BY 1, 3 LIMIT $1::integer;

-- name: forget_unknown_calls :one
-- locks: rows        index: unknown_call_pkey, execution_pkey
-- Of executions that have ended: cancelled, expired, or run after their hour.
-- $1 limit
WITH gone AS (
    DELETE FROM ondot.unknown_call WHERE ctid = ANY (ARRAY(
        SELECT u.ctid FROM ondot.unknown_call u
        WHERE NOT EXISTS (SELECT FROM ondot.execution e WHERE e.id = u.execution_id AND e.tenant_no = u.tenant_no)
        LIMIT $1::integer
    ))
    RETURNING 1
)
SELECT count(*) AS count FROM gone;
