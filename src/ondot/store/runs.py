"""Runs of workflows (W1): one row each, of the same id as their execution.

Only the transaction that has a run's row locked changes the run, its steps and its arrivals. `take_run` locks it if no
other transaction has; `lock_run` waits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from ondot.model.ids import ExecutionId, JobId, PoolNo, TenantNo, WorkerId
from ondot.model.workflow.progress import Arrival
from ondot.model.workflow.states import RunState
from ondot.store.connection import Connection, Record
from ondot.store.queries import load_queries

_SQL = load_queries("runs")


@dataclass(slots=True)
class RunRow:
    """A run as its row has it. A pass changes it in place, and `change_run` writes it.

    `fire_at`, `priority_class` and `own_payload` are those of its execution. The counts are of steps without `finally`
    ones. `now`: the database's clock when the row was read.
    """

    id: ExecutionId
    job_id: JobId
    tenant_no: TenantNo
    job_version: int
    state: RunState
    fire_at: datetime
    priority_class: int
    own_payload: bool
    is_paused: bool
    is_counted: bool
    verdict: RunState | None
    reason: str | None
    started_at: datetime | None
    blocked_at: datetime | None
    look_at: datetime | None
    waiting: int
    active: int
    succeeded: int
    failed: int
    skipped: int
    blocked: int
    superseded: int
    parent_run_id: ExecutionId | None
    parent_step_no: int | None
    parent_item_no: int | None
    depth: int
    is_rerun: bool
    """Its steps were made before it began, with the outcomes that it takes over."""
    results_from: ExecutionId | None
    """No execution whose result it takes over is older than this."""
    now: datetime


RUN_COLUMNS: Final = len(fields(RunRow))


@dataclass(frozen=True, slots=True)
class Begun:
    """The execution of a run that its worker has given up, fenced."""

    id: ExecutionId
    job_id: JobId
    tenant_no: TenantNo
    job_version: int
    pool_no: PoolNo
    fire_at: datetime
    priority_class: int
    origin: str
    own_payload: bool


@dataclass(frozen=True, slots=True)
class EndedRun:
    """`awaited_by`: the run that has it as a child. `pool_no`: the pool to wake, because slots are free."""

    awaited_by: ExecutionId | None
    pool_no: PoolNo | None


@dataclass(frozen=True, slots=True)
class Taken:
    """A run that is locked, its arrivals, and how long each has waited, in seconds."""

    run: RunRow
    arrivals: list[Arrival]
    waited_s: list[float]


async def take_runs(connection: Connection, ids: Sequence[UUID], most: int) -> list[Taken]:
    """Lock runs, except those that another transaction has locked, and take up to so many arrivals of each."""
    taken = []
    for row in await connection.fetch(_SQL["take_runs"].text, ids, most):
        run = _run_row(row[:RUN_COLUMNS])
        assert run is not None
        step_nos, item_nos, execution_ids, states, waited_s = (values or [] for values in row[RUN_COLUMNS:])
        arrivals = list(map(Arrival, step_nos, item_nos, execution_ids, states))
        taken.append(Taken(run, arrivals, waited_s))
    return taken


async def take_run(connection: Connection, id_: ExecutionId) -> RunRow | None:
    """Lock a run; None: there is none, or another transaction has it locked."""
    return _run_row(await connection.fetchrow(_SQL["take_run"].text, id_))


async def lock_run(connection: Connection, id_: ExecutionId, tenant_no: TenantNo | None = None) -> RunRow | None:
    """Lock a run, and wait for it. `tenant_no` None: of any."""
    return _run_row(await connection.fetchrow(_SQL["lock_run"].text, id_, tenant_no))


async def read_run(connection: Connection, tenant_no: TenantNo, id_: ExecutionId) -> RunRow | None:
    """A run as it is at this moment; nothing is locked."""
    return _run_row(await connection.fetchrow(_SQL["read_run"].text, id_, tenant_no))


async def lock_runs(connection: Connection, ids: Sequence[ExecutionId]) -> dict[ExecutionId, RunRow]:
    """Lock runs of any tenants, and wait for them."""
    rows = await connection.fetch(_SQL["lock_runs"].text, ids)
    return {run.id: run for row in rows if (run := _run_row(row)) is not None}


async def begin_runs(
    connection: Connection, worker_id: WorkerId, attempts: Sequence[tuple[ExecutionId, int, bool]]
) -> list[Begun]:
    """Take runs from their worker: (id, attempt, whether it is resumed). Those that are missing from the answer are no
    longer the worker's, or were cancelled. One that is resumed is taken even then: its `finally` steps have to run."""
    rows = await connection.fetch(
        _SQL["begin_runs"].text,
        worker_id,
        [id_ for id_, _, _ in attempts],
        [attempt_no for _, attempt_no, _ in attempts],
        [is_resumed for _, _, is_resumed in attempts],
    )
    return [Begun(*row) for row in rows]


async def insert_runs(connection: Connection, begun: Sequence[Begun]) -> dict[ExecutionId, RunRow]:
    """Make the rows of runs, PENDING and locked."""
    if not begun:
        return {}
    rows = await connection.fetch(
        _SQL["insert_runs"].text,
        [entry.id for entry in begun],
        [entry.job_id for entry in begun],
        [entry.tenant_no for entry in begun],
        [entry.job_version for entry in begun],
        [entry.fire_at for entry in begun],
        [entry.priority_class for entry in begun],
        [entry.own_payload for entry in begun],
    )
    return {run.id: run for row in rows if (run := _run_row(row)) is not None}


async def hold_run(connection: Connection, id_: ExecutionId, pause_after: int | None) -> PoolNo | None:
    """The execution is BLOCKED and its slots are free; returns the pool to wake, if it had any."""
    row = await connection.fetchrow(_SQL["hold_run"].text, id_, pause_after)
    return row["pool_no"] if row else None


async def requeue_run(
    connection: Connection, id_: ExecutionId, stages: str | None, priority_class: int
) -> tuple[PoolNo, datetime] | None:
    """A BLOCKED run waits for its slots again; returns the pool to wake and when. None: it is not BLOCKED."""
    row = await connection.fetchrow(_SQL["requeue_run"].text, id_, stages, priority_class)
    return (row["pool_no"], row["ready_at"]) if row else None


async def end_run(
    connection: Connection,
    id_: ExecutionId,
    state: RunState,
    *,
    reason: str | None,
    error: str | None,
    pause_after: int | None,
    result: str | None = None,
) -> EndedRun | None:
    """Move the execution of a run to history. `pause_after`: as that of a completion; None: this end is not counted."""
    row = await connection.fetchrow(_SQL["end_run"].text, id_, state, reason, error, pause_after, result)
    return EndedRun(row["awaited_by"], row["pool_no"]) if row else None


async def handle_letters(connection: Connection, run: RunRow) -> None:
    await connection.execute(_SQL["handle_letters"].text, run.id, run.tenant_no)


async def find_due_runs(connection: Connection, limit: int) -> list[ExecutionId]:
    return [row["id"] for row in await connection.fetch(_SQL["find_due_runs"].text, limit)]


async def postpone_run(connection: Connection, id_: UUID, reason: str, after_s: float) -> None:
    """Let housekeeping leave a run alone for a while, and show why."""
    await connection.execute(_SQL["postpone_run"].text, id_, reason, after_s)


async def find_cancelled_runs(connection: Connection, limit: int) -> list[tuple[ExecutionId, str | None]]:
    """Runs that were asked to end, and why."""
    rows = await connection.fetch(_SQL["find_cancelled_runs"].text, limit)
    return [(row["id"], row["cancel_reason"]) for row in rows]


async def find_live_runs(connection: Connection, tenant_no: TenantNo, job_id: JobId) -> list[ExecutionId]:
    """The runs of a workflow that have not ended."""
    return [row["id"] for row in await connection.fetch(_SQL["find_live_runs"].text, tenant_no, job_id)]


async def count_runs(connection: Connection) -> dict[RunState, int]:
    """Runs that have not ended, by state."""
    return {RunState(row["state"]): row["count"] for row in await connection.fetch(_SQL["count_runs"].text)}


async def find_jobs_of_runs(connection: Connection, ids: Sequence[ExecutionId]) -> dict[ExecutionId, JobId]:
    rows = await connection.fetch(_SQL["find_jobs_of_runs"].text, ids)
    return {row["id"]: row["job_id"] for row in rows}


def _run_row(row: Record | tuple[Any, ...] | None) -> RunRow | None:
    if row is None:
        return None
    run = RunRow(*row)
    run.state = RunState(run.state)
    run.verdict = None if run.verdict is None else RunState(run.verdict)
    return run


async def is_run(connection: Connection, id_: UUID) -> bool:
    return bool(await connection.fetchval(_SQL["is_run"].text, id_))
