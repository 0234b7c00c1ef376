-- name: day_tables :many
SELECT parent, first_day, next_day, (ondot.clock() AT TIME ZONE 'UTC')::date AS today
FROM ondot.day_table ORDER BY parent;

-- name: kept_days :one
SELECT ondot.clock() AS now, min(first_day) AS first_day FROM ondot.day_table;

-- name: holders :many
-- locks: none
-- Other transactions that have a table locked now, in any mode.
-- $1 parent
SELECT DISTINCT virtualtransaction AS holder FROM pg_locks
WHERE locktype = 'relation' AND granted AND pid <> pg_backend_pid()
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND relation IN (format('ondot.%I', $1::text)::regclass, format('ondot.%I', $1 || '_ahead')::regclass);

-- name: give_way :one
-- For the statements that follow in the transaction: others wait behind them for as long.
-- $1 milliseconds at most
SELECT set_config('lock_timeout', $1::integer::text, true) AS lock_timeout;

-- name: add_days :one
-- locks: the day_table row, then the whole parent for a moment
-- $1 parent, $2 through which day
SELECT ondot.add_days($1::text, $2::date) AS days;

-- name: remove_days :one
-- locks: the day_table row, then the whole parent for a moment
-- $1 parent, $2 after which day, $3 how many rows of a day are few
SELECT ondot.remove_days($1::text, $2::date, $3::integer) AS days;
