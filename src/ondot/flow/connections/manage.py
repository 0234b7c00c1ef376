"""Creates, changes, deletes and tests connections (E3). Each change is in the audit log, without credentials.

A connection that jobs name is deleted only by force: their next attempts fail without retries, and say so. Jobs that
run once and have no key are not recorded as users.
"""

from collections.abc import Awaitable, Callable
from difflib import get_close_matches
from typing import Final

from ondot.flow.connections.credentials import (
    check_references,
    keep_hidden,
    open_credentials,
    seal,
)
from ondot.flow.vault import Vault
from ondot.model.connection import ConnectionSpec, NoConnection, find_references
from ondot.model.errors import Conflict, NotFound
from ondot.model.ids import TenantNo
from ondot.store.audit import By, record_change
from ondot.store.connection import Connection
from ondot.store.connections import (
    ConnectionRow,
    count_connections,
    delete_connection,
    find_connections,
    find_jobs_of_connection,
    list_connections,
    lock_connection,
    record_test,
    write_connection,
)
from ondot.store.database import Database
from ondot.store.secrets import UsedBy

MOST: Final = 1_000
"""Connections of a tenant."""
NAMES_SEARCHED: Final = 1_000

CheckConnection = Callable[[TenantNo, ConnectionSpec], Awaitable[str | None]]
"""Connects, and sends nothing. What is wrong, as a sentence; None: nothing."""


async def put_connection(
    vault: Vault, tenant_no: TenantNo, name: str, wanted: ConnectionSpec, *, by: By
) -> tuple[ConnectionRow, bool]:
    """Create a connection, or replace its content; and whether it is new. The caller has checked the right to refer to
    secrets."""
    await check_references(vault, tenant_no, wanted)
    sealed = await seal(vault, tenant_no, wanted)
    async with vault.database.transaction() as connection:
        before = await lock_connection(connection, tenant_no, name)
        spec = keep_hidden(sealed, None if before is None else before.spec)
        if before is not None and spec == before.spec:
            return before, False
        if before is None and await count_connections(connection, tenant_no) >= MOST:
            raise Conflict(f"There are {MOST:,} connections, which is the limit: delete those that no job names.")
        row = await write_connection(connection, tenant_no, name, spec, by=by.actor)
        detail = {"name": name, "kind": spec.kind, "address": spec.address, "version": row.version}
        detail |= {"secrets": sorted(find_references(spec)) or None}
        await record_change(connection, tenant_no, by, "connection.set", None, detail)
    return row, before is None


async def remove_connection(
    database: Database, tenant_no: TenantNo, name: str, *, is_forced: bool, by: By
) -> tuple[ConnectionRow, tuple[UsedBy, ...]]:
    """Delete a connection; returns it with jobs that name it. Refused while there are some, unless it is forced."""
    async with database.transaction() as connection:
        row = await lock_connection(connection, tenant_no, name)
        if row is None:
            raise await unknown_connection(connection, tenant_no, name)
        users = await find_jobs_of_connection(connection, tenant_no, name)
        if users and not is_forced:
            named = ", ".join(user.name for user in users[:5])
            raise Conflict(
                f"Jobs name the connection {name!r}: {named}. Change or delete them first, or force it: `--force`,"
                " `force=true`.",
                used_by=[str(user.id) for user in users],
            )
        await delete_connection(connection, tenant_no, name)
        await record_change(connection, tenant_no, by, "connection.delete", None, {"name": name})
    return row, users


async def get_connection(
    database: Database, tenant_no: TenantNo, name: str
) -> tuple[ConnectionRow, tuple[UsedBy, ...]]:
    async with database.connection() as connection:
        found = await find_connections(connection, tenant_no, [name])
        if name not in found:
            raise await unknown_connection(connection, tenant_no, name)
        return found[name], await find_jobs_of_connection(connection, tenant_no, name)


async def run_test(vault: Vault, tenant_no: TenantNo, name: str, check: CheckConnection, *, by: By) -> ConnectionRow:
    """Connect from this process, and record what came of it."""
    row, _ = await get_connection(vault.database, tenant_no, name)
    error = await find_error(vault, tenant_no, row, check)
    async with vault.database.transaction() as connection:
        tested = await record_test(connection, tenant_no, name, row.version, error)
        if tested is None:
            raise Conflict(f"Another request has changed the connection {name!r} meanwhile: test it again.")
        await record_change(connection, tenant_no, by, "connection.test", None, {"name": name, "works": error is None})
    return tested


async def find_error(vault: Vault, tenant_no: TenantNo, row: ConnectionRow, check: CheckConnection) -> str | None:
    try:
        opened = await open_credentials(vault, tenant_no, row.name, row.spec)
    except NoConnection as missing:
        return missing.message
    return await check(tenant_no, opened.spec)


async def unknown_connection(connection: Connection, tenant_no: TenantNo, name: str) -> NotFound:
    return NotFound(await describe_unknown(connection, tenant_no, name))


async def describe_unknown(connection: Connection, tenant_no: TenantNo, name: str) -> str:
    known = [row.name for row in await list_connections(connection, tenant_no, limit=NAMES_SEARCHED)]
    close = get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"There is no connection {name!r}.{hint} Create it with `ondot connection add {name} --kind …`."
