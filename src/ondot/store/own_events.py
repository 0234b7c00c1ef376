"""ondot's own events (S11): an inbox that ends of executions write to, and that is matched soon after."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from ondot.model.ids import ExecutionId, JobId, TenantNo, first_id_at, instant_of
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("own_events")

LONGEST_RESULT: Final = 64 * 1024
CAUSED_WITHIN: Final = timedelta(days=8)
"""An execution waits at most a week in a window, so its event is at most this much older."""


@dataclass(frozen=True, slots=True)
class OwnEventRow:
    no: int
    at: datetime
    type: str
    job_id: JobId
    execution_id: ExecutionId | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class FollowedEvents:
    """Whether, in the whole installation, successes start jobs, and sinks send successes and starts."""

    start_jobs: bool = False
    successes_are_sent: bool = False
    starts_are_sent: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    job_version: int
    state: str
    origin: str
    reason: str | None
    attempt_no: int
    fire_at: datetime
    ended_at: datetime
    error: Any
    result: Any
    is_cut: bool
    """The result is too large for an event."""


async def emit_event(
    connection: Connection,
    tenant_no: TenantNo,
    event_type: str,
    job_id: UUID,
    execution_id: UUID | None = None,
    reason: str | None = None,
) -> None:
    """Write an event of ondot's own, if jobs of the tenant start by such events. In the transaction of its cause."""
    await connection.execute(_SQL["emit_event"].text, tenant_no, event_type, job_id, execution_id, reason)


async def read_followed(connection: Connection) -> FollowedEvents:
    row = await connection.fetchrow(_SQL["read_followed"].text)
    assert row is not None
    return FollowedEvents(*row.values())


async def find_own_tenants(connection: Connection, limit: int) -> list[TenantNo]:
    return [TenantNo(row["tenant_no"]) for row in await connection.fetch(_SQL["find_own_tenants"].text, limit)]


async def take_own_events(connection: Connection, tenant_no: TenantNo, limit: int) -> list[OwnEventRow]:
    """Remove events from the inbox, in their order."""
    rows = await connection.fetch(_SQL["take_own_events"].text, tenant_no, limit)
    return sorted((OwnEventRow(*row.values()) for row in rows), key=lambda row: row.no)


async def find_ended(
    connection: Connection, tenant_no: TenantNo, ids: Collection[ExecutionId]
) -> dict[ExecutionId, Ended]:
    if not ids:
        return {}
    rows = await connection.fetch(_SQL["find_ended"].text, tenant_no, list(ids), min(ids), max(ids), LONGEST_RESULT)
    return {
        ExecutionId(row["id"]): Ended(
            row["job_version"],
            row["state"],
            row["origin"],
            row["reason"],
            row["attempt_no"],
            row["fire_at"],
            row["ended_at"],
            None if row["error"] is None else msgspec.json.decode(row["error"]),
            None if row["result"] is None else msgspec.json.decode(row["result"]),
            bool(row["is_cut"]),
        )
        for row in rows
    }


async def find_hops(
    connection: Connection, tenant_no: TenantNo, ids: Collection[ExecutionId]
) -> dict[ExecutionId, int]:
    """How many events led to each execution, one after the other; those that no such event started are left out."""
    if not ids:
        return {}
    oldest = first_id_at(instant_of(min(ids)) - CAUSED_WITHIN)
    rows = await connection.fetch(_SQL["find_hops"].text, tenant_no, list(ids), oldest, max(ids))
    return {ExecutionId(row["id"]): row["hops"] for row in rows}
