-- name: read_zones :one
-- The release of tzdata that stored fires were computed with, and the last job looked at since there is a newer one.
SELECT tzdata, tzdata_through FROM ondot.installation;

-- name: set_zones :none
-- $1 the release of tzdata (NULL: unknown), $2 the last job looked at (NULL: all were)
UPDATE ondot.installation SET tzdata = $1::text, tzdata_through = $2::uuid;
