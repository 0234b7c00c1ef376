"""What a pass over runs leaves (W2, W5): executions of steps whose turn it is, steps and runs, in one round trip.

Called by the transaction that has the rows of the runs locked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ondot.model.ids import ExecutionId, PoolNo
from ondot.model.workflow.progress import StepRow
from ondot.model.workflow.states import ENDED, ENDED_RUNS
from ondot.store.connection import Connection
from ondot.store.queries import load_queries
from ondot.store.runs import RunRow

_SQL = load_queries("passes")


@dataclass(frozen=True, slots=True)
class NewExecution:
    """The execution of a step, or of one item of it. `stages`: the gates it passes. `payload`: None for the spec's."""

    id: ExecutionId
    step_no: int
    pool_no: PoolNo
    priority_class: int
    stages: str | None = None
    payload: str | None = None
    item_no: int | None = None


async def write_pass(
    connection: Connection,
    *,
    executions: Sequence[tuple[RunRow, NewExecution]] = (),
    steps: Sequence[tuple[ExecutionId, StepRow, bool]] = (),
    runs: Sequence[RunRow] = (),
) -> dict[PoolNo, datetime]:
    """Make executions; write steps (run, step, whether it got a new generation) and runs as the pass left them.

    Returns the pools to wake, and when.
    """
    rows = await connection.fetch(
        _SQL["write_pass"].text,
        [run.id for run, _ in executions],
        [run.tenant_no for run, _ in executions],
        [run.job_version for run, _ in executions],
        [run.fire_at for run, _ in executions],
        [new.id for _, new in executions],
        [new.step_no for _, new in executions],
        [new.item_no for _, new in executions],
        [new.pool_no for _, new in executions],
        [new.priority_class for _, new in executions],
        [new.stages for _, new in executions],
        [new.payload for _, new in executions],
        [run_id for run_id, _, _ in steps],
        [row.step_no for _, row, _ in steps],
        [row.state for _, row, _ in steps],
        [row.reason for _, row, _ in steps],
        [row.execution_id for _, row, _ in steps],
        [row.parents_succeeded for _, row, _ in steps],
        [row.parents_failed for _, row, _ in steps],
        [row.parents_skipped for _, row, _ in steps],
        [is_released for _, _, is_released in steps],
        [row.state in ENDED for _, row, _ in steps],
        [run.id for run in runs],
        [run.state for run in runs],
        [run.verdict for run in runs],
        [run.reason for run in runs],
        [run.look_at for run in runs],
        [run.waiting for run in runs],
        [run.active for run in runs],
        [run.succeeded for run in runs],
        [run.failed for run in runs],
        [run.skipped for run in runs],
        [run.blocked for run in runs],
        [run.superseded for run in runs],
        [run.is_counted for run in runs],
        [run.blocked_at for run in runs],
        [run.started_at for run in runs],
        [run.state in ENDED_RUNS for run in runs],
        [run.is_paused for run in runs],
    )
    return {row["pool_no"]: row["ready_at"] for row in rows}


async def change_run(connection: Connection, run: RunRow) -> None:
    await write_pass(connection, runs=[run])
