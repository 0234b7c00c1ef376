"""Steps of a run (W1, W2): thin rows, and the executions of steps whose turn it is.

Every function is called by the transaction that has the run's row locked, except `find_results`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ondot.model.ids import ExecutionId, JobId, PoolNo, TenantNo
from ondot.model.trace import TraceContext, parse_traceparent
from ondot.model.workflow.progress import StepRow
from ondot.model.workflow.states import StepState
from ondot.store.connection import Connection, Record
from ondot.store.day_bounds import with_day_bounds
from ondot.store.queries import load_queries
from ondot.store.runs import RunRow

_SQL = load_queries("steps")


@dataclass(frozen=True, slots=True)
class Rejected:
    """A step, or an item of one, that ends without an attempt; `error` is JSON."""

    id: ExecutionId
    step_no: int
    pool_no: PoolNo
    priority_class: int
    error: str
    reason: str
    item_no: int | None = None


@dataclass(frozen=True, slots=True)
class StoredResult:
    """What a step left: JSON as text. `is_own`: it was set for the step, and is not the result of its execution."""

    step_no: int
    state: StepState
    execution_id: ExecutionId | None
    result: str | None
    is_own: bool


async def insert_steps(connection: Connection, counts: Sequence[tuple[RunRow, int]]) -> None:
    """Make this many steps of each run, all WAITING."""
    await connection.execute(
        _SQL["insert_steps"].text,
        [run.id for run, _ in counts],
        [run.tenant_no for run, _ in counts],
        [count for _, count in counts],
    )


async def find_steps(
    connection: Connection, wanted: Sequence[tuple[ExecutionId, int]]
) -> dict[ExecutionId, list[StepRow]]:
    """These steps, (run, number), by run."""
    rows = await connection.fetch(
        _SQL["find_steps"].text, [run_id for run_id, _ in wanted], [step_no for _, step_no in wanted]
    )
    found: dict[ExecutionId, list[StepRow]] = defaultdict(list)
    for row in rows:
        found[row["run_id"]].append(_step_row(row[1:]))
    return found


async def find_all_steps(connection: Connection, run_id: ExecutionId) -> list[StepRow]:
    return [_step_row(row) for row in await connection.fetch(_SQL["find_all_steps"].text, run_id)]


async def reject_steps(connection: Connection, run: RunRow, rejected: Sequence[Rejected]) -> None:
    """Record steps whose payload cannot be made."""
    await connection.execute(
        _SQL["reject_steps"].text,
        run.id,
        run.tenant_no,
        run.job_id,
        run.job_version,
        run.fire_at,
        [entry.id for entry in rejected],
        [entry.step_no for entry in rejected],
        [entry.pool_no for entry in rejected],
        [entry.priority_class for entry in rejected],
        [entry.error for entry in rejected],
        [entry.item_no for entry in rejected],
        [entry.reason for entry in rejected],
    )


async def find_results(
    connection: Connection, run_id: ExecutionId, step_nos: Sequence[int], youngest: UUID, oldest: UUID | None = None
) -> list[StoredResult]:
    """What these steps left. `youngest`: an id that no execution of the run is younger than. `oldest`: one that none is
    older than; None: the run."""
    rows = await connection.fetch(
        with_day_bounds(_SQL["find_results"], [oldest or run_id, youngest], from_id="$3", before_id="$4"),
        run_id,
        step_nos,
    )
    return [
        StoredResult(
            row["step_no"],
            StepState(row["state"]),
            row["execution_id"],
            row["own_result"] if row["own_result"] is not None else row["result"],
            row["own_result"] is not None,
        )
        for row in rows
    ]


async def find_results_of(
    connection: Connection, tenant_no: TenantNo, ids: Sequence[ExecutionId]
) -> dict[ExecutionId, str | None]:
    """The results of executions that have ended, as JSON text."""
    if not ids:
        return {}
    text = with_day_bounds(_SQL["find_results_of"], ids, from_id="$3", before_id="$4")
    return {row["id"]: row["result"] for row in await connection.fetch(text, tenant_no, ids)}


async def set_results(
    connection: Connection, tenant_no: TenantNo, run_id: ExecutionId, results: Mapping[int, str | None]
) -> None:
    """Results of steps that have no execution of their own, as JSON text."""
    await connection.execute(_SQL["set_results"].text, tenant_no, run_id, list(results), list(results.values()))


async def find_executions_of_run(connection: Connection, run_id: ExecutionId) -> list[tuple[ExecutionId, str]]:
    """Executions of a run that have not ended, with their states."""
    rows = await connection.fetch(_SQL["find_executions_of_run"].text, run_id)
    return [(row["id"], row["state"]) for row in rows]


async def find_ends_missed(connection: Connection, ids: Sequence[UUID]) -> dict[UUID, str]:
    """The states in which these executions ended; those that are not in history are left out."""
    if not ids:
        return {}
    text = with_day_bounds(_SQL["find_ends_missed"], ids, from_id="$2", before_id="$3")
    return {row["id"]: row["state"] for row in await connection.fetch(text, ids)}


async def find_step_nos(
    connection: Connection, ids: Sequence[ExecutionId], *, with_payloads: bool
) -> dict[ExecutionId, tuple[JobId, int, int | None, bool, str | None, TraceContext | None]]:
    """Of which workflow, step and item these executions are, whether an event started the run, their own payloads,
    and the trace of the run, if they have any."""
    rows = await connection.fetch(_SQL["find_step_nos"].text, ids, with_payloads)
    return {
        row["id"]: (
            row["job_id"],
            row["step_no"],
            row["item_no"],
            bool(row["is_of_event"]),
            row["payload"],
            None if row["trace"] is None else parse_traceparent(*row["trace"]),
        )
        for row in rows
    }


def _step_row(row: Record | tuple[Any, ...]) -> StepRow:
    step = StepRow(*row)
    step.state = StepState(step.state)
    return step
