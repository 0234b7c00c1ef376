-- name: jobs_with_series :many
-- index: job_version_metrics, job_pkey
-- The oldest jobs that ask for series of their own in the metrics, of all tenants.
-- $1 limit
SELECT v.job_id
FROM ondot.job_version v
CROSS JOIN LATERAL (SELECT FROM ondot.job j WHERE j.id = v.job_id AND j.state <> 'DELETED' LIMIT 1) j
WHERE v.superseded_at IS NULL AND v.spec ->> 'metrics' = 'true'
ORDER BY v.job_id LIMIT $1::integer;
