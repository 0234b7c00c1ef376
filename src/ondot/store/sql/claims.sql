-- name: lock_claim :one
-- locks: the claim        index: claim_pkey
-- $1 tenant_no, $2 kind, $3 key, $4 job_id, $5 since_at, $6 until_at
INSERT INTO ondot.claim (tenant_no, kind, key, job_id, since_at, until_at)
VALUES ($1::integer, $2::text, $3::text, $4::uuid, $5::timestamptz, $6::timestamptz)
ON CONFLICT (tenant_no, kind, key) DO UPDATE SET key = excluded.key
RETURNING job_id, since_at, until_at, count, job_id = $4 AS is_new;

-- name: is_live :one
-- index: timer_pkey, execution_fire, execution_other, owed_job
-- $1 job_id
SELECT ondot.is_live($1::uuid) AS live;

-- name: set_claim :none
-- locks: the claim, held already
-- $1 tenant_no, $2 kind, $3 key, $4 job_id, $5 since_at, $6 until_at, $7 count
UPDATE ondot.claim SET job_id = $4::uuid, since_at = $5::timestamptz, until_at = $6::timestamptz, count = $7::integer
WHERE tenant_no = $1::integer AND kind = $2::text AND key = $3::text;

-- name: release_claim :none
-- locks: the claim        index: claim_pkey
-- $1 tenant_no, $2 kind, $3 key, $4 job_id
DELETE FROM ondot.claim WHERE tenant_no = $1::integer AND kind = $2::text AND key = $3::text AND job_id = $4::uuid;

-- name: unplan_once_job :one
-- transition: refuse        locks: the timer row        index: timer_pkey, job_once_pkey
-- Waits for a plan that is taking it, and then finds nothing: the execution is there.
-- $1 tenant_no, $2 job_id, $3 execution_id, $4 reason
WITH gone AS (
    DELETE FROM ondot.timer
    WHERE job_id = $2::uuid AND tenant_no = $1::integer AND NOT EXISTS (SELECT FROM ondot.job j WHERE j.id = $2)
    RETURNING job_id
)
INSERT INTO ondot.history (id, job_id, fire_at, ready_at, ended_at, tenant_no, job_version, pool_no, attempt_no, failures,
                           losses, class, state, origin, reason)
SELECT $3::uuid, o.id, o.fire_at, o.fire_at, ondot.clock(), o.tenant_no, 1, o.pool_no, 0, 0, 0, 2, 'SKIPPED', 'fire',
       $4::text
FROM gone g JOIN ondot.job_once o ON o.id = g.job_id AND o.tenant_no = $1
RETURNING id;

-- name: waiting_of :many
-- index: execution_fire
-- $1 tenant_no, $2 job_id
SELECT id FROM ondot.execution
WHERE job_id = $2::uuid AND tenant_no = $1::integer AND origin IN ('fire', 'backfill') AND state = 'PENDING'
  AND attempt_no = 0;

-- name: forget_claims :none
-- locks: claims, SKIP LOCKED        index: claim_age
-- $1 limit
DELETE FROM ondot.claim WHERE ctid = ANY (ARRAY(
    SELECT c.ctid FROM ondot.claim c
    WHERE c.until_at < ondot.clock() - interval '1 minute' AND NOT ondot.is_live(c.job_id)
    ORDER BY c.until_at LIMIT $1::integer FOR UPDATE SKIP LOCKED
));
