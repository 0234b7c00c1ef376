"""The rows of deleted tenants: found in the catalog's list of tables, removed page by page."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ondot.model.ids import ExecutionId, TenantNo, first_id_at
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("removal")


@dataclass(frozen=True, slots=True)
class DeletedTenant:
    tenant_no: TenantNo
    created_at: datetime
    deleted_at: datetime


@dataclass(frozen=True, slots=True)
class TenantTable:
    """A table, or the partition of a day, with `tenant_no`."""

    oid: int
    name: str
    pages: int


async def find_deleted_tenants(connection: Connection) -> list[DeletedTenant]:
    """Deleted tenants of which something may be left."""
    rows = await connection.fetch(_SQL["find_deleted_tenants"].text)
    return [DeletedTenant(TenantNo(row["tenant_no"]), row["created_at"], row["deleted_at"]) for row in rows]


async def find_waiting(connection: Connection, tenant_no: TenantNo, limit: int) -> list[ExecutionId]:
    """Executions of a tenant that do not run."""
    rows = await connection.fetch(_SQL["find_waiting_of_tenant"].text, tenant_no, limit)
    return [ExecutionId(row["id"]) for row in rows]


async def cancel_running(connection: Connection, tenant_no: TenantNo, reason: str, limit: int) -> int:
    """Ask running executions of a tenant to end; returns how many were asked for the first time."""
    return int(await connection.fetchval(_SQL["cancel_running_of_tenant"].text, tenant_no, reason, limit))


async def stop_running(connection: Connection, tenant_no: TenantNo, after_s: float, limit: int) -> int:
    """End executions that were asked to end `after_s` ago; the outcomes that their workers report are refused."""
    return int(await connection.fetchval(_SQL["stop_running_of_tenant"].text, tenant_no, after_s, limit))


async def has_executions(connection: Connection, tenant_no: TenantNo) -> bool:
    return bool(await connection.fetchval(_SQL["has_executions"].text, tenant_no))


async def list_tables(connection: Connection) -> list[TenantTable]:
    """Every table with rows of tenants, except `tenant` itself and executions, which have to end first."""
    return [TenantTable(*row.values()) for row in await connection.fetch(_SQL["list_tables_of_tenants"].text)]


async def remove_rows(
    connection: Connection, table: TenantTable, tenants: Sequence[TenantNo], first_page: int, pages: int
) -> int:
    return int(await connection.fetchval(_SQL["remove_rows"].text, table.oid, tenants, first_page, pages))


async def find_object_keys(
    connection: Connection, table: TenantTable, tenants: Sequence[TenantNo], first_page: int, pages: int
) -> list[str]:
    """The keys of the objects in storage that these pages refer to."""
    rows = await connection.fetch(_SQL["find_objects_of_tenants"].text, table.oid, tenants, first_page, pages)
    return [row["key"] for row in rows]


async def record_removal(connection: Connection, tenants: Sequence[TenantNo], removed: int, share: float) -> None:
    await connection.execute(_SQL["record_removal"].text, tenants, removed, share)


async def end_removal(connection: Connection, tenants: Sequence[TenantNo]) -> None:
    await connection.execute(_SQL["end_removal"].text, tenants)


async def forget_tenants(connection: Connection, days: int) -> int:
    """Remove the names of tenants whose rows went `days` ago; returns how many."""
    return int(await connection.fetchval(_SQL["forget_tenants"].text, days))


async def count_rows(connection: Connection, tenant_no: TenantNo) -> dict[str, int]:
    """What a deletion removes, by kind, as far as an index finds it."""
    return {row["kind"]: row["count"] for row in await connection.fetch(_SQL["count_rows"].text, tenant_no)}


async def limit_count_time(connection: Connection) -> None:
    await connection.execute(_SQL["limit_count_time"].text)


async def count_by_day(connection: Connection, kind: str, tenant_no: TenantNo, since_at: datetime) -> int:
    """`once_jobs` or `history`: reads the days since the tenant exists, for as long as the transaction allows."""
    return int(await connection.fetchval(_SQL[f"count_{kind}"].text, tenant_no, first_id_at(since_at)))
