-- name: add_session :one
-- $1 id, $2 tenant_no, $3 user_id, $4 hash, $5 method, $6 address, $7 agent, $8 seconds that it lasts
INSERT INTO ondot.session (id, tenant_no, user_id, hash, method, address, agent, expires_at)
VALUES ($1::uuid, $2::integer, $3::uuid, $4::bytea, $5::text, $6::text, $7::text,
        ondot.clock() + make_interval(secs => $8::double precision))
RETURNING expires_at;

-- name: find_sessions :many
-- index: session_hash_key, person_pkey
-- $1 hashes, $2 seconds without a request after which a session ends, $3 seconds after which a request is noted again
SELECT s.hash, s.id, s.acts_for, u.id AS user_id, u.tenant_no, u.email, u.name, u.role,
       s.seen_at < ondot.clock() - make_interval(secs => $3::double precision) AS is_unseen
FROM ondot.session s JOIN ondot.person u ON u.id = s.user_id
WHERE s.hash = ANY($1::bytea[]) AND u.state = 'ACTIVE' AND s.expires_at > ondot.clock()
  AND s.seen_at > ondot.clock() - make_interval(secs => $2::double precision);

-- name: note_seen :none
-- locks: session rows, SKIP LOCKED: two processes may note the same        index: session_hash_key
-- $1 hashes
UPDATE ondot.session SET seen_at = ondot.clock()
WHERE id = ANY(ARRAY(SELECT id FROM ondot.session WHERE hash = ANY($1::bytea[]) FOR UPDATE SKIP LOCKED));

-- name: list_sessions :many
-- index: session_user_id
-- $1 tenant_no, $2 user_id, $3 seconds without a request after which a session ends
SELECT id, method, address, agent, created_at, seen_at,
       least(expires_at, seen_at + make_interval(secs => $3::double precision)) AS expires_at
FROM ondot.session
WHERE tenant_no = $1::integer AND user_id = $2::uuid AND expires_at > ondot.clock()
  AND seen_at > ondot.clock() - make_interval(secs => $3::double precision)
ORDER BY id DESC LIMIT 100;

-- name: end_session :one
-- index: session_pkey
-- $1 tenant_no, $2 user_id, $3 id
DELETE FROM ondot.session WHERE tenant_no = $1::integer AND user_id = $2::uuid AND id = $3::uuid RETURNING id;

-- name: end_sessions :many
-- All of a user, except one.
-- index: session_user_id
-- $1 tenant_no, $2 user_id, $3 the session that stays
DELETE FROM ondot.session WHERE tenant_no = $1::integer AND user_id = $2::uuid AND id IS DISTINCT FROM $3::uuid RETURNING id;

-- name: end_oldest_sessions :none
-- index: session_user_id
-- $1 tenant_no, $2 user_id, $3 how many stay
DELETE FROM ondot.session WHERE tenant_no = $1::integer AND id = ANY(ARRAY(
    SELECT id FROM ondot.session WHERE tenant_no = $1::integer AND user_id = $2::uuid ORDER BY id DESC OFFSET $3::integer));

-- name: act_for :one
-- index: session_pkey
-- $1 tenant_no, $2 user_id, $3 id, $4 the tenant to act for, or null
UPDATE ondot.session SET acts_for = $4::integer
WHERE tenant_no = $1::integer AND user_id = $2::uuid AND id = $3::uuid RETURNING id;

-- name: forget_sessions :one
-- locks: session rows, SKIP LOCKED        index: session_seen_at
-- $1 seconds without a request after which a session ends, $2 limit
WITH gone AS (
    DELETE FROM ondot.session WHERE id = ANY(ARRAY(
        SELECT id FROM ondot.session
        WHERE seen_at < ondot.clock() - make_interval(secs => $1::double precision)
        ORDER BY seen_at LIMIT $2::integer FOR UPDATE SKIP LOCKED))
    RETURNING id)
SELECT count(*) FROM gone;

-- name: make_failures :none
-- $1 subjects
INSERT INTO ondot.sign_in_failure (subject) SELECT unnest($1::bytea[]) ORDER BY 1 ON CONFLICT (subject) DO NOTHING;

-- name: lock_failures :many
-- locks: sign_in_failure rows by subject        index: sign_in_failure_pkey
-- $1 subjects
SELECT subject, failures, ondot.clock() - failed_at AS since_failure,
       extract(epoch FROM free_at - ondot.clock())::double precision AS wait_s
FROM ondot.sign_in_failure WHERE subject = ANY($1::bytea[]) ORDER BY subject FOR UPDATE;

-- name: set_failures :none
-- index: sign_in_failure_pkey
-- $1 subjects, $2 failures, $3 seconds to wait
UPDATE ondot.sign_in_failure f
SET failures = n.failures, failed_at = ondot.clock(), free_at = ondot.clock() + make_interval(secs => n.wait_s)
FROM unnest($1::bytea[], $2::integer[], $3::double precision[]) n (subject, failures, wait_s)
WHERE f.subject = n.subject;

-- name: forgive_account :none
-- index: sign_in_failure_pkey
-- $1 subject
DELETE FROM ondot.sign_in_failure WHERE subject = $1::bytea;

-- name: forgive_network :none
-- One failure less, not all: guessing from it stays slow.
-- index: sign_in_failure_pkey
-- $1 subject
UPDATE ondot.sign_in_failure SET failures = greatest(failures - 1, 0), free_at = ondot.clock() WHERE subject = $1::bytea;

-- name: forget_failures :one
-- locks: sign_in_failure rows, SKIP LOCKED        index: sign_in_failure_failed_at
-- $1 seconds without a failure, $2 limit
WITH gone AS (
    DELETE FROM ondot.sign_in_failure WHERE subject = ANY(ARRAY(
        SELECT subject FROM ondot.sign_in_failure
        WHERE failed_at < ondot.clock() - make_interval(secs => $1::double precision)
        ORDER BY failed_at LIMIT $2::integer FOR UPDATE SKIP LOCKED))
    RETURNING subject)
SELECT count(*) FROM gone;
