"""Connections to brokers and servers as they are stored (E3): credentials in them are sealed."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from ondot.model.connection import ConnectionSpec, decode_connection, encode_connection
from ondot.model.ids import JobId, TenantNo
from ondot.store.connection import Connection, Record
from ondot.store.queries import load_queries
from ondot.store.secrets import UsedBy

_SQL = load_queries("connections")


@dataclass(frozen=True, slots=True)
class ConnectionRow:
    name: str
    spec: ConnectionSpec
    version: int
    created_at: datetime
    created_by: str
    updated_at: datetime
    updated_by: str
    tested_at: datetime | None
    test_error: str | None
    """What was wrong at the last test; None: nothing, or it was never tested."""


async def find_connections(
    connection: Connection, tenant_no: TenantNo, names: Collection[str]
) -> dict[str, ConnectionRow]:
    """Those of these connections that exist."""
    rows = await connection.fetch(_SQL["find_connections"].text, tenant_no, sorted(names))
    return {row["name"]: _row(row) for row in rows}


async def list_connections(
    connection: Connection, tenant_no: TenantNo, *, after: str = "", limit: int
) -> list[ConnectionRow]:
    """By name."""
    rows = await connection.fetch(_SQL["list_connections"].text, tenant_no, after, limit)
    return [_row(row) for row in rows]


async def list_all_connections(connection: Connection, limit: int) -> list[tuple[TenantNo, ConnectionRow]]:
    """Of all tenants."""
    rows = await connection.fetch(_SQL["list_all_connections"].text, limit)
    return [(TenantNo(row["tenant_no"]), _row(row)) for row in rows]


async def count_connections(connection: Connection, tenant_no: TenantNo) -> int:
    return int(await connection.fetchval(_SQL["count_connections"].text, tenant_no))


async def lock_connection(connection: Connection, tenant_no: TenantNo, name: str) -> ConnectionRow | None:
    row = await connection.fetchrow(_SQL["lock_connection"].text, tenant_no, name)
    return None if row is None else _row(row)


async def write_connection(
    connection: Connection, tenant_no: TenantNo, name: str, spec: ConnectionSpec, *, by: str
) -> ConnectionRow:
    """Create it, or replace its content."""
    row = await connection.fetchrow(_SQL["write_connection"].text, tenant_no, name, encode_connection(spec), by)
    assert row is not None
    return _row(row)


async def delete_connection(connection: Connection, tenant_no: TenantNo, name: str) -> None:
    await connection.execute(_SQL["delete_connection"].text, tenant_no, name)


async def record_test(
    connection: Connection, tenant_no: TenantNo, name: str, version: int, error: str | None
) -> ConnectionRow | None:
    """None if it was changed meanwhile."""
    row = await connection.fetchrow(_SQL["record_test"].text, tenant_no, name, version, error)
    return None if row is None else _row(row)


async def find_jobs_of_connection(
    connection: Connection, tenant_no: TenantNo, name: str, limit: int = 20
) -> tuple[UsedBy, ...]:
    """Some of the jobs that recur or have a key and name it, newest first."""
    rows = await connection.fetch(_SQL["find_jobs_of_connection"].text, tenant_no, name, limit)
    return tuple(UsedBy(row["id"], row["name"]) for row in rows)


async def replace_connection_uses(
    connection: Connection, tenant_no: TenantNo, uses: Sequence[tuple[JobId, Collection[str]]], *, are_new: bool
) -> None:
    """Record which connections these jobs name."""
    if not are_new:
        await connection.execute(_SQL["forget_connection_uses"].text, tenant_no, [job_id for job_id, _ in uses])
    pairs = [(job_id, name) for job_id, names in uses for name in names]
    if pairs:
        ids, names = [job_id for job_id, _ in pairs], [name for _, name in pairs]
        await connection.execute(_SQL["add_connection_uses"].text, tenant_no, ids, names)


def _row(row: Record) -> ConnectionRow:
    return ConnectionRow(
        row["name"],
        decode_connection(row["spec"]),
        row["version"],
        row["created_at"],
        row["created_by"],
        row["updated_at"],
        row["updated_by"],
        row["tested_at"],
        row["test_error"],
    )
