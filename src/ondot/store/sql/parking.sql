-- Timers and owed ranges of tenants that are not active: out of sight until their tenant is resumed (partition_no below 0).

-- name: park_timers :one
-- locks: tenant rows, shared, then timer rows, SKIP LOCKED        index: tenant_pkey, timer_pkey
-- The share lock orders it with a resume: after a resume has committed, nothing of the tenant is parked.
-- $1 tenant_nos, $2 job_ids
WITH stopped AS MATERIALIZED (
    SELECT tenant_no FROM ondot.tenant WHERE tenant_no = ANY ($1::integer[]) AND state <> 'ACTIVE'
    ORDER BY tenant_no FOR SHARE
), parked AS (
    UPDATE ondot.timer SET partition_no = -1 - partition_no
    WHERE ctid = ANY (ARRAY(
        SELECT t.row_at FROM unnest($2::uuid[]) AS m(job_id) CROSS JOIN LATERAL (
            SELECT ctid AS row_at FROM ondot.timer
            WHERE job_id = m.job_id AND partition_no >= 0 AND tenant_no = ANY (ARRAY(SELECT tenant_no FROM stopped))
            LIMIT 1 FOR UPDATE SKIP LOCKED
        ) t
    ))
    RETURNING 1
)
SELECT count(*) AS count FROM parked;

-- name: park_owed :one
-- locks: tenant rows, shared, then owed rows, SKIP LOCKED        index: tenant_pkey, owed_pkey
-- $1 tenant_nos, $2 ids of owed ranges
WITH stopped AS MATERIALIZED (
    SELECT tenant_no FROM ondot.tenant WHERE tenant_no = ANY ($1::integer[]) AND state <> 'ACTIVE'
    ORDER BY tenant_no FOR SHARE
), parked AS (
    UPDATE ondot.owed SET partition_no = -1 - partition_no
    WHERE ctid = ANY (ARRAY(
        SELECT o.row_at FROM unnest($2::uuid[]) AS m(id) CROSS JOIN LATERAL (
            SELECT ctid AS row_at FROM ondot.owed
            WHERE id = m.id AND partition_no >= 0 AND tenant_no = ANY (ARRAY(SELECT tenant_no FROM stopped))
            LIMIT 1 FOR UPDATE SKIP LOCKED
        ) o
    ))
    RETURNING 1
)
SELECT count(*) AS count FROM parked;

-- name: find_resumed :many
-- index: tenant_chores
-- Active tenants of which something may still be parked.
SELECT tenant_no FROM ondot.tenant WHERE has_parked AND state = 'ACTIVE' ORDER BY tenant_no;

-- name: unpark_timers :one
-- locks: timer rows        index: timer_due
-- Of one parked partition, so that timers of other tenants that are parked are read once. Without a limit: a row that is
-- changed at the same moment is waited for, and unparked then.
-- $1 tenant_no, $2 partition_no (below 0)
WITH unparked AS (
    UPDATE ondot.timer SET partition_no = -1 - partition_no
    WHERE partition_no = $2::smallint AND tenant_no = $1::integer
    RETURNING 1
)
SELECT count(*) AS count FROM unparked;

-- name: unpark_owed :one
-- locks: owed rows        index: owed_turn
-- $1 tenant_no, $2 partition_no (below 0)
WITH unparked AS (
    UPDATE ondot.owed SET partition_no = -1 - partition_no
    WHERE partition_no = $2::smallint AND tenant_no = $1::integer
    RETURNING 1
)
SELECT count(*) AS count FROM unparked;

-- name: call_lines_of_tenant :none
-- locks: lines
-- Admission leaves the lines of a tenant that is not active alone (look_at infinity). It looks at each of them again.
-- All of them are written, so that one that admission holds is waited for.
-- $1 tenant_no
UPDATE ondot.line SET look_at = least(look_at, ondot.clock()) WHERE tenant_no = $1::integer;

-- name: end_parking :none
-- locks: the tenant row        index: tenant_pkey
-- $1 tenant_no
UPDATE ondot.tenant SET has_parked = false WHERE tenant_no = $1::integer AND state = 'ACTIVE';
