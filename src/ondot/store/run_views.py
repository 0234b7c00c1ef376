"""Runs as the pages draw them (W9): all steps of one run and when they ran, or a few steps of many runs.

Each statement is bounded by the steps of a workflow (10,000), not by the items of its maps or by the age of the tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from ondot.model.ids import ExecutionId, TenantNo, first_id_at
from ondot.store.connection import Connection
from ondot.store.day_bounds import with_day_bounds
from ondot.store.queries import Query, load_queries
from ondot.store.run_reads import RunRow

_SQL = load_queries("run_views")

AROUND: Final = timedelta(hours=1)
"""Processes mint ids by their estimate of the database's clock: those of a run may be a little older than its start."""


@dataclass(frozen=True, slots=True)
class ThinStep:
    step_no: int
    state: str
    reason: str | None
    execution_id: ExecutionId | None
    generation: int
    released_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class RunExecution:
    """An execution of a step that is no map."""

    id: ExecutionId
    step_no: int
    state: str
    started_at: datetime | None
    attempt_no: int


@dataclass(frozen=True, slots=True)
class StepExecution:
    """A generation of a step, or an item of a map."""

    id: ExecutionId
    item_no: int | None
    state: str
    started_at: datetime | None
    ended_at: datetime | None
    attempt_no: int
    error: dict[str, Any] | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class EarlyAttempt:
    execution_id: ExecutionId
    started_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class MapCounts:
    step_no: int
    total: int
    active: int
    succeeded: int
    failed: int


@dataclass(frozen=True, slots=True)
class Cell:
    run_id: ExecutionId
    step_no: int
    state: str
    reason: str | None


async def list_thin_steps(connection: Connection, tenant_no: TenantNo, run_id: UUID) -> list[ThinStep]:
    rows = await connection.fetch(_SQL["list_thin_steps"].text, tenant_no, run_id)
    return [ThinStep(*row.values()) for row in rows]


async def list_steps_in_need(
    connection: Connection, tenant_no: TenantNo, run_id: UUID, approvals: Sequence[int], limit: int
) -> list[ThinStep]:
    """The first steps that wait for a person: they failed, or are one of `approvals` and released."""
    rows = await connection.fetch(_SQL["list_steps_in_need"].text, tenant_no, run_id, approvals, limit)
    return [ThinStep(*row.values()) for row in rows]


async def list_run_executions(
    connection: Connection, tenant_no: TenantNo, run: RunRow, now: datetime
) -> list[RunExecution]:
    """Of all generations of its steps, without items of maps."""
    text = _within_days(_SQL["list_run_executions"], run, now, "$3", "$4")
    return [RunExecution(*row.values()) for row in await connection.fetch(text, tenant_no, run.id)]


async def list_step_executions(
    connection: Connection, tenant_no: TenantNo, run: RunRow, step_no: int, now: datetime, limit: int
) -> list[StepExecution]:
    """The newest generations of a step; of a map its items, those that did not succeed first."""
    text = _within_days(_SQL["list_step_executions"], run, now, "$5", "$6")
    rows = await connection.fetch(text, tenant_no, run.id, step_no, limit)
    return [StepExecution(**(dict(row) | {"error": _decode(row["error"])})) for row in rows]


async def list_early_attempts(
    connection: Connection, tenant_no: TenantNo, run: RunRow, execution_ids: Sequence[ExecutionId], now: datetime
) -> list[EarlyAttempt]:
    """Attempts that another one followed, of these executions of the run's steps."""
    text = _within_days(_SQL["list_early_attempts"], run, now, "$3", "$4")
    return [EarlyAttempt(*row.values()) for row in await connection.fetch(text, tenant_no, execution_ids)]


async def list_maps(connection: Connection, tenant_no: TenantNo, run_id: UUID) -> dict[int, MapCounts]:
    """The mapped steps that have started, by number."""
    rows = await connection.fetch(_SQL["list_maps"].text, tenant_no, run_id)
    return {row["step_no"]: MapCounts(*row.values()) for row in rows}


async def list_cells(
    connection: Connection, tenant_no: TenantNo, run_ids: Sequence[UUID], step_nos: Sequence[int]
) -> list[Cell]:
    rows = await connection.fetch(_SQL["list_cells"].text, tenant_no, run_ids, step_nos)
    return [Cell(*row.values()) for row in rows]


def _within_days(query: Query, run: RunRow, now: datetime, from_id: str, before_id: str) -> str:
    """The text with the days of the run as bounds: the ids of its executions are of those days."""
    from_at = (run.started_at or now) - AROUND
    ids = first_id_at(from_at), first_id_at(max(run.ended_at or now, from_at) + AROUND)
    return with_day_bounds(query, ids, from_id=from_id, before_id=before_id)


def _decode(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
