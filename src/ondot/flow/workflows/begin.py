"""A worker begins a run (W1): instead of a call it makes the run's steps, in one fenced transaction.

The transaction names worker, attempt and state RUNNING as any completion does. It makes the rows of the run and its
steps, releases the roots, and gives back worker, pool slot and count; the run keeps the slots of its gates. From then
on it is RUNNING with no worker, and ends of its steps move it (`advance`). If the reply is lost, or the worker dies
before it commits, the next try finds the run as it is.

A run that was BLOCKED and is retried queues for its slots, and the worker that leases it resumes it here.
"""

from ondot.flow.dispatch import Dispatcher
from ondot.flow.workflows.advance import advance_run, move
from ondot.flow.workflows.children import report_to_parent
from ondot.flow.workflows.end import next_look
from ondot.flow.workflows.results import NeedsObjects, read_objects
from ondot.flow.workflows.run_pass import Effects, open_pass
from ondot.model.completion import Completion
from ondot.model.ids import ExecutionId, WorkerId
from ondot.model.workflow.progress import StepRow
from ondot.model.workflow.states import RunState
from ondot.ports.objects import Objects
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.queue import Leased
from ondot.store.runs import RunRow, begin_run, change_run, insert_run, lock_run
from ondot.store.steps import insert_steps
from ondot.telemetry.log import get_logger

log = get_logger()


async def begin(
    database: Database,
    dispatcher: Dispatcher,
    worker_id: WorkerId,
    leased: Leased,
    refusal: Completion | None = None,
    *,
    objects: Objects | None = None,
) -> Completion | bool:
    """Begin or resume a run. False: the attempt is no longer the worker's, or was cancelled.

    `refusal`: the outcome to be written instead if the run is new: it expired, or its job was stopped.
    """
    read: dict[ExecutionId, str] = {}
    while True:
        try:
            async with database.transaction() as connection:
                effects = await _begin(database, connection, worker_id, leased, refusal, read)
        except NeedsObjects as needs:
            read |= await read_objects(database, objects, needs)
            continue
        if isinstance(effects, Completion):
            return effects
        if effects is None:
            return False
        effects.send(dispatcher)
        # Also for a run that was resumed: arrivals of earlier generations wait.
        for run_id in {leased.id, *effects.runs}:
            await advance_run(database, dispatcher, run_id, objects)
        return True


async def _begin(
    database: Database,
    connection: Connection,
    worker_id: WorkerId,
    leased: Leased,
    refusal: Completion | None,
    read: dict[ExecutionId, str],
) -> Effects | Completion | None:
    run = await lock_run(connection, leased.id)
    is_new = run is None or run.started_at is None
    if is_new and refusal is not None:
        return refusal
    begun = await begin_run(connection, worker_id, leased.id, leased.attempt_no, is_resumed=not is_new)
    if begun is None:
        # The reply of an earlier try was lost, or another worker has it.
        return Effects() if run is not None and run.state is not RunState.PENDING else None
    if run is None:
        run = await insert_run(connection, begun)
    work = await open_pass(database, connection, run, read)
    assert work is not None, "the worker has read the spec of the run"
    if run.state is not RunState.PENDING:
        await change_run(connection, run)  # it ends meanwhile, or was begun before
        return work.effects
    run.state = RunState.RUNNING
    run.blocked_at = None
    if is_new:
        run.started_at, run.reason = run.now, None
        run.waiting = len(work.graph.steps) - len(work.graph.finals)
        await insert_steps(connection, run, len(work.graph.steps))
        work.progress.load(StepRow(no) for no in work.graph.roots)
    run.look_at = next_look(work)
    await move(work, consider=work.graph.roots if is_new else work.ordinary)
    if not is_new:
        await report_to_parent(work, "RUNNING")
    await work.write()
    _report(run, is_new=is_new)
    return work.effects


def _report(run: RunRow, *, is_new: bool) -> None:
    steps = run.waiting + run.active + run.succeeded + run.failed + run.skipped + run.blocked
    log.info("run.begun" if is_new else "run.resumed", run_id=str(run.id), job_id=str(run.job_id), steps=steps)
