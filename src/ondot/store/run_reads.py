"""Runs and their steps as they are shown (W3, W8). What changes them is in `runs` and `steps`."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, Final
from uuid import UUID

import msgspec

from ondot.model.ids import ExecutionId, JobId, TenantNo
from ondot.model.workflow.states import RunState, StepState
from ondot.store.connection import Connection, Record
from ondot.store.day_bounds import DAY_BITS, with_day_bounds
from ondot.store.queries import load_queries

_SQL = load_queries("run_reads")

LISTED_RESULT_BYTES: Final = 16 * 1024
"""A list leaves out longer results: 1,000 of 256 KiB would be 256 MB."""
SHOWN_REPAIRS: Final = 100


@dataclass(frozen=True, slots=True)
class RunRow:
    id: ExecutionId
    job_id: JobId
    job_version: int
    parent_run_id: ExecutionId | None
    parent_step_no: int | None
    parent_item_no: int | None
    rerun_of: ExecutionId | None
    depth: int
    state: RunState
    verdict: str | None
    reason: str | None
    is_paused: bool
    started_at: datetime | None
    blocked_at: datetime | None
    ended_at: datetime | None
    look_at: datetime | None
    waiting: int
    active: int
    succeeded: int
    failed: int
    skipped: int
    blocked: int
    superseded: int


@dataclass(frozen=True, slots=True)
class StepTimes:
    step_no: int
    state: StepState
    released_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class ShownStep:
    """A step's row. `result_bytes`: the length of its result, which a list may leave out."""

    step_no: int
    execution_id: ExecutionId | None
    released_at: datetime | None
    ended_at: datetime | None
    generation: int
    parents_succeeded: int
    parents_failed: int
    parents_skipped: int
    state: StepState
    reason: str | None
    result: Any
    result_bytes: int | None


@dataclass(frozen=True, slots=True)
class StepExecution:
    """What the execution of a step adds to its row."""

    id: ExecutionId
    state: str
    ready_at: datetime
    started_at: datetime | None
    attempt_no: int
    cancel_at: datetime | None
    worker_id: UUID | None
    error: Any
    result: Any
    result_bytes: int | None


@dataclass(frozen=True, slots=True)
class PastStep:
    """An earlier generation of a step, and the repair that replaced it."""

    step_no: int
    execution_id: ExecutionId | None
    released_at: datetime | None
    ended_at: datetime | None
    generation: int
    state: StepState
    reason: str | None
    repair_id: UUID


@dataclass(frozen=True, slots=True)
class RepairRow:
    id: UUID
    at: datetime
    action: str
    actor: str
    reason: str | None
    steps: tuple[str, ...]


async def get_run(connection: Connection, tenant_no: TenantNo, id_: UUID) -> RunRow | None:
    row = await connection.fetchrow(_SQL["get_run"].text, tenant_no, id_)
    return _run(row) if row else None


async def list_runs(
    connection: Connection,
    tenant_no: TenantNo,
    *,
    limit: int,
    job_id: JobId | None = None,
    states: Collection[RunState] | None = None,
    before: UUID | None = None,
    ids: Sequence[UUID] | None = None,
    parent_run_id: UUID | None = None,
) -> list[RunRow]:
    """Runs that have started, newest first."""
    wanted = None if states is None else [state.value for state in states]
    rows = await connection.fetch(_SQL["list_runs"].text, tenant_no, job_id, wanted, before, limit, ids, parent_run_id)
    return [_run(row) for row in rows]


async def list_steps(
    connection: Connection,
    tenant_no: TenantNo,
    run_id: UUID,
    *,
    after: int = -1,
    limit: int,
    states: Collection[StepState] | None = None,
) -> list[ShownStep]:
    """In the order in which they were written."""
    wanted = None if states is None else [state.value for state in states]
    rows = await connection.fetch(_SQL["list_steps"].text, tenant_no, run_id, after, limit, wanted, LISTED_RESULT_BYTES)
    return [_step(row) for row in rows]


async def get_step(connection: Connection, tenant_no: TenantNo, run_id: UUID, step_no: int) -> ShownStep | None:
    row = await connection.fetchrow(_SQL["get_step"].text, tenant_no, run_id, step_no)
    return _step(row) if row else None


async def list_step_times(connection: Connection, tenant_no: TenantNo, run_id: UUID) -> list[StepTimes]:
    rows = await connection.fetch(_SQL["list_step_times"].text, tenant_no, run_id)
    return [StepTimes(row["step_no"], StepState(row["state"]), row["released_at"], row["ended_at"]) for row in rows]


async def find_step_executions(
    connection: Connection,
    tenant_no: TenantNo,
    ids: Iterable[ExecutionId],
    *,
    most_result_bytes: int = LISTED_RESULT_BYTES,
) -> dict[ExecutionId, StepExecution]:
    """Live and ended ones. A step that calls nothing has none."""
    wanted = sorted(set(ids))
    if not wanted:
        return {}
    rows = await connection.fetch(_SQL["find_live_steps"].text, tenant_no, wanted)
    found = {row["id"]: row for row in rows}
    # A day at a time: a run may wait for a person for a week, and retries of it span its days.
    for _, group in groupby((id_ for id_ in wanted if id_ not in found), key=lambda id_: id_.int // DAY_BITS):
        day = list(group)
        text = with_day_bounds(_SQL["find_ended_steps"], day, from_id="$4", before_id="$5")
        rows = await connection.fetch(text, tenant_no, day, most_result_bytes)
        found |= {row["id"]: row for row in rows}
    return {
        id_: StepExecution(**(dict(row) | {"error": _decode(row["error"]), "result": _decode(row["result"])}))
        for id_, row in found.items()
    }


async def list_past_steps(connection: Connection, tenant_no: TenantNo, run_id: UUID, step_no: int) -> list[PastStep]:
    """Earlier generations of a step, oldest first."""
    rows = await connection.fetch(_SQL["list_past_steps"].text, tenant_no, run_id, step_no)
    return [PastStep(**(dict(row) | {"state": StepState(row["state"])})) for row in rows]


async def list_repairs(
    connection: Connection, tenant_no: TenantNo, run_id: UUID, limit: int = SHOWN_REPAIRS
) -> list[RepairRow]:
    """What people did to a run, newest first."""
    rows = await connection.fetch(_SQL["list_repairs"].text, tenant_no, run_id, limit)
    return [RepairRow(**(dict(row) | {"steps": tuple(row["steps"])})) for row in rows]


def _run(row: Record) -> RunRow:
    return RunRow(**(dict(row) | {"state": RunState(row["state"])}))


def _step(row: Record) -> ShownStep:
    return ShownStep(**(dict(row) | {"state": StepState(row["state"]), "result": _decode(row["result"])}))


def _decode(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
