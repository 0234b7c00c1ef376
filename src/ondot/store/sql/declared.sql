-- name: see_release :one
-- locks: the rows of the app and of its release        index: app_pkey, app_release_pkey
-- A worker of this release is alive. Written at most each 5 s: a fleet starts at once. A time in the future is from before
-- the clock was set back. Returns the release whose declarations are in force.
-- $1 tenant_no, $2 app, $3 release
WITH known AS (
    INSERT INTO ondot.app (tenant_no, name) VALUES ($1::integer, $2::text) ON CONFLICT (tenant_no, name) DO NOTHING
), seen AS (
    INSERT INTO ondot.app_release (tenant_no, app, release) VALUES ($1, $2, $3::text)
    ON CONFLICT (tenant_no, app, release) DO UPDATE SET seen_at = ondot.clock()
    WHERE app_release.seen_at NOT BETWEEN ondot.clock() - interval '5 s' AND ondot.clock()
)
SELECT (SELECT release FROM ondot.app WHERE tenant_no = $1 AND name = $2) AS in_force;

-- name: lock_app :one
-- locks: the row of the app, before all jobs        index: app_pkey
-- $1 tenant_no, $2 app
SELECT release FROM ondot.app WHERE tenant_no = $1::integer AND name = $2::text FOR UPDATE;

-- name: find_newer_release :one
-- index: app_release_pkey
-- A release that was first seen after this one, and had a live worker in the last minute.
-- $1 tenant_no, $2 app, $3 release, $4 seconds
SELECT n.release
FROM ondot.app_release n JOIN ondot.app_release o ON o.tenant_no = n.tenant_no AND o.app = n.app
WHERE o.tenant_no = $1::integer AND o.app = $2::text AND o.release = $3::text AND n.no > o.no
  AND n.seen_at > ondot.clock() - make_interval(secs => $4::double precision)
  AND n.seen_at < ondot.clock() + make_interval(secs => $4)
ORDER BY n.no DESC LIMIT 1;

-- name: set_release :none
-- locks: the row of the app, held already        index: app_pkey, app_release_pkey
-- Also forgets releases beyond the latest thousand of the app.
-- $1 tenant_no, $2 app, $3 release
WITH kept AS (
    SELECT no FROM ondot.app_release WHERE tenant_no = $1::integer AND app = $2::text ORDER BY no DESC OFFSET 999 LIMIT 1
), forgotten AS (
    DELETE FROM ondot.app_release r USING kept
    WHERE r.tenant_no = $1 AND r.app = $2 AND r.no < kept.no AND r.release <> $3::text
)
UPDATE ondot.app SET release = $3, declared_at = ondot.clock() WHERE tenant_no = $1 AND name = $2;

-- name: read_declared :many
-- index: declared_pkey, job_pkey
-- What was declared with these keys, by any app.
-- $1 tenant_no, $2 keys
SELECT d.key, d.app, d.job_id, d.document::text AS document, d.first_release, d.release, d.declared_at, d.version,
       d.dropped_at, d.dropped_release, j.id IS NULL AS is_gone
FROM ondot.declared d LEFT JOIN ondot.job j ON j.id = d.job_id AND j.tenant_no = d.tenant_no AND j.state <> 'DELETED'
WHERE d.tenant_no = $1::integer AND d.key = ANY ($2::text[]);

-- name: find_declared :many
-- index: declared_job
-- $1 tenant_no, $2 job ids
SELECT key, app, job_id, document::text AS document, first_release, release, declared_at, version, dropped_at,
       dropped_release
FROM ondot.declared WHERE tenant_no = $1::integer AND job_id = ANY ($2::uuid[]);

-- name: put_declared :none
-- locks: its row, after the job        index: declared_pkey
-- $1 tenant_no, $2 key, $3 app, $4 job_id, $5 document, $6 release, $7 version (NULL: not as declared)
INSERT INTO ondot.declared (tenant_no, key, app, job_id, document, first_release, release, version)
VALUES ($1::integer, $2::text, $3::text, $4::uuid, $5::text::json, $6::text, $6, $7::integer)
ON CONFLICT (tenant_no, key) DO UPDATE
SET app = $3, job_id = $4, document = $5::text::json, release = $6, declared_at = ondot.clock(), version = $7,
    first_release = CASE WHEN declared.app = $3 AND declared.dropped_at IS NULL THEN declared.first_release ELSE $6 END,
    dropped_at = NULL, dropped_release = NULL;

-- name: set_declared_version :none
-- locks: its row, after the job        index: declared_job
-- $1 tenant_no, $2 job_id, $3 version
UPDATE ondot.declared SET version = $3::integer WHERE tenant_no = $1::integer AND job_id = $2::uuid;

-- name: drop_declared :many
-- locks: their rows        index: declared_app
-- What an app declared with other keys than these is no longer declared. What has no job either is forgotten.
-- $1 tenant_no, $2 app, $3 keys that it declares, $4 release
WITH forgotten AS (
    DELETE FROM ondot.declared d
    WHERE d.tenant_no = $1::integer AND d.app = $2::text AND NOT d.key = ANY ($3::text[])
      AND NOT EXISTS (SELECT FROM ondot.job j WHERE j.id = d.job_id AND j.tenant_no = $1 AND j.state <> 'DELETED')
)
UPDATE ondot.declared d SET dropped_at = ondot.clock(), dropped_release = $4::text
WHERE d.tenant_no = $1 AND d.app = $2 AND NOT d.key = ANY ($3) AND d.dropped_at IS NULL
  AND EXISTS (SELECT FROM ondot.job j WHERE j.id = d.job_id AND j.tenant_no = $1 AND j.state <> 'DELETED')
RETURNING d.key, d.job_id;

-- name: adopt_declared :one
-- locks: its row, after the job        index: declared_job
-- $1 tenant_no, $2 job_id, $3 app
UPDATE ondot.declared SET app = $3::text WHERE tenant_no = $1::integer AND job_id = $2::uuid RETURNING key;

-- name: put_refused :none
-- locks: the rows of the app        index: declared_refused_pkey
-- $1 tenant_no, $2 app, $3 release, $4 keys, $5 why of each
WITH gone AS (
    DELETE FROM ondot.declared_refused
    WHERE tenant_no = $1::integer AND app = $2::text AND NOT key = ANY ($4::text[])
)
INSERT INTO ondot.declared_refused (tenant_no, app, key, release, why)
SELECT $1, $2, r.key, $3::text, r.why FROM unnest($4, $5::text[]) AS r(key, why)
ON CONFLICT (tenant_no, app, key) DO UPDATE SET release = $3, why = excluded.why
WHERE declared_refused.why <> excluded.why OR declared_refused.release <> $3;

-- name: list_refused :many
-- index: declared_refused_pkey
-- $1 tenant_no (NULL: all), $2 key (NULL: all), $3 limit
SELECT tenant_no, app, key, release, why, refused_at FROM ondot.declared_refused
WHERE ($1::integer IS NULL OR tenant_no = $1) AND ($2::text IS NULL OR key = $2)
ORDER BY refused_at DESC, tenant_no, app, key LIMIT $3::integer;

-- name: list_dropped :many
-- index: declared_pkey
-- Jobs that exist and that their app no longer declares, the latest first.
-- $1 tenant_no (NULL: all), $2 limit
SELECT d.tenant_no, d.key, d.app, d.job_id, d.dropped_release, d.dropped_at
FROM ondot.declared d JOIN ondot.job j ON j.id = d.job_id AND j.tenant_no = d.tenant_no AND j.state <> 'DELETED'
WHERE d.dropped_at IS NOT NULL AND ($1::integer IS NULL OR d.tenant_no = $1)
ORDER BY d.dropped_at DESC, d.key LIMIT $2::integer;

-- name: find_renamed :many
-- index: declared_app
-- What an app first declared in a release.
-- $1 tenant_no, $2 app, $3 release
SELECT key, app, job_id, document::text AS document, first_release, release, declared_at, version, dropped_at,
       dropped_release
FROM ondot.declared WHERE tenant_no = $1::integer AND app = $2::text AND first_release = $3::text AND dropped_at IS NULL
ORDER BY key LIMIT 100;
