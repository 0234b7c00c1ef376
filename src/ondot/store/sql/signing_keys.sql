-- name: list_signing_keys :many
-- index: signing_key_pkey
-- Those in force, the newest first.
-- $1 tenant_no
SELECT version, key_no, sealed, created_at, ends_at FROM ondot.signing_key
WHERE tenant_no = $1::integer AND (ends_at IS NULL OR ends_at > ondot.clock())
ORDER BY version DESC;

-- name: add_signing_key :one
-- index: signing_key_pkey
-- Nothing if there is one of this version already: of two processes that add one at once, the first one's stays.
-- $1 tenant_no, $2 version, $3 key_no, $4 sealed
INSERT INTO ondot.signing_key (tenant_no, version, key_no, sealed) VALUES ($1::integer, $2::integer, $3::integer, $4::bytea)
ON CONFLICT DO NOTHING RETURNING version;

-- name: end_signing_keys :none
-- locks: the rows of the tenant        index: signing_key_pkey
-- Those before a version end after a while; those that have ended are removed.
-- $1 tenant_no, $2 version, $3 seconds
WITH ended AS (
    DELETE FROM ondot.signing_key WHERE tenant_no = $1::integer AND ends_at <= ondot.clock()
)
UPDATE ondot.signing_key
SET ends_at = least(ends_at, ondot.clock() + make_interval(secs => $3::double precision))
WHERE tenant_no = $1 AND version < $2::integer AND (ends_at IS NULL OR ends_at > ondot.clock());
