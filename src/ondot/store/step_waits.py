"""Steps that wait for a time, an event or a person (W8), by the token of their generation.

Ending a wait needs no lock on its run: it writes an arrival, as the end of an execution does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from ondot.model.ids import ExecutionId, TenantNo
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("step_waits")

Kind = Literal["time", "event", "approval"]


@dataclass(frozen=True, slots=True)
class WaitRow:
    """`state` is None while it waits. `role`: the least one that may approve. `result`: JSON text."""

    execution_id: ExecutionId
    step_no: int
    kind: Kind
    role: str | None
    due_at: datetime | None
    ended_at: datetime | None
    state: Literal["SUCCEEDED", "FAILED"] | None
    reason: str | None
    result: str | None


async def insert_step_wait(
    connection: Connection,
    tenant_no: TenantNo,
    run_id: UUID,
    step_no: int,
    execution_id: ExecutionId,
    kind: Kind,
    *,
    role: str | None = None,
    within_s: float | None,
) -> datetime | None:
    """Returns when it is due; None: it has no limit."""
    due_at: datetime | None = await connection.fetchval(
        _SQL["insert_step_wait"].text, tenant_no, run_id, step_no, execution_id, kind, role, within_s
    )
    return due_at


async def end_due_waits(connection: Connection, limit: int) -> list[UUID]:
    """End waits whose time is over; returns the runs to advance."""
    return [row["run_id"] for row in await connection.fetch(_SQL["end_due_waits"].text, limit)]


async def end_wait(
    connection: Connection,
    tenant_no: TenantNo,
    run_id: UUID,
    execution_id: ExecutionId,
    state: Literal["SUCCEEDED", "FAILED"],
    *,
    reason: str | None = None,
    result: str | None = None,
) -> bool:
    """False: it does not wait any more. Advance the run after the commit."""
    ended = await connection.fetchval(_SQL["end_wait"].text, tenant_no, run_id, execution_id, state, reason, result)
    return ended is not None


async def stop_waits(
    connection: Connection, tenant_no: TenantNo, run_id: UUID, execution_ids: Sequence[ExecutionId]
) -> None:
    """Wait for nothing any more."""
    await connection.execute(_SQL["stop_waits"].text, tenant_no, run_id, execution_ids)


async def find_wait(
    connection: Connection, tenant_no: TenantNo, run_id: UUID, execution_id: ExecutionId
) -> WaitRow | None:
    row = await connection.fetchrow(_SQL["find_wait"].text, tenant_no, run_id, execution_id)
    return WaitRow(*row.values()) if row else None


async def find_waits(
    connection: Connection, tenant_no: TenantNo, run_id: UUID, execution_ids: Sequence[ExecutionId]
) -> dict[ExecutionId, WaitRow]:
    rows = await connection.fetch(_SQL["find_waits"].text, tenant_no, run_id, execution_ids)
    return {row["execution_id"]: WaitRow(*row.values()) for row in rows}
