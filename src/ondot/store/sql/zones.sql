-- name: read_zones :one
-- The release of tzdata of stored fires, the one that they are being recomputed with, and how far that is.
SELECT tzdata, tzdata_next, tzdata_through FROM ondot.installation;

-- name: set_zones :none
-- $1 the release of tzdata (NULL: unknown), $2 the next one (NULL: none), $3 the last job looked at for it
UPDATE ondot.installation SET tzdata = $1::text, tzdata_next = $2::text, tzdata_through = $3::uuid;
