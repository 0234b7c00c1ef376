"""Row-level security for the reads of the API (P12, T1): an option, off the hot path. `row_security.sql` says how.

Creates, changes, leases and completions never use it. Off, it costs nothing: `Database.reading` is `connection`. On, a
read is a transaction that starts with the role and the tenant, in one round trip, and ends with another. Both hold for
the transaction only, so it works behind PgBouncer in transaction mode.
"""

from importlib.resources import files
from typing import Final

import asyncpg

from ondot.model.errors import Misconfigured
from ondot.model.ids import TenantNo
from ondot.store.connection import Connection

READER: Final = "ondot_reader"

_REMOVE: Final = """
DO $$
DECLARE
    at regclass;
BEGIN
    FOR at IN SELECT polrelid::regclass FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid
              WHERE polname = 'own_tenant' AND relnamespace = 'ondot'::regnamespace LOOP
        EXECUTE format('ALTER TABLE %s DISABLE ROW LEVEL SECURITY', at);
        EXECUTE format('DROP POLICY own_tenant ON %s', at);
        EXECUTE format('DROP POLICY everyone ON %s', at);
    END LOOP;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'ondot_reader') THEN
        REVOKE ALL ON ALL TABLES IN SCHEMA ondot FROM ondot_reader;
        REVOKE USAGE ON SCHEMA ondot FROM ondot_reader;
    END IF;
END $$;
"""

_IS_ON: Final = """
SELECT EXISTS (SELECT FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid
               WHERE polname = 'own_tenant' AND relname = 'job' AND relnamespace = to_regnamespace('ondot'))
"""

_MAY_READ: Final = "SELECT pg_has_role(current_user, 'ondot_reader', 'MEMBER')"


def start_reading(tenant_no: TenantNo) -> str:
    """The statements that start a read of one tenant's rows."""
    return f"BEGIN; SET LOCAL ROLE {READER}; SET LOCAL ondot.tenant_no = '{int(tenant_no)}';"


async def is_row_security_on(connection: Connection) -> bool:
    return bool(await connection.fetchval(_IS_ON))


async def set_row_security(connection: Connection, *, on: bool) -> None:
    """Create the role and the policies that are missing, or remove the policies; in the caller's transaction."""
    sql = files("ondot.store").joinpath("row_security.sql").read_text() if on else _REMOVE
    try:
        await connection.execute(sql)
    except asyncpg.InsufficientPrivilegeError as error:
        raise Misconfigured(
            f"Row-level security was not set up: {error}. As a superuser, run `CREATE ROLE {READER} NOLOGIN; GRANT"
            f" {READER} TO` the user of ONDOT_DATABASE_URL, and try again."
        ) from error


async def check_row_security(connection: Connection) -> None:
    """Refuse to start with ONDOT_ROW_SECURITY where reads could not use it."""
    if not await is_row_security_on(connection):
        raise Misconfigured(
            "ONDOT_ROW_SECURITY is on, but the database has no policies: run `ondot migrate up --row-security`."
        )
    if not await connection.fetchval(_MAY_READ):
        user = await connection.fetchval("SELECT current_user")
        raise Misconfigured(f"ONDOT_ROW_SECURITY is on: run `GRANT {READER} TO {user}` in PostgreSQL as its owner.")
