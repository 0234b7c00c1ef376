"""Steps that wait (W8): for a time, for an event, or for a person.

They have no execution: the id of their generation is a token, and their end is an arrival that names it. Times are
looked at once a second by the scheduler that does the housekeeping, so that a wait is exact to about a second, after
restarts too. While its run is paused a wait goes on, and what follows it waits.
"""

from collections.abc import Sequence
from typing import Final

from ondot.document.events import rule_of_wait
from ondot.flow.events.waits import register
from ondot.flow.workflows.fail import Code, Rejection, fail_steps
from ondot.flow.workflows.run_pass import RunPass
from ondot.model.ids import ExecutionId
from ondot.model.workflow.progress import Arrival
from ondot.model.workflow.spec import Approve, Wait
from ondot.model.workflow.states import StepState
from ondot.store.database import Database
from ondot.store.step_waits import Kind, end_due_waits, find_waits, insert_step_wait, stop_waits
from ondot.store.steps import set_results

AT_ONCE: Final = 1_000


async def start_wait(work: RunPass, no: int, target: Wait | Approve) -> None:
    """Start a step that is RELEASED now."""
    run, token = work.run, ExecutionId(work.database.clock.new_id())
    work.progress.rows[no].execution_id = token
    work.released.add(no)
    kind: Kind
    role: str | None = None
    match target:
        case Approve():
            kind, role, within_s = "approval", target.by, target.timeout_s
        case Wait(for_s=None):
            kind, within_s = "event", target.timeout_s
        case Wait():
            kind, within_s = "time", target.for_s
    await insert_step_wait(work.connection, run.tenant_no, run.id, no, token, kind, role=role, within_s=within_s)
    if isinstance(target, Wait) and target.event is not None:
        await register(work.connection, run.tenant_no, run.id, token, rule_of_wait(target.event))


async def fold_waits(work: RunPass, arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Take over what ended waits, and fail those that ended badly; returns the other arrivals."""
    graph, progress = work.graph, work.progress
    waits = {
        arrival.execution_id: arrival
        for arrival in arrivals
        if arrival.item_no is None and isinstance(graph.steps[arrival.step_no].target, Wait | Approve)
    }
    if not waits:
        return list(arrivals)
    await work.load({arrival.step_no for arrival in waits.values()})
    rows = await find_waits(work.connection, work.run.tenant_no, work.run.id, [ExecutionId(id_) for id_ in waits])
    results: dict[int, str | None] = {}
    rejections: list[Rejection] = []
    for wait in rows.values():
        step = progress.rows[wait.step_no]
        if step.state is not StepState.RELEASED or step.execution_id != wait.execution_id:
            continue
        if wait.result is not None:
            results[wait.step_no] = wait.result
        if wait.state == "FAILED":
            name = graph.names[wait.step_no]
            code: Code = "wait_timeout" if wait.kind == "event" else "not_approved"
            rejections.append(Rejection(wait.step_no, f"Step '{name}' failed: {wait.reason}.", code))
    if results:
        await set_results(work.connection, work.run.tenant_no, work.run.id, results)
    if rejections:
        await fail_steps(work, rejections)
    failed = {rejection.step_no for rejection in rejections}
    return [arrival for arrival in arrivals if arrival.step_no not in failed]


async def stop_waiting(work: RunPass, reason: str) -> None:
    """End the loaded steps that wait: their run ends."""
    waiting = [
        row
        for row in work.progress.rows.values()
        if row.state is StepState.RELEASED and isinstance(work.graph.steps[row.step_no].target, Wait | Approve)
    ]
    for row in waiting:
        work.progress.end(row.step_no, StepState.CANCELLED, reason)
    if ids := [ExecutionId(row.execution_id) for row in waiting if row.execution_id is not None]:
        await stop_waits(work.connection, work.run.tenant_no, work.run.id, ids)


async def end_waits_pass(database: Database) -> list[ExecutionId]:
    """End waits whose time is over; returns the runs to advance."""
    async with database.transaction() as connection:
        return [ExecutionId(run_id) for run_id in await end_due_waits(connection, AT_ONCE)]
