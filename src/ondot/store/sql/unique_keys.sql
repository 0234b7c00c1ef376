-- name: lock_claims :many
-- locks: claims, in the order in which they are given        index: claim_pkey
-- Each key once. A row that exists is locked by writing the value that it has; a new one belongs to the job.
-- $1 tenant_no, $2 kinds, $3 keys, $4 job_ids, $5 now
INSERT INTO ondot.claim (tenant_no, kind, key, job_id, since_at, until_at)
SELECT $1::integer, n.kind, n.key, n.job_id, $5::timestamptz, $5
FROM unnest($2::text[], $3::text[], $4::uuid[]) WITH ORDINALITY AS n(kind, key, job_id, no)
ORDER BY n.no
ON CONFLICT (tenant_no, kind, key) DO UPDATE SET key = excluded.key
RETURNING kind, key, job_id, since_at, until_at, count;

-- name: is_live :many
-- index: timer_pkey, execution_fire, execution_other, owed_job, job_pkey
-- Which of these jobs have not ended. A paused job goes on when it is resumed; a deleted one is live while an execution
-- of it runs.
-- $1 tenant_no, $2 job_ids
SELECT n.id FROM unnest($2::uuid[]) AS n(id)
WHERE ondot.is_live(n.id)
   OR EXISTS (SELECT FROM ondot.job j WHERE j.id = n.id AND j.tenant_no = $1::integer AND j.state = 'PAUSED');

-- name: set_claims :none
-- locks: claims, held already        index: claim_pkey
-- As an upsert, which finds each by its key: an update that joins may read the whole table.
-- $1 tenant_no, $2 kinds, $3 keys, $4 job_ids, $5 since_ats, $6 until_ats, $7 counts
INSERT INTO ondot.claim (tenant_no, kind, key, job_id, since_at, until_at, count)
SELECT $1::integer, n.* FROM unnest($2::text[], $3::text[], $4::uuid[], $5::timestamptz[], $6::timestamptz[],
                                    $7::integer[]) AS n
ON CONFLICT (tenant_no, kind, key) DO UPDATE
SET job_id = excluded.job_id, since_at = excluded.since_at, until_at = excluded.until_at, count = excluded.count;

-- name: release_claim :none
-- locks: the claim        index: claim_pkey
-- $1 tenant_no, $2 kind, $3 key, $4 job_id
DELETE FROM ondot.claim WHERE tenant_no = $1::integer AND kind = $2::text AND key = $3::text AND job_id = $4::uuid;

-- name: find_changed :many
-- index: job_pkey
-- $1 tenant_no, $2 ids
SELECT id FROM ondot.job WHERE id = ANY ($2::uuid[]) AND tenant_no = $1::integer ORDER BY id;

-- name: unplan_jobs :many
-- transition: refuse        locks: timer rows        index: timer_pkey, job_pkey, job_once_pkey
-- Waits for a plan that is taking one of the timers, and then finds nothing, because the execution exists. The timer of a
-- job that was not changed is at version 1, and is removed; if the job is being changed at this moment, it is at another
-- version after the wait, and stays. A job that was changed keeps its timer, by which it is removed when it is old.
-- $1 tenant_no, $2 job_ids, $3 execution_ids, $4 reasons, $5 fire_ats (NULL: it was not changed), $6 whether it is paused
WITH replaced AS (
    SELECT * FROM unnest($2::uuid[], $3::uuid[], $4::text[], $5::timestamptz[], $6::boolean[])
         AS a(job_id, execution_id, reason, fire_at, is_paused)
), gone AS (
    DELETE FROM ondot.timer t USING replaced a
    WHERE a.fire_at IS NULL AND t.job_id = a.job_id AND t.tenant_no = $1::integer AND t.version = 1
      AND t.next_fire_at < 'infinity'
    RETURNING t.job_id, t.job_version, t.next_fire_at AS fire_at, a.execution_id, a.reason
), kept AS (
    UPDATE ondot.timer t SET next_fire_at = 'infinity', fired_through = a.fire_at, version = t.version + 1
    FROM replaced a
    WHERE a.fire_at IS NOT NULL AND t.job_id = a.job_id AND t.tenant_no = $1::integer
      AND (a.is_paused OR t.next_fire_at < 'infinity')
    RETURNING t.job_id, t.job_version, a.fire_at, a.execution_id, a.reason
), ended AS (
    SELECT g.execution_id AS id, g.job_id, g.fire_at, g.fire_at AS ready_at, $1 AS tenant_no, g.job_version,
           coalesce(j.pool_no, o.pool_no) AS pool_no, 2 AS class, g.reason, ondot.labels_of($1, g.job_id) AS labels,
           {{never_made}}
    FROM (SELECT * FROM gone UNION ALL SELECT * FROM kept) g
    LEFT JOIN LATERAL (SELECT pool_no FROM ondot.job WHERE id = g.job_id AND tenant_no = $1 LIMIT 1) j ON true
    LEFT JOIN LATERAL (
        SELECT pool_no FROM ondot.job_once WHERE id = g.job_id AND id = ANY ($2) AND tenant_no = $1 LIMIT 1
    ) o ON true
),
{{end}}
SELECT job_id FROM ended;

-- name: waiting_of :many
-- index: execution_fire
-- $1 tenant_no, $2 job_ids
SELECT id, job_id FROM ondot.execution
WHERE job_id = ANY ($2::uuid[]) AND tenant_no = $1::integer AND origin IN ('fire', 'backfill') AND state = 'PENDING'
  AND attempt_no = 0;

-- name: forget_claims :one
-- locks: claims, SKIP LOCKED        index: claim_look
-- Removes keys that have no effect any more. A key whose job lives is looked at again after as long as it has been held, a
-- minute at least and an hour at most: so many live keys cost little, and keys that are over do not wait behind them.
-- Returns how many were looked at.
-- $1 limit
WITH due AS MATERIALIZED (
    SELECT ctid AS row_at, job_id, since_at, until_at FROM ondot.claim
    WHERE look_at <= ondot.clock() ORDER BY look_at LIMIT $1::integer FOR UPDATE SKIP LOCKED
), judged AS MATERIALIZED (
    -- The text of ondot.is_live: as a function it is planned for each row, which takes 0.1 to 0.5 ms. LIMIT: one probe each.
    SELECT d.row_at, d.until_at >= ondot.clock() - interval '1 minute'
        OR (SELECT true FROM ondot.timer WHERE job_id = d.job_id AND next_fire_at < 'infinity' LIMIT 1) IS NOT NULL
        OR (SELECT true FROM ondot.execution WHERE job_id = d.job_id AND origin IN ('fire', 'backfill') LIMIT 1) IS NOT NULL
        OR (SELECT true FROM ondot.execution WHERE job_id = d.job_id AND origin NOT IN ('fire', 'backfill') LIMIT 1)
           IS NOT NULL
        OR (SELECT true FROM ondot.owed WHERE job_id = d.job_id LIMIT 1) IS NOT NULL
        OR (SELECT true FROM ondot.job WHERE id = d.job_id AND state = 'PAUSED' LIMIT 1) IS NOT NULL AS is_held
    FROM due d
), left_alone AS (
    UPDATE ondot.claim c
    SET look_at = ondot.clock() + greatest(least(ondot.clock() - c.since_at, interval '1 hour'), interval '1 minute')
    WHERE c.ctid = ANY (ARRAY(SELECT row_at FROM judged WHERE is_held))
), gone AS (
    DELETE FROM ondot.claim WHERE ctid = ANY (ARRAY(SELECT row_at FROM judged WHERE NOT is_held))
)
SELECT count(*) AS count FROM judged;
