-- name: day_tables :many
SELECT parent, first_day, next_day, (ondot.clock() AT TIME ZONE 'UTC')::date AS today
FROM ondot.day_table ORDER BY parent;

-- name: add_day :one
-- locks: the day_table row, then the whole parent for a moment
-- $1 parent
SELECT ondot.add_day($1::text) AS day;
