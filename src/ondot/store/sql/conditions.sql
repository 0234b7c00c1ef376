-- name: put_condition :none
-- locks: the condition's row        index: condition_pkey
-- A condition that holds already keeps its start. One that had ended by itself starts again.
-- $1 tenant_no, $2 kind, $3 subject, $4 job_id, $5 since (NULL: now), $6 holds_s (NULL: until it is cleared), $7 message,
-- $8 details
INSERT INTO ondot.condition AS c (kind, tenant_no, subject, job_id, since, seen_at, until_at, message, details)
VALUES ($2::text, $1::integer, $3::text, $4::uuid, coalesce($5::timestamptz, ondot.clock()), ondot.clock(),
        ondot.clock() + make_interval(secs => $6::double precision), $7::text, $8::jsonb)
ON CONFLICT (kind, tenant_no, subject) DO UPDATE
SET since = CASE WHEN c.until_at <= excluded.seen_at THEN excluded.since ELSE least(c.since, excluded.since) END,
    seen_at = excluded.seen_at, until_at = excluded.until_at, job_id = excluded.job_id, message = excluded.message,
    details = excluded.details;

-- name: remove_condition :none
-- locks: the condition's row        index: condition_pkey
-- $1 tenant_no, $2 kind, $3 subject
DELETE FROM ondot.condition WHERE kind = $2::text AND tenant_no = $1::integer AND subject = $3::text;

-- name: forget_conditions :none
-- locks: rows that ended by themselves        index: condition_until
DELETE FROM ondot.condition WHERE until_at < ondot.clock() - interval '1 minute';

-- name: list_messages :many
-- index: condition_pkey
-- What holds now, of some kinds.
-- $1 tenant_no, $2 kinds
SELECT message FROM ondot.condition
WHERE kind = ANY ($2::text[]) AND tenant_no = $1::integer AND (until_at IS NULL OR until_at > ondot.clock())
ORDER BY since, kind, subject LIMIT 20;
