-- The rows of deleted tenants, removed in the background. The first tenant cannot be deleted, so every statement may use the
-- indexes that leave it out.

-- name: find_deleted_tenants :many
-- index: tenant_chores
SELECT tenant_no, created_at, deleted_at FROM ondot.tenant WHERE state = 'DELETED' AND purged_at IS NULL ORDER BY tenant_no;

-- name: find_waiting_of_tenant :many
-- index: execution_tenant
-- $1 tenant_no, $2 limit
SELECT id FROM ondot.execution WHERE tenant_no = $1::integer AND tenant_no > 1 AND state <> 'RUNNING' LIMIT $2::integer;

-- name: cancel_running_of_tenant :one
-- locks: executions        index: execution_tenant
-- Asks running executions to end: their workers look for such requests each second.
-- $1 tenant_no, $2 reason, $3 limit
WITH asked AS (
    UPDATE ondot.execution SET cancel_at = ondot.clock(), cancel_reason = $2::text
    WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM ondot.execution
        WHERE tenant_no = $1::integer AND tenant_no > 1 AND state = 'RUNNING' AND cancel_at IS NULL
        LIMIT $3::integer FOR UPDATE SKIP LOCKED
    ))
    RETURNING 1
)
SELECT count(*) AS count FROM asked;

-- name: stop_running_of_tenant :one
-- transition: stop, cancel        locks: executions, then slots, then gates by the trigger on gated        index: execution_tenant, slot_execution, ready_pkey, waiting_execution
-- Ends executions that were asked to end some time ago, without their worker: the row that its outcome must match is gone,
-- so the outcome is refused. And those that are in no queue: runs that wait for a person, and executions of a transaction that
-- committed late, whose place in the queue the walk has removed.
-- $1 tenant_no, $2 asked this many seconds ago, $3 limit
WITH stopped AS (
    DELETE FROM ondot.execution
    WHERE ctid = ANY (ARRAY(
        SELECT e.ctid FROM ondot.execution e
        WHERE e.tenant_no = $1::integer AND e.tenant_no > 1 AND (e.state = 'BLOCKED' OR e.state = 'RUNNING'
          AND e.cancel_at <= ondot.clock() - make_interval(secs => $2::double precision)
          OR e.state IN ('PENDING', 'RETRYING')
          AND NOT EXISTS (SELECT FROM ondot.ready r WHERE r.pool_no = e.pool_no AND r.class = e.class
                          AND r.tenant_no = e.tenant_no AND r.ready_at = e.ready_at AND r.execution_id = e.id)
          AND NOT EXISTS (SELECT FROM ondot.waiting w WHERE w.execution_id = e.id))
        LIMIT $3::integer FOR UPDATE SKIP LOCKED
    ))
    RETURNING *
), ended AS (
    SELECT s.*, 0 AS failed, 0 AS lost, 'CANCELLED' AS new_state, s.cancel_reason AS reason, NULL::text AS result,
           NULL::text AS error, NULL::jsonb AS labels
    FROM stopped s
),
{{end}},
freed AS (
    DELETE FROM ondot.slot WHERE execution_id = ANY (ARRAY(SELECT id FROM ended WHERE gated))
), passed AS (
    DELETE FROM ondot.gated WHERE execution_id = ANY (ARRAY(SELECT id FROM ended WHERE gated))
)
SELECT count(*) AS count FROM ended;

-- name: has_executions :one
-- index: execution_tenant
-- $1 tenant_no
SELECT EXISTS (SELECT FROM ondot.execution WHERE tenant_no = $1::integer AND tenant_no > 1) AS found;

-- name: list_tables_of_tenants :many
-- Every table with a row for a tenant, as the catalog lists them: a new one cannot be forgotten. Day partitions are separate
-- tables. Executions are left out: they have to end first.
SELECT c.oid, c.relname AS name, pg_relation_size(c.oid) / current_setting('block_size')::bigint AS pages
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_no' AND NOT a.attisdropped
WHERE c.relnamespace = 'ondot'::regnamespace AND c.relkind = 'r' AND c.relname NOT IN ('tenant', 'execution')
ORDER BY c.relname;

-- name: remove_rows :one
-- locks: rows of the tenants in these pages
-- $1 table, $2 tenant_nos, $3 first page, $4 pages
SELECT ondot.remove_rows_of_tenants($1::oid, $2::integer[], $3::bigint, $4::bigint) AS removed;

-- name: find_objects_of_tenants :many
-- Objects in storage whose rows are in these pages of a table.
-- $1 table, $2 tenant_nos, $3 first page, $4 pages
SELECT key FROM ondot.object_keys_of_tenants($1::oid, $2::integer[], $3::bigint, $4::bigint) AS key;

-- name: record_removal :none
-- locks: tenant rows        index: tenant_pkey
-- $1 tenant_nos, $2 rows removed, $3 share of the tables that was looked at
UPDATE ondot.tenant SET removed = removed + $2::bigint, removed_share = $3::real
WHERE tenant_no = ANY ($1::integer[]);

-- name: end_removal :none
-- locks: tenant rows        index: tenant_pkey
-- $1 tenant_nos
UPDATE ondot.tenant SET purged_at = ondot.clock(), removed_share = 1
WHERE tenant_no = ANY ($1::integer[]) AND state = 'DELETED' AND purged_at IS NULL;

-- name: forget_tenants :one
-- locks: tenant rows
-- What is left of tenants whose rows went long ago. Their numbers come from a sequence and are not used again.
-- $1 days
WITH gone AS (
    DELETE FROM ondot.tenant
    WHERE state = 'DELETED' AND purged_at < ondot.clock() - make_interval(days => $1::integer)
    RETURNING 1
)
SELECT count(*) AS count FROM gone;

-- name: count_rows :many
-- index: job_name, execution_tenant, dead_letter_open
-- What a deletion removes, of the kinds that an index finds.
-- $1 tenant_no
SELECT 'jobs' AS kind, count(*) AS count FROM ondot.job WHERE tenant_no = $1::integer AND state <> 'DELETED'
UNION ALL
SELECT 'executions', count(*) FROM ondot.execution WHERE tenant_no = $1 AND tenant_no > 1
UNION ALL
SELECT 'dead_letters', count(*) FROM ondot.dead_letter WHERE tenant_no = $1 AND resolved_at IS NULL
UNION ALL
SELECT 'keys', count(*) FROM ondot.key WHERE tenant_no = $1 AND revoked_at IS NULL;

-- name: limit_count_time :none
-- For this transaction: the counts below read whole days.
SET LOCAL statement_timeout = '2s';

-- name: count_once_jobs :one
-- $1 tenant_no, $2 no row of the tenant has a smaller id
SELECT count(*) AS count FROM ondot.job_once WHERE tenant_no = $1::integer AND id >= $2::uuid;

-- name: count_history :one
-- $1 tenant_no, $2 no row of the tenant has a smaller id
SELECT count(*) AS count FROM ondot.history WHERE tenant_no = $1::integer AND id >= $2::uuid;
