-- name: add_user :none
-- $1 id, $2 tenant_no, $3 email, $4 name, $5 role, $6 password, $7 invitation, $8 seconds that the invitation lasts, $9 created_by
INSERT INTO ondot.person (id, tenant_no, email, name, role, password, invitation, invited_until, created_by)
VALUES ($1::uuid, $2::integer, $3::text, $4::text, $5::text, $6::text, $7::bytea,
        ondot.clock() + make_interval(secs => $8::double precision), $9::text);

-- name: list_users :many
-- index: person_pkey
-- $1 tenant_no, $2 after id, $3 limit
SELECT id, tenant_no, email, name, role, state, password IS NOT NULL AS has_password, subject, invited_until,
       known_network, created_at, last_sign_in_at
FROM ondot.person WHERE tenant_no = $1::integer AND id > $2::uuid ORDER BY id LIMIT $3::integer;

-- name: get_user :one
-- index: person_pkey
-- $1 tenant_no, $2 id
SELECT id, tenant_no, email, name, role, state, password IS NOT NULL AS has_password, subject, invited_until,
       known_network, created_at, last_sign_in_at
FROM ondot.person WHERE tenant_no = $1::integer AND id = $2::uuid;

-- name: lock_user :one
-- locks: person row        index: person_pkey
-- $1 tenant_no, $2 id
SELECT id, tenant_no, email, name, role, state, password IS NOT NULL AS has_password, subject, invited_until,
       known_network, created_at, last_sign_in_at
FROM ondot.person WHERE tenant_no = $1::integer AND id = $2::uuid FOR UPDATE;

-- name: lock_owners :many
-- locks: person rows by id        index: person_email
-- Two that remove each other at the same time: the second waits, and finds itself the last.
SELECT id FROM ondot.person WHERE tenant_no = 1 AND role = 'owner' AND state = 'ACTIVE' ORDER BY id FOR UPDATE;

-- name: find_user_by_email :one
-- index: person_email
-- $1 tenant_no, $2 email
SELECT id, tenant_no, email, name, role, state, password IS NOT NULL AS has_password, subject, invited_until,
       known_network, created_at, last_sign_in_at, password
FROM ondot.person WHERE tenant_no = $1::integer AND email = $2::text;

-- name: find_user_by_invitation :one
-- index: person_invitation_key
-- $1 invitation
SELECT id, tenant_no, email, name, role, state, password IS NOT NULL AS has_password, subject, invited_until,
       known_network, created_at, last_sign_in_at
FROM ondot.person WHERE invitation = $1::bytea AND invited_until > ondot.clock() AND state = 'ACTIVE';

-- name: change_user :one
-- $1 tenant_no, $2 id, $3 name, $4 role, $5 state
UPDATE ondot.person SET name = $3::text, role = $4::text, state = $5::text
WHERE tenant_no = $1::integer AND id = $2::uuid
RETURNING id, tenant_no, email, name, role, state, password IS NOT NULL AS has_password, subject, invited_until,
          known_network, created_at, last_sign_in_at;

-- name: set_password :one
-- The invitation is used up.
-- $1 tenant_no, $2 id, $3 password
UPDATE ondot.person SET password = $3::text, invitation = NULL, invited_until = NULL
WHERE tenant_no = $1::integer AND id = $2::uuid RETURNING id;

-- name: accept_invitation :one
-- Of two at the same time, the second finds no invitation.
-- $1 tenant_no, $2 id, $3 password, $4 invitation
UPDATE ondot.person SET password = $3::text, invitation = NULL, invited_until = NULL
WHERE tenant_no = $1::integer AND id = $2::uuid AND invitation = $4::bytea AND invited_until > ondot.clock()
  AND state = 'ACTIVE'
RETURNING id;

-- name: invite_user :one
-- The password and the binding to the provider end: the invitation is the only way in.
-- $1 tenant_no, $2 id, $3 invitation, $4 seconds that it lasts
UPDATE ondot.person SET password = NULL, subject = NULL, known_network = NULL, invitation = $3::bytea,
                      invited_until = ondot.clock() + make_interval(secs => $4::double precision)
WHERE tenant_no = $1::integer AND id = $2::uuid RETURNING invited_until;

-- name: bind_subject :one
-- $1 tenant_no, $2 id, $3 subject
UPDATE ondot.person SET subject = $3::text
WHERE tenant_no = $1::integer AND id = $2::uuid AND (subject IS NULL OR subject = $3::text) RETURNING id;

-- name: note_sign_in :none
-- $1 tenant_no, $2 id, $3 network
UPDATE ondot.person SET last_sign_in_at = ondot.clock(), known_network = $3::text
WHERE tenant_no = $1::integer AND id = $2::uuid;

-- name: delete_user :one
-- $1 tenant_no, $2 id
DELETE FROM ondot.person WHERE tenant_no = $1::integer AND id = $2::uuid RETURNING id;

-- name: has_users :one
-- index: person_pkey
SELECT EXISTS (SELECT FROM ondot.person) AS has_users,
       (SELECT count(*) FROM (SELECT FROM ondot.tenant WHERE tenant_no > 0 AND state <> 'DELETED' LIMIT 2) t) > 1 AS has_tenants;
