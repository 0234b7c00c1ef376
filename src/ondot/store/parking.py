"""Parks timers and owed ranges of tenants that are not active, and brings them back when their tenant is resumed (T2).

A parked row has `-1 - partition_no`: no node reads it, however many there are and however long the suspension takes. A
plan parks what it meets, so that a suspension itself changes one row.
"""

from collections.abc import Collection, Sequence
from typing import Literal
from uuid import UUID

from ondot.model.ids import JobId, TenantNo
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("parking")

Parked = Literal["timers", "owed"]


async def park_timers(connection: Connection, tenants: Collection[TenantNo], ids: Sequence[JobId]) -> int:
    """Park the timers of these jobs whose tenant is not active; returns how many."""
    return int(await connection.fetchval(_SQL["park_timers"].text, sorted(tenants), ids))


async def park_owed(connection: Connection, tenants: Collection[TenantNo], ids: Sequence[UUID]) -> int:
    return int(await connection.fetchval(_SQL["park_owed"].text, sorted(tenants), ids))


async def find_resumed(connection: Connection) -> list[TenantNo]:
    """Active tenants of which something may still be parked."""
    return [TenantNo(row["tenant_no"]) for row in await connection.fetch(_SQL["find_resumed"].text)]


async def unpark(connection: Connection, tenant_no: TenantNo, kind: Parked, partition_no: int) -> int:
    """Bring back the rows of one partition; returns how many."""
    return int(await connection.fetchval(_SQL[f"unpark_{kind}"].text, tenant_no, -1 - partition_no))


async def call_lines_of_tenant(connection: Connection, tenant_no: TenantNo) -> None:
    await connection.execute(_SQL["call_lines_of_tenant"].text, tenant_no)


async def end_parking(connection: Connection, tenant_no: TenantNo) -> None:
    """Nothing of the tenant is parked any more."""
    await connection.execute(_SQL["end_parking"].text, tenant_no)
