-- Hooks: a URL with a secret token, which turns a plain webhook into an event of this type and source.
-- The token is stored as its SHA-256. After a rotation the token before it works until `hash_until`, the signing secret
-- before it until `sealed_until`. A sealed value opens only with the id of its hook.
CREATE TABLE ondot.hook (
    id            uuid PRIMARY KEY,
    tenant_no     integer NOT NULL,
    name          text NOT NULL,
    type          text NOT NULL,
    source        text NOT NULL,
    signature     text NOT NULL,
    header        text NOT NULL,
    hash          bytea NOT NULL,
    hash_before   bytea,
    hash_until    timestamptz,
    key_no        integer,
    sealed        bytea,
    key_no_before integer,
    sealed_before bytea,
    sealed_until  timestamptz,
    created_at    timestamptz NOT NULL DEFAULT ondot.clock(),
    created_by    text NOT NULL,
    rotated_at    timestamptz,
    last_used_at  timestamptz,
    UNIQUE (tenant_no, name)
);
CREATE UNIQUE INDEX hook_hash ON ondot.hook (hash);
CREATE UNIQUE INDEX hook_hash_before ON ondot.hook (hash_before) WHERE hash_before IS NOT NULL;
