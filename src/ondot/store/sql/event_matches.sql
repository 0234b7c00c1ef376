-- name: find_matches :many
-- index: event_match_pkey
-- Of many events, the first jobs that each matched. The bounds leave the partitions of a few days.
-- $1 tenant_no, $2 event ids, $3 from id, $4 through id, $5 how many of each
SELECT m.event_id, m.job_id, m.execution_id, m.outcome, j.name AS job_name
FROM unnest($2::uuid[]) AS n(id)
CROSS JOIN LATERAL (
    SELECT event_id, job_id, execution_id, outcome FROM ondot.event_match
    WHERE event_id = n.id AND event_id BETWEEN $3::uuid AND $4::uuid AND tenant_no = $1::integer
    ORDER BY job_id LIMIT $5::integer
) m
LEFT JOIN ondot.job j ON j.id = m.job_id AND j.tenant_no = $1
ORDER BY m.event_id, m.job_id;

-- name: find_matches_of_job :many
-- index: event_match_pkey
-- $1 tenant_no, $2 event ids, $3 from id, $4 through id, $5 job_id
SELECT event_id, execution_id, outcome FROM ondot.event_match
WHERE event_id = ANY ($2::uuid[]) AND event_id BETWEEN $3::uuid AND $4::uuid AND job_id = $5::uuid
  AND tenant_no = $1::integer;
