"""Repairs of runs (W3, W8): what people did, the generations that it replaced, payloads and results by hand.

Every function is called by the transaction that has the run's row locked.
"""

from collections.abc import Collection, Sequence
from typing import Literal
from uuid import UUID

from ondot.model.ids import ExecutionId, TenantNo
from ondot.store.audit import By
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("repairs")

RepairAction = Literal["retry", "rerun", "skip", "result", "give_up", "pause", "resume", "cancel"]


async def insert_repair(
    connection: Connection,
    tenant_no: TenantNo,
    id_: UUID,
    run_id: ExecutionId,
    action: RepairAction,
    by: By,
    steps: Sequence[str] = (),
) -> None:
    await connection.execute(
        _SQL["insert_repair"].text, tenant_no, id_, run_id, action, by.actor, by.reason, list(steps)
    )


async def keep_past_steps(
    connection: Connection, tenant_no: TenantNo, run_id: ExecutionId, repair_id: UUID, step_nos: Sequence[int]
) -> None:
    """Keep steps as they are, before a repair replaces them."""
    await connection.execute(_SQL["keep_past_steps"].text, tenant_no, run_id, repair_id, step_nos)


async def reset_steps(
    connection: Connection,
    tenant_no: TenantNo,
    run_id: ExecutionId,
    step_nos: Sequence[int],
    named: Sequence[int],
    *,
    payload: str | None = None,
    result: str | None = None,
) -> None:
    """Remove results that were set by hand. `payload`, `result`: JSON for the steps that were `named`."""
    await connection.execute(_SQL["reset_steps"].text, tenant_no, run_id, step_nos, named, payload, result)


async def find_live_of_steps(
    connection: Connection, tenant_no: TenantNo, run_id: ExecutionId, step_nos: Sequence[int]
) -> list[ExecutionId]:
    """Executions of these steps that have not ended."""
    rows = await connection.fetch(_SQL["find_live_of_steps"].text, tenant_no, run_id, step_nos)
    return [ExecutionId(row["id"]) for row in rows]


async def find_open_ends(
    connection: Connection, tenant_no: TenantNo, run_id: ExecutionId, ids: Collection[UUID]
) -> set[UUID]:
    """Which of these executions have ended, and their run has not seen it."""
    rows = await connection.fetch(_SQL["find_open_ends"].text, tenant_no, run_id, list(ids))
    return {row["execution_id"] for row in rows}


async def resolve_step_letters(
    connection: Connection,
    tenant_no: TenantNo,
    run_id: ExecutionId,
    step_nos: Sequence[int],
    resolution: Literal["replayed", "handled"],
    by: By,
) -> list[ExecutionId]:
    """Resolve the open dead letters of these steps; returns them."""
    rows = await connection.fetch(
        _SQL["resolve_step_letters"].text, tenant_no, run_id, step_nos, resolution, by.actor, by.reason
    )
    return [ExecutionId(row["execution_id"]) for row in rows]


async def find_step_payloads(
    connection: Connection, tenant_no: TenantNo, run_id: ExecutionId, step_nos: Sequence[int]
) -> dict[int, str]:
    """Payloads that retries gave to these steps, as JSON."""
    rows = await connection.fetch(_SQL["find_step_payloads"].text, tenant_no, run_id, step_nos)
    return {row["step_no"]: row["payload"] for row in rows}
