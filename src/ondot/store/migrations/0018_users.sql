-- Users (`person`: `user` is a word of SQL) sign in to the pages, with a password or through an OpenID provider. Their sessions, and the failed tries that
-- slow down the next one.
--
-- The release before does not read these tables.

CREATE TABLE ondot.person (
    id              uuid PRIMARY KEY,
    tenant_no       integer NOT NULL,
    email           text NOT NULL,
    name            text NOT NULL,
    role            text NOT NULL CHECK (role IN ('viewer', 'operator', 'editor', 'admin', 'owner')),
    state           text NOT NULL DEFAULT 'ACTIVE' CHECK (state IN ('ACTIVE', 'DISABLED')),
    password        text,
    subject         text,
    invitation      bytea UNIQUE,
    invited_until   timestamptz,
    known_network   text,
    created_at      timestamptz NOT NULL DEFAULT ondot.clock(),
    created_by      text,
    last_sign_in_at timestamptz,
    CONSTRAINT person_email UNIQUE (tenant_no, email),
    CONSTRAINT person_owner CHECK (role <> 'owner' OR tenant_no = 1)
);
COMMENT ON COLUMN ondot.person.email IS 'in lower case; the same address may be a user of several tenants';
COMMENT ON COLUMN ondot.person.password IS 'the argon2id hash with its parameters; NULL: none was set yet';
COMMENT ON COLUMN ondot.person.subject IS 'the OpenID provider''s own id of the person, bound at the first sign-in';
COMMENT ON COLUMN ondot.person.invitation IS 'SHA-256 of the link with which the user sets a password';
COMMENT ON COLUMN ondot.person.known_network IS 'of the last sign-in: failures of others do not slow it down';

CREATE TABLE ondot.session (
    id         uuid PRIMARY KEY,
    tenant_no  integer NOT NULL,
    user_id    uuid NOT NULL REFERENCES ondot.person ON DELETE CASCADE,
    hash       bytea NOT NULL UNIQUE,
    method     text NOT NULL CHECK (method IN ('password', 'oidc')),
    address    text NOT NULL,
    agent      text NOT NULL,
    acts_for   integer,
    created_at timestamptz NOT NULL DEFAULT ondot.clock(),
    seen_at    timestamptz NOT NULL DEFAULT ondot.clock(),
    expires_at timestamptz NOT NULL
);
COMMENT ON COLUMN ondot.session.hash IS 'SHA-256 of the cookie';
COMMENT ON COLUMN ondot.session.acts_for IS 'the tenant for which an owner acts; NULL: its own';
CREATE INDEX session_user_id ON ondot.session (user_id, id);
CREATE INDEX session_seen_at ON ondot.session (seen_at);

CREATE TABLE ondot.sign_in_failure (
    subject   bytea PRIMARY KEY,
    tenant_no integer NOT NULL DEFAULT 0,
    failures  integer NOT NULL DEFAULT 0,
    failed_at timestamptz NOT NULL DEFAULT ondot.clock(),
    free_at   timestamptz NOT NULL DEFAULT ondot.clock()
);
COMMENT ON COLUMN ondot.sign_in_failure.subject IS 'SHA-256 of an account (tenant and e-mail, also unknown ones) or a network';
CREATE INDEX sign_in_failure_failed_at ON ondot.sign_in_failure (failed_at);
