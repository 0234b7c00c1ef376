-- fragment: matches_filter
-- The letters that a filter selects; each parameter may be NULL: any.
-- $2 job_id, $3 pool, $4 fingerprint, $5 from_at, $6 to_at. `store.dead_letters` replaces `true /* query */` by the
-- conditions of a query, whose values are parameters after those of the statement.
AND ($2::uuid IS NULL OR d.job_id = $2)
AND ($3::text IS NULL OR EXISTS (SELECT FROM ondot.history h JOIN ondot.pool p ON p.pool_no = h.pool_no
                                 WHERE h.id = d.execution_id AND p.name = $3))
AND ($4::text IS NULL OR CASE WHEN $4 = 'unknown' THEN d.error->>'fingerprint' IS NULL
                              ELSE d.error->>'fingerprint' = $4 END)
AND ($5::timestamptz IS NULL OR d.failed_at >= $5) AND ($6::timestamptz IS NULL OR d.failed_at < $6)
AND true /* query */

-- name: list_letters :many
-- index: dead_letter_open, dead_letter_alike or dead_letter_job, backwards
-- Newest failure first; a page is cut by instant and id. Without payloads and tracebacks, which may be long.
-- $1 tenant_no, $2 to $6 as in matches_filter, $7 state,
-- $8 before which failure (NULL: from the newest), $9 and its id, $10 limit
SELECT d.execution_id, d.job_id, d.job_version, d.failed_at, d.reason, d.error - 'detail' AS error, d.resolution,
       d.resolved_at, d.resolved_by, d.resolved_reason, d.replay_id, d.run_id, d.step_no
FROM ondot.dead_letter d
WHERE d.tenant_no = $1::integer
  {{matches_filter}}
  AND CASE $7::text WHEN 'open' THEN d.resolved_at IS NULL
                    WHEN 'all' THEN true
                    ELSE d.resolved_at IS NOT NULL AND d.resolution = $7 END
  AND ($8::timestamptz IS NULL OR (d.failed_at, d.execution_id) < ($8, $9::uuid))
ORDER BY d.failed_at DESC, d.execution_id DESC LIMIT $10::integer;

-- name: where_letters_ran :many
-- index: history_pkey
-- The history of these executions, as long as it is kept. Separate from list_letters: with ids that the planner knows, it reads
-- only their days.
-- $1 tenant_no, $2 ids
SELECT h.id, h.fire_at, h.origin, h.attempt_no, p.name AS pool
FROM ondot.history h LEFT JOIN ondot.pool p ON p.pool_no = h.pool_no
WHERE h.id = ANY ($2::uuid[]) AND h.tenant_no = $1::integer;

-- name: get_letter :one
-- index: dead_letter_pkey, history_pkey
-- $1 tenant_no, $2 execution_id
SELECT d.execution_id, d.job_id, d.job_version, d.failed_at, d.reason, d.error, d.resolution, d.resolved_at, d.resolved_by,
       d.resolved_reason, d.replay_id, d.run_id, d.step_no, h.fire_at, h.origin, h.attempt_no, p.name AS pool, d.payload
FROM ondot.dead_letter d
LEFT JOIN ondot.history h ON h.id = d.execution_id
LEFT JOIN ondot.pool p ON p.pool_no = h.pool_no
WHERE d.execution_id = $2::uuid AND d.tenant_no = $1::integer;

-- name: count_letters :one
-- index: dead_letter_open, dead_letter_alike or dead_letter_job
-- Open letters; for an operation that starts now, those that it will reach (see take_letters).
-- $1 tenant_no, $2 to $6 as in matches_filter,
-- $7 the id of the operation (NULL: none)
SELECT count(*)::integer AS count, ondot.clock() AS now FROM ondot.dead_letter d
WHERE d.tenant_no = $1::integer AND d.resolved_at IS NULL
  {{matches_filter}}
  AND ($7::uuid IS NULL OR d.failed_at <= ondot.clock() AND d.execution_id < $7);

-- name: count_open_letters :one
-- index: dead_letter_pkey
-- $1 tenant_no, $2 ids
SELECT count(*)::integer AS count FROM ondot.dead_letter
WHERE execution_id = ANY ($2::uuid[]) AND tenant_no = $1::integer AND resolved_at IS NULL;

-- name: group_letters :many
-- index: dead_letter_alike, history_pkey
-- Open letters by fingerprint, the group with the newest failure first. The fingerprints are found by hops over the index:
-- grouping rows by a field of their errors would read every traceback.
-- $1 tenant_no, $2 to $6 as in matches_filter, $7 limit, $8 jobs of each
WITH RECURSIVE print AS (
    (SELECT d.error->>'fingerprint' AS fingerprint FROM ondot.dead_letter d
     WHERE d.tenant_no = $1::integer AND d.resolved_at IS NULL AND d.error->>'fingerprint' IS NOT NULL
     ORDER BY 1 LIMIT 1)
    UNION ALL
    SELECT (SELECT d.error->>'fingerprint' FROM ondot.dead_letter d
            WHERE d.tenant_no = $1 AND d.resolved_at IS NULL AND d.error->>'fingerprint' > p.fingerprint
            ORDER BY 1 LIMIT 1)
    FROM print p WHERE p.fingerprint IS NOT NULL
), alike AS (
    SELECT fingerprint FROM print WHERE fingerprint IS NOT NULL
    UNION ALL
    SELECT NULL
)
SELECT coalesce(a.fingerprint, 'unknown') AS fingerprint, g.count, g.first_failed_at, g.last_failed_at, g.sample_id,
       s.error AS sample_error, g.job_count, g.job_ids
FROM alike a
CROSS JOIN LATERAL (
    SELECT count(*)::integer AS count, min(d.failed_at) AS first_failed_at, max(d.failed_at) AS last_failed_at,
           (array_agg(d.execution_id ORDER BY d.failed_at DESC, d.execution_id DESC))[1] AS sample_id,
           count(DISTINCT d.job_id)::integer AS job_count, (array_agg(DISTINCT d.job_id))[:$8::integer] AS job_ids
    FROM ondot.dead_letter d
    WHERE d.tenant_no = $1 AND d.resolved_at IS NULL
      AND d.error->>'fingerprint' = a.fingerprint
      {{matches_filter}}
    HAVING count(*) > 0
    UNION ALL
    SELECT count(*)::integer, min(d.failed_at), max(d.failed_at),
           (array_agg(d.execution_id ORDER BY d.failed_at DESC, d.execution_id DESC))[1],
           count(DISTINCT d.job_id)::integer, (array_agg(DISTINCT d.job_id))[:$8]
    FROM ondot.dead_letter d
    WHERE a.fingerprint IS NULL AND d.tenant_no = $1 AND d.resolved_at IS NULL
      AND d.error->>'fingerprint' IS NULL
      {{matches_filter}}
    HAVING count(*) > 0
) g
JOIN ondot.dead_letter s ON s.execution_id = g.sample_id
WHERE $4::text IS NULL OR coalesce(a.fingerprint, 'unknown') = $4
ORDER BY g.last_failed_at DESC, fingerprint LIMIT $7::integer;

-- name: find_job_names :many
-- index: job_pkey, job_once_pkey
-- $1 tenant_no, $2 ids
SELECT n.id, coalesce(j.name, o.name) AS name
FROM unnest($2::uuid[]) AS n(id)
LEFT JOIN LATERAL (SELECT name FROM ondot.job WHERE id = n.id AND tenant_no = $1::integer LIMIT 1) j ON true
LEFT JOIN LATERAL (
    SELECT name FROM ondot.job_once WHERE id = n.id AND id = ANY ($2) AND tenant_no = $1 LIMIT 1
) o ON true;

-- name: lock_letters :many
-- locks: dead letters, in the order of their ids        index: dead_letter_pkey
-- A second transaction waits here, and then finds what the first has done.
-- $1 tenant_no, $2 ids
SELECT execution_id, job_id, job_version, payload IS NOT NULL AS own_payload, resolution, resolved_by, replay_id, run_id,
       step_no
FROM ondot.dead_letter
WHERE execution_id = ANY ($2::uuid[]) AND tenant_no = $1::integer
ORDER BY execution_id FOR UPDATE;

-- name: take_letters :many
-- locks: dead letters, SKIP LOCKED        index: dead_letter_pkey
-- Open letters of an operation. Those that others have locked are left out, and so are resolved ones.
-- $1 tenant_no, $2 ids
SELECT execution_id, job_id, job_version, payload IS NOT NULL AS own_payload, resolution, resolved_by, replay_id, run_id,
       step_no
FROM ondot.dead_letter
WHERE execution_id = ANY ($2::uuid[]) AND tenant_no = $1::integer AND resolved_at IS NULL
ORDER BY execution_id FOR UPDATE SKIP LOCKED;

-- name: next_letters :many
-- index: dead_letter_pkey or dead_letter_open
-- Open letters of those that existed when the operation started: executions that fail again afterwards do not belong to it,
-- or it would never end.
-- $1 tenant_no, $2 to $6 as in matches_filter, $7 up to which failure, $8 before which id, $9 after (NULL: from the
-- first), $10 limit
SELECT d.execution_id AS id FROM ondot.dead_letter d
WHERE d.tenant_no = $1::integer AND d.resolved_at IS NULL
  {{matches_filter}}
  AND d.failed_at <= $7::timestamptz AND d.execution_id < $8::uuid AND ($9::uuid IS NULL OR d.execution_id > $9)
ORDER BY d.execution_id LIMIT $10::integer;

-- name: resolve_letters :many
-- locks: dead letters, held already        index: dead_letter_pkey
-- $1 tenant_no, $2 ids, $3 the executions that run them again (NULL: none), $4 resolution, $5 actor, $6 reason
UPDATE ondot.dead_letter d
SET resolved_at = ondot.clock(), resolution = $4::text, resolved_by = $5::text, resolved_reason = $6::text,
    replay_id = r.replay_id
FROM unnest($2::uuid[], $3::uuid[]) AS r(id, replay_id)
WHERE d.execution_id = r.id AND d.tenant_no = $1::integer AND d.resolved_at IS NULL
RETURNING d.execution_id;

-- name: find_replay_payload :one
-- index: dead_letter_pkey, history_pkey
-- The payload with which an execution ran instead of its job's own.
-- $1 tenant_no, $2 execution_id
SELECT coalesce(
    (SELECT payload::text FROM ondot.dead_letter WHERE execution_id = $2::uuid AND tenant_no = $1::integer),
    (SELECT payload::text FROM ondot.history WHERE id = $2 AND tenant_no = $1)
) AS payload;

-- name: lock_ended :one
-- locks: the row of history        index: history_pkey
-- For a replay of an execution without an open letter: two callers at once make one execution.
-- $1 tenant_no, $2 execution_id
SELECT id AS execution_id, job_id, job_version, payload IS NOT NULL AS own_payload
FROM ondot.history WHERE id = $2::uuid AND tenant_no = $1::integer FOR NO KEY UPDATE;

-- name: find_live_replay :one
-- index: execution_other
-- $1 tenant_no, $2 job_id, $3 the execution that is replayed
SELECT id FROM ondot.execution
WHERE job_id = $2::uuid AND tenant_no = $1::integer AND origin NOT IN ('fire', 'backfill') AND replay_of = $3::uuid
LIMIT 1;
