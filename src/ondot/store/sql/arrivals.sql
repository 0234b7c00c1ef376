-- name: find_with_arrivals :many
-- index: arrival_pkey
-- Which of these runs have arrivals.
-- $1 run_ids
SELECT r.id FROM unnest($1::uuid[]) AS r(id)
CROSS JOIN LATERAL (SELECT FROM ondot.arrival WHERE run_id = r.id LIMIT 1) a;

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
