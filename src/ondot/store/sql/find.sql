-- What people type to candidates. A block for each kind of thing, with the same parameters: by names, by ids, or by both.
-- A text names a thing if it is equal to its name; $4 and $5 are patterns of ILIKE, none if only that is wanted.

-- name: seek_jobs_named :many
-- index: job_name, job_key
-- Jobs with versions, by their whole name or key.
-- $1 tenant_no, $2 limit, $3 text, $4 only workflows, $5 pools (NULL: all)
SELECT j.id FROM ondot.job j
WHERE j.tenant_no = $1::integer
  AND j.id = ANY (ARRAY(
    (SELECT n.id FROM ondot.job n WHERE n.tenant_no = $1 AND n.name = $3::text ORDER BY n.state = 'DELETED', n.id DESC
     LIMIT $2::integer)
    UNION ALL
    SELECT k.id FROM ondot.job k WHERE k.tenant_no = $1 AND k.key = $3 AND k.state <> 'DELETED'))
  AND ($5::integer[] IS NULL OR j.pool_no = ANY ($5))
  AND (NOT $4::boolean OR EXISTS (
    SELECT FROM ondot.job_version v
    WHERE v.job_id = j.id AND v.version = j.version AND v.tenant_no = $1 AND v.spec #>> '{target,kind}' = 'workflow'))
ORDER BY j.state = 'DELETED', j.id DESC LIMIT $2;

-- name: seek_jobs_from :many
-- index: job_lower_name
-- Jobs with versions by the beginning of their name, in the order of their names.
-- $1 tenant_no, $2 limit, $3 first name and $4 name after the last, both in lower case, $5 only workflows, $6 pools (NULL: all)
SELECT j.id FROM ondot.job j
WHERE j.tenant_no = $1::integer AND j.state <> 'DELETED'
  AND lower(j.name COLLATE "C") >= $3::text AND lower(j.name COLLATE "C") < $4::text
  AND ($6::integer[] IS NULL OR j.pool_no = ANY ($6))
  AND (NOT $5::boolean OR EXISTS (
    SELECT FROM ondot.job_version v
    WHERE v.job_id = j.id AND v.version = j.version AND v.tenant_no = $1 AND v.spec #>> '{target,kind}' = 'workflow'))
ORDER BY lower(j.name COLLATE "C"), j.id LIMIT $2::integer;

-- name: seek_jobs_like :many
-- index: job_lower_name
-- Jobs with versions whose name or key matches, in no order: it ends with the first that are enough. For a rare text it reads
-- all names of the tenant, 100,000 in about 0.1 s.
-- $1 tenant_no, $2 limit, $3 patterns in lower case, $4 only workflows, $5 pools (NULL: all)
SELECT j.id FROM ondot.job j
WHERE j.tenant_no = $1::integer AND j.state <> 'DELETED'
  AND (lower(j.name COLLATE "C") LIKE ANY ($3::text[]) OR lower(j.key COLLATE "C") LIKE ANY ($3))
  AND ($5::integer[] IS NULL OR j.pool_no = ANY ($5))
  AND (NOT $4::boolean OR EXISTS (
    SELECT FROM ondot.job_version v
    WHERE v.job_id = j.id AND v.version = j.version AND v.tenant_no = $1 AND v.spec #>> '{target,kind}' = 'workflow'))
LIMIT $2::integer;

-- name: seek_job_ids :many
-- index: job_pkey, job_once_pkey, or job_tenant and job_once_tenant, backwards
-- Jobs of a range of ids, newest first.
-- $1 tenant_no, $2 from id, $3 before id, $4 limit, $5 pools (NULL: all)
(SELECT j.id FROM ondot.job j
 WHERE j.tenant_no = $1::integer AND j.id >= $2::uuid AND j.id < $3::uuid
   AND ($5::integer[] IS NULL OR j.pool_no = ANY ($5)) AND true /* recurring */
 ORDER BY j.id DESC LIMIT $4::integer)
UNION ALL
(SELECT j.id FROM ondot.job_once j
 WHERE j.tenant_no = $1 AND j.id >= $2 AND j.id < $3 AND ($5 IS NULL OR j.pool_no = ANY ($5))
   AND NOT EXISTS (SELECT FROM ondot.job b WHERE b.id = j.id) AND true /* once */
 ORDER BY j.id DESC LIMIT $4)
ORDER BY id DESC LIMIT $4;

-- name: seek_execution_ids :many
-- index: execution_pkey, history_pkey or history_tenant, backwards
-- Executions of a range of ids, newest first, live and ended, also steps of runs.
-- $1 tenant_no, $2 from id, $3 before id, $4 limit, $5 pools (NULL: all)
(SELECT e.id FROM ondot.execution e
 WHERE e.tenant_no = $1::integer AND e.id >= $2::uuid AND e.id < $3::uuid
   AND ($5::integer[] IS NULL OR e.pool_no = ANY ($5)) AND true /* live */
 ORDER BY e.id DESC LIMIT $4::integer)
UNION ALL
(SELECT e.id FROM ondot.history e
 WHERE e.tenant_no = $1 AND e.id >= $2 AND e.id < $3 AND ($5 IS NULL OR e.pool_no = ANY ($5)) AND true /* ended */
 ORDER BY e.id DESC LIMIT $4)
ORDER BY id DESC LIMIT $4;

-- name: seek_event_ids :many
-- index: event_pkey, backwards
-- $1 tenant_no, $2 from id, $3 before id, $4 limit
SELECT e.id FROM ondot.event e
WHERE e.tenant_no = $1::integer AND e.id >= $2::uuid AND e.id < $3::uuid
ORDER BY e.id DESC LIMIT $4::integer;

-- name: name_events :many
-- index: event_pkey
-- $1 tenant_no, $2 ids, $3 from id and $4 before id: of their days
SELECT e.id::text, e.type AS name, NULL AS state, e.source AS about FROM ondot.event e
WHERE e.tenant_no = $1::integer AND e.id = ANY ($2::uuid[]) AND e.id >= $3::uuid AND e.id < $4::uuid
ORDER BY e.id DESC;

-- name: seek_runs :many
-- index: run_tenant, backwards
-- Runs by id, newest first.
-- $1 tenant_no, $2 limit, $3 first id, $4 last id
SELECT r.id::text, coalesce(j.name, '') AS name, r.state, CASE WHEN r.parent_run_id IS NOT NULL THEN 'started by another run' END AS about
FROM ondot.run r LEFT JOIN ondot.job j ON j.id = r.job_id AND j.tenant_no = $1
WHERE r.tenant_no = $1::integer AND r.id BETWEEN $3::uuid AND $4::uuid
ORDER BY r.id DESC LIMIT $2::integer;

-- name: seek_letters :many
-- index: dead_letter_pkey, backwards
-- Dead letters by the id of their execution, newest first.
-- $1 tenant_no, $2 limit, $3 first id, $4 last id
SELECT l.execution_id::text AS id, l.job_id, upper(coalesce(l.resolution, 'open')) AS state,
       left(l.error->>'message', 200) AS about
FROM ondot.dead_letter l
WHERE l.tenant_no = $1::integer AND l.execution_id BETWEEN $3::uuid AND $4::uuid
ORDER BY l.execution_id DESC LIMIT $2::integer;

-- name: seek_backfills :many
-- index: backfill_pkey, backwards
-- $1 tenant_no, $2 limit, $3 first id, $4 last id, $5 pools (NULL: all)
SELECT b.id::text, j.name, b.state, b.job_id
FROM ondot.backfill b JOIN ondot.job j ON j.id = b.job_id AND j.tenant_no = $1
WHERE b.tenant_no = $1::integer AND b.id BETWEEN $3::uuid AND $4::uuid AND ($5::integer[] IS NULL OR j.pool_no = ANY ($5))
ORDER BY b.id DESC LIMIT $2::integer;

-- name: seek_bulks :many
-- index: bulk_latest, backwards
-- $1 tenant_no, $2 limit, $3 first id, $4 last id
SELECT b.id::text, b.action || ' ' || replace(b.kind, '_', ' ') AS name, b.state, coalesce(b.reason, b.q) AS about
FROM ondot.bulk b
WHERE b.tenant_no = $1::integer AND b.id BETWEEN $3::uuid AND $4::uuid
ORDER BY b.id DESC LIMIT $2::integer;

-- name: seek_alerts :many
-- index: alert_tenant_no_name_key
-- $1 tenant_no, $2 limit, $3 text, $4 patterns of beginnings, $5 patterns, $6 first id, $7 last id
SELECT a.id::text, a.name, CASE WHEN a.muted_until > ondot.clock() THEN 'MUTED' END AS state,
       'notifies ' || nullif(array_to_string(a.notify, ', '), '') AS about
FROM ondot.alert a
WHERE a.tenant_no = $1::integer
  AND (a.name = $3::text OR a.name ILIKE ANY ($5::text[]) OR a.id BETWEEN $6::uuid AND $7::uuid)
ORDER BY a.name = $3 DESC, a.name ILIKE ANY ($4::text[]) DESC, a.name COLLATE "C" LIMIT $2::integer;

-- name: seek_incidents :many
-- index: incident_latest
-- By id; open ones also by their title and the name of their alert.
-- $1 tenant_no, $2 limit, $3 text, $4 patterns of beginnings, $5 patterns, $6 first id, $7 last id
SELECT i.id::text, i.title AS name, i.alert AS key,
       CASE WHEN i.resolved_at IS NOT NULL THEN 'RESOLVED' WHEN i.acknowledged_at IS NOT NULL THEN 'ACKNOWLEDGED'
            ELSE 'OPEN' END AS state,
       'alert ' || i.alert AS about
FROM ondot.incident i
WHERE i.tenant_no = $1::integer
  AND (i.id BETWEEN $6::uuid AND $7::uuid
       OR i.resolved_at IS NULL
          AND (i.alert = $3::text OR i.title = $3 OR i.alert ILIKE ANY ($5::text[]) OR i.title ILIKE ANY ($5)))
ORDER BY (i.alert = $3 OR i.title = $3) DESC, (i.alert ILIKE ANY ($4::text[]) OR i.title ILIKE ANY ($4)) DESC, i.id DESC
LIMIT $2::integer;

-- name: seek_channels :many
-- index: channel_tenant_no_name_key
-- $1 tenant_no, $2 limit, $3 text, $4 patterns of beginnings, $5 patterns, $6 first id, $7 last id
SELECT c.id::text, c.name, NULL AS state, c.spec->>'kind' AS about FROM ondot.channel c
WHERE c.tenant_no = $1::integer
  AND (c.name = $3::text OR c.name ILIKE ANY ($5::text[]) OR c.id BETWEEN $6::uuid AND $7::uuid)
ORDER BY c.name = $3 DESC, c.name ILIKE ANY ($4::text[]) DESC, c.name COLLATE "C" LIMIT $2::integer;

-- name: seek_pings :many
-- index: ping_tenant_no_name_key
-- $1 tenant_no, $2 limit, $3 text, $4 patterns of beginnings, $5 patterns, $6 first id, $7 last id
SELECT p.id::text, p.name, p.state, NULL AS about, p.due_at AS next_fire_at FROM ondot.ping p
WHERE p.tenant_no = $1::integer
  AND (p.name = $3::text OR p.name ILIKE ANY ($5::text[]) OR p.id BETWEEN $6::uuid AND $7::uuid)
ORDER BY p.name = $3 DESC, p.name ILIKE ANY ($4::text[]) DESC, p.name COLLATE "C" LIMIT $2::integer;

-- name: seek_hooks :many
-- index: hook_tenant_no_name_key
-- $1 tenant_no, $2 limit, $3 text, $4 patterns of beginnings, $5 patterns, $6 first id, $7 last id
SELECT h.id::text, h.name, NULL AS state, 'events of type ' || h.type AS about FROM ondot.hook h
WHERE h.tenant_no = $1::integer
  AND (h.name = $3::text OR h.name ILIKE ANY ($5::text[]) OR h.id BETWEEN $6::uuid AND $7::uuid)
ORDER BY h.name = $3 DESC, h.name ILIKE ANY ($4::text[]) DESC, h.name COLLATE "C" LIMIT $2::integer;

-- name: seek_views :many
-- index: saved_view_tenant_no_owner_kind_name_key
-- Saved views of these owners.
-- $1 tenant_no, $2 limit, $3 text, $4 patterns of beginnings, $5 patterns, $6 first id, $7 last id, $8 owners
SELECT w.id::text, w.name, NULL AS state, replace(w.kind, '_', ' ') || ': ' || w.q AS about, w.q, replace(w.kind, '_', '-') AS of
FROM ondot.saved_view w
WHERE w.tenant_no = $1::integer AND w.owner = ANY ($8::text[])
  AND (w.name = $3::text OR w.name ILIKE ANY ($5::text[]) OR w.id BETWEEN $6::uuid AND $7::uuid)
ORDER BY w.name = $3 DESC, w.name ILIKE ANY ($4::text[]) DESC, w.name COLLATE "C", w.id LIMIT $2::integer;

-- name: seek_secrets :many
-- index: secret_pkey
-- $1 tenant_no, $2 limit, $3 text, $4 patterns of beginnings, $5 patterns
SELECT s.name AS id, s.name, NULL AS state, NULL AS about FROM ondot.secret s
WHERE s.tenant_no = $1::integer AND (s.name = $3::text OR s.name ILIKE ANY ($5::text[]))
ORDER BY s.name = $3 DESC, s.name ILIKE ANY ($4::text[]) DESC, s.name COLLATE "C" LIMIT $2::integer;

-- name: seek_functions :many
-- index: known_function_pkey
-- Functions that workers have registered, each once, whatever its apps and releases.
-- $1 tenant_no, $2 limit, $3 text, $4 patterns of beginnings, $5 patterns
SELECT f.name AS id, f.name, NULL AS state, max(f.description) AS about FROM ondot.known_function f
WHERE f.tenant_no = $1::integer AND (f.name = $3::text OR f.name ILIKE ANY ($5::text[]))
GROUP BY f.name
ORDER BY f.name = $3 DESC, f.name ILIKE ANY ($4::text[]) DESC, f.name COLLATE "C" LIMIT $2::integer;

-- name: seek_keys :many
-- index: key_of_tenant
-- $1 tenant_no, $2 limit, $3 text, $4 patterns of beginnings, $5 patterns, $6 first id, $7 last id
SELECT k.id::text, k.name,
       CASE WHEN k.revoked_at <= ondot.clock() THEN 'REVOKED' WHEN k.expires_at <= ondot.clock() THEN 'EXPIRED' END AS state,
       k.role AS about
FROM ondot.key k
WHERE k.tenant_no = $1::integer
  AND (k.name = $3::text OR k.name ILIKE ANY ($5::text[]) OR k.id BETWEEN $6::uuid AND $7::uuid)
ORDER BY k.name = $3 DESC, k.revoked_at IS NOT NULL, k.name ILIKE ANY ($4::text[]) DESC, k.name COLLATE "C", k.id DESC
LIMIT $2::integer;

-- name: seek_users :many
-- index: person_email
-- $1 tenant_no, $2 limit, $3 text, $4 patterns of beginnings, $5 patterns, $6 first id, $7 last id
SELECT p.id::text, p.email AS name, p.name AS key, nullif(p.state, 'ACTIVE') AS state, p.name || ', ' || p.role AS about
FROM ondot.person p
WHERE p.tenant_no = $1::integer
  AND (p.email = $3::text OR p.name = $3 OR p.email ILIKE ANY ($5::text[]) OR p.name ILIKE ANY ($5)
       OR p.id BETWEEN $6::uuid AND $7::uuid)
ORDER BY (p.email = $3 OR p.name = $3) DESC, (p.email ILIKE ANY ($4::text[]) OR p.name ILIKE ANY ($4)) DESC,
         p.email COLLATE "C"
LIMIT $2::integer;

-- name: seek_pools :many
-- Pools of the installation, without its own.
-- $1 limit, $2 text, $3 patterns of beginnings, $4 patterns
SELECT p.name AS id, p.name, NULL AS state, NULL AS about FROM ondot.pool p
WHERE (p.name = $2::text OR p.name ILIKE ANY ($4::text[])) AND p.name NOT LIKE ':%'
ORDER BY p.name = $2 DESC, p.name ILIKE ANY ($3::text[]) DESC, p.name COLLATE "C" LIMIT $1::integer;
