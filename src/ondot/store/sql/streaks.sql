-- name: find_streaks_over :many
-- index: streak_over
-- Jobs that reached their number of failures in a row.
-- $1 limit
SELECT job_id, tenant_no, failures FROM ondot.streak WHERE failures >= pause_after ORDER BY job_id LIMIT $1::integer;

-- name: forget_streak :none
-- locks: the streak's row, after all others        index: streak_pkey
-- $1 tenant_no, $2 job_id
DELETE FROM ondot.streak WHERE job_id = $2::uuid AND tenant_no = $1::integer;
