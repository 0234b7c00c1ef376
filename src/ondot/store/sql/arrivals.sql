-- name: take_arrivals :many
-- locks: arrivals of a run that is locked already        index: arrival_pkey
-- $1 run_id, $2 limit
DELETE FROM ondot.arrival WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM ondot.arrival WHERE run_id = $1::uuid LIMIT $2::integer
))
RETURNING step_no, item_no, execution_id, state, date_part('epoch', ondot.clock() - at) AS waited_s;

-- name: has_arrivals :one
-- index: arrival_pkey
-- $1 run_id
SELECT EXISTS (SELECT FROM ondot.arrival WHERE run_id = $1::uuid) AS found;

-- name: find_old_arrivals :many
-- index: arrival_at
-- Runs with ends that they have not seen for a while: the process that wrote them died, or another had the run locked.
-- $1 seconds, $2 how many arrivals are looked at
SELECT DISTINCT run_id FROM (
    SELECT run_id FROM ondot.arrival
    WHERE at < ondot.clock() - make_interval(secs => $1::double precision) ORDER BY at LIMIT $2::integer
) a;

-- name: count_arrivals :one
-- index: arrival_at
-- Counted up to a ceiling, and how long the oldest has waited.
-- $1 ceiling
SELECT (SELECT count(*) FROM (SELECT FROM ondot.arrival LIMIT $1::integer) a) AS count,
       coalesce(date_part('epoch', ondot.clock() - (SELECT at FROM ondot.arrival ORDER BY at LIMIT 1)), 0) AS oldest_s;
