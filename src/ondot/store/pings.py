"""Pings and the calls that they got, as they are stored (O4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

import msgspec

from ondot.model.ids import TenantNo, instant_of
from ondot.model.ping import CallKind, Expected, PingState, Standing
from ondot.model.schedule import Schedule
from ondot.store.connection import Connection, Record
from ondot.store.queries import load_queries

_SQL = load_queries("pings")
_SCHEDULE = msgspec.json.Decoder(Schedule)

KEPT = 100
"""Calls of each ping."""


@dataclass(frozen=True, slots=True)
class PingRow:
    id: UUID
    tenant_no: TenantNo
    name: str
    expected: Expected
    standing: Standing
    pinged_at: datetime | None
    """When the last call was written: at most 5 s before the last call."""
    created_at: datetime
    created_by: str
    hash: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class PingCallRow:
    id: UUID
    kind: CallKind
    exit_code: int | None
    took_s: float | None
    body: str | None
    address: str | None

    @property
    def at(self) -> datetime:
        return instant_of(self.id)


@dataclass(frozen=True, slots=True)
class LatePing:
    tenant_no: TenantNo
    id: UUID
    name: str
    pinged_at: datetime | None
    started_at: datetime | None
    due_at: datetime


async def add_ping(
    connection: Connection,
    id_: UUID,
    tenant_no: TenantNo,
    name: str,
    hash_: bytes,
    expected: Expected,
    *,
    created_by: str,
) -> PingRow | None:
    """None: the tenant has a ping with this name."""
    schedule = None if expected.schedule is None else msgspec.json.encode(expected.schedule).decode()
    row = await connection.fetchrow(
        _SQL["add_ping"].text,
        id_,
        tenant_no,
        name,
        hash_,
        schedule,
        expected.period_s,
        expected.grace_s,
        created_by,
    )
    return None if row is None else _ping(row)


async def count_pings(connection: Connection, tenant_no: TenantNo) -> int:
    count: int = await connection.fetchval(_SQL["count_pings"].text, tenant_no)
    return count


async def list_pings(connection: Connection, tenant_no: TenantNo, *, after: str = "", limit: int) -> list[PingRow]:
    return [_ping(row) for row in await connection.fetch(_SQL["list_pings"].text, tenant_no, after, limit)]


async def get_ping(connection: Connection, tenant_no: TenantNo, name: str) -> PingRow | None:
    row = await connection.fetchrow(_SQL["get_ping"].text, tenant_no, name)
    return None if row is None else _ping(row)


async def find_pings(connection: Connection, hashes: Sequence[bytes]) -> Mapping[bytes, PingRow]:
    """Pings by the hashes of their tokens; unknown ones are left out."""
    return {row["hash"]: _ping(row) for row in await connection.fetch(_SQL["find_pings"].text, list(hashes))}


async def lock_ping(connection: Connection, tenant_no: TenantNo, id_: UUID) -> tuple[PingRow, datetime] | None:
    """The ping, and what time it is."""
    row = await connection.fetchrow(_SQL["lock_ping"].text, tenant_no, id_)
    return None if row is None else (_ping(row), row["now"])


async def change_ping(connection: Connection, ping: PingRow, standing: Standing) -> None:
    await connection.execute(
        _SQL["change_ping"].text,
        ping.tenant_no,
        ping.id,
        standing.state,
        standing.due_at,
        standing.started_at,
        standing.took_s,
    )


async def add_ping_call(connection: Connection, ping: PingRow, call: PingCallRow) -> None:
    await connection.execute(
        _SQL["add_ping_call"].text,
        call.id,
        ping.tenant_no,
        ping.id,
        call.kind,
        call.exit_code,
        call.took_s,
        call.body,
        call.address,
        KEPT,
    )


async def list_ping_calls(connection: Connection, ping: PingRow, limit: int) -> list[PingCallRow]:
    """Newest first."""
    rows = await connection.fetch(_SQL["list_ping_calls"].text, ping.tenant_no, ping.id, limit)
    return [PingCallRow(*row.values()) for row in rows]


async def list_latest_calls(
    connection: Connection, tenant_no: TenantNo, ping_ids: Sequence[UUID], of_each: int = 5
) -> dict[UUID, list[PingCallRow]]:
    """The latest calls of each of these pings, newest first."""
    calls: dict[UUID, list[PingCallRow]] = {}
    for ping_id, *call in await connection.fetch(_SQL["list_latest_calls"].text, tenant_no, ping_ids, of_each):
        calls.setdefault(ping_id, []).append(PingCallRow(*call))
    return calls


async def rotate_ping(connection: Connection, tenant_no: TenantNo, name: str, hash_: bytes) -> PingRow | None:
    row = await connection.fetchrow(_SQL["rotate_ping"].text, tenant_no, name, hash_)
    return None if row is None else _ping(row)


async def delete_ping(connection: Connection, tenant_no: TenantNo, name: str) -> PingRow | None:
    """With its calls."""
    row = await connection.fetchrow(_SQL["delete_ping"].text, tenant_no, name)
    return None if row is None else _ping(row)


async def mark_late_pings(connection: Connection, limit: int) -> list[LatePing]:
    rows = await connection.fetch(_SQL["mark_late_pings"].text, limit)
    return [LatePing(*row.values()) for row in rows]


def _ping(row: Record) -> PingRow:
    schedule = None if row["schedule"] is None else _SCHEDULE.decode(row["schedule"])
    return PingRow(
        row["id"],
        TenantNo(row["tenant_no"]),
        row["name"],
        Expected(schedule, row["period_s"], row["grace_s"]),
        Standing(PingState(row["state"]), row["due_at"], row["started_at"], row["took_s"]),
        row["pinged_at"],
        row["created_at"],
        row["created_by"],
        row["hash"],
    )
