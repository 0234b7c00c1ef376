"""Child runs (W8): runs that a step of another run makes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ondot.model.ids import ExecutionId, JobId, PoolNo, TenantNo
from ondot.model.job import JobState
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("children")


@dataclass(frozen=True, slots=True)
class KeyedJob:
    id: JobId
    version: int
    state: JobState


@dataclass(frozen=True, slots=True)
class NewChildren:
    """Child runs of one step, all of the same workflow. `stages`: the gates that they pass."""

    run_id: ExecutionId
    step_no: int
    job_id: JobId
    job_version: int
    pool_no: PoolNo
    priority_class: int
    stages: str | None
    start_within_s: float | None
    depth: int


@dataclass(frozen=True, slots=True)
class ChildRow:
    """A child run that has not ended, and the step and item of its parent that it belongs to."""

    id: ExecutionId
    state: str
    step_no: int
    item_no: int | None
    has_started: bool


async def find_workflow(connection: Connection, tenant_no: TenantNo, key: str) -> KeyedJob | None:
    """The job that has a key; None also if it is deleted."""
    row = await connection.fetchrow(_SQL["find_workflow"].text, tenant_no, key)
    return KeyedJob(row["id"], row["version"], JobState(row["state"])) if row else None


async def insert_children(
    connection: Connection,
    tenant_no: TenantNo,
    children: NewChildren,
    runs: Sequence[tuple[ExecutionId, int | None, str | None]],
) -> dict[PoolNo, datetime]:
    """`runs`: id, item_no and payload of each. Returns the pools to wake, and when."""
    rows = await connection.fetch(
        _SQL["insert_children"].text,
        tenant_no,
        children.run_id,
        children.step_no,
        children.job_id,
        children.job_version,
        children.pool_no,
        children.priority_class,
        children.stages,
        children.start_within_s,
        children.depth,
        [id_ for id_, _, _ in runs],
        [item_no for _, item_no, _ in runs],
        [payload for _, _, payload in runs],
    )
    return {row["pool_no"]: row["ready_at"] for row in rows}


async def find_children(connection: Connection, tenant_no: TenantNo, run_id: ExecutionId) -> list[ChildRow]:
    return [ChildRow(*row.values()) for row in await connection.fetch(_SQL["find_children"].text, tenant_no, run_id)]


async def request_child_cancels(
    connection: Connection, tenant_no: TenantNo, ids: Sequence[ExecutionId], reason: str
) -> None:
    """Ask child runs to end; housekeeping looks for such requests each second."""
    await connection.execute(_SQL["request_child_cancels"].text, tenant_no, ids, reason)


async def close_children(connection: Connection, tenant_no: TenantNo, states: Mapping[ExecutionId, str]) -> None:
    """The rows of child runs that ended before a worker leased them."""
    await connection.execute(_SQL["close_children"].text, tenant_no, list(states), list(states.values()))


async def report_child(
    connection: Connection,
    tenant_no: TenantNo,
    parent: ExecutionId,
    child: ExecutionId,
    step_no: int,
    item_no: int | None,
    state: Literal["BLOCKED", "RUNNING"],
) -> None:
    """Advance the parent after the commit."""
    await connection.execute(_SQL["report_child"].text, tenant_no, parent, child, step_no, item_no, state)
