"""Cancel, give up, pause and resume a run (W8).

Each locks the run's row and waits for it; the caller advances the run afterwards, because advances meanwhile were
skipped. A cancel ends steps that have not started, asks those that run to end, then lets `finally` steps run. A second
cancel, while the run ends, stops its `finally` steps too. A pause stops releases: steps that run end, and the run's
timeout goes on.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from ondot.flow.dispatch import Dispatcher
from ondot.flow.workflows.advance import advance_run, go_on, move
from ondot.flow.workflows.end import cancel_executions, conclude, end_before_begin, settle
from ondot.flow.workflows.results import NeedsObjects, read_objects
from ondot.flow.workflows.run_pass import RunPass, open_pass
from ondot.model.errors import Conflict, NotFound
from ondot.model.execution import CANCEL
from ondot.model.ids import ExecutionId, JobId, TenantNo
from ondot.model.workflow.states import ENDED_RUNS, RunState, StepState
from ondot.ports.objects import Objects
from ondot.store.audit import Action, By, record
from ondot.store.database import Database
from ondot.store.endings import end_queued
from ondot.store.repairs import RepairAction, insert_repair
from ondot.store.runs import find_live_runs, lock_run
from ondot.telemetry.log import get_logger

log = get_logger()

_REPAIRS: Final[dict[Action, RepairAction]] = {
    "run.cancel": "cancel",
    "run.give_up": "give_up",
    "run.pause": "pause",
    "run.resume": "resume",
}

Change = Callable[[RunPass], Awaitable[bool]]
"""Changes a run that is locked; False: there is nothing to change."""


async def cancel_run(
    database: Database,
    dispatcher: Dispatcher,
    tenant_no: TenantNo,
    run_id: ExecutionId,
    *,
    by: By,
    objects: Objects | None = None,
) -> None:
    """Raises Conflict if the run has ended otherwise."""
    why = f"cancelled by {by.actor}" + (f": {by.reason}" if by.reason else "")

    async def cancel(work: RunPass) -> bool:
        if work.run.state is RunState.CANCELLED:
            return False
        _refuse_ended(work, "cancel")
        await _stop(work, why)
        return True

    await _change(database, dispatcher, tenant_no, run_id, cancel, "run.cancel", by, objects)


async def cancel_runs_of_job(
    database: Database, dispatcher: Dispatcher, tenant_no: TenantNo, job_id: JobId, *, by: By
) -> int:
    """Cancel the runs of a workflow that have not ended; returns how many there were."""
    async with database.connection() as connection:
        runs = await find_live_runs(connection, tenant_no, job_id)
    for run_id in runs:
        with suppress(Conflict):  # it has ended meanwhile
            await cancel_run(database, dispatcher, tenant_no, run_id, by=by)
    return len(runs)


async def stop_run(database: Database, dispatcher: Dispatcher, run_id: ExecutionId, why: str) -> None:
    """The same for ondot itself: overlap, or a tenant that is removed."""

    async def cancel(work: RunPass) -> bool:
        if work.run.state in ENDED_RUNS or work.run.verdict is RunState.CANCELLED:
            return False
        await _stop(work, why)
        return True

    await _change(database, dispatcher, None, run_id, cancel)


async def give_up_run(
    database: Database,
    dispatcher: Dispatcher,
    tenant_no: TenantNo,
    run_id: ExecutionId,
    *,
    by: By,
    objects: Objects | None = None,
) -> None:
    """End a run FAILED that waits for a person. Its dead letters stay open."""
    why = f"given up by {by.actor}" + (f": {by.reason}" if by.reason else "")

    async def give_up(work: RunPass) -> bool:
        _refuse_ended(work, "give up")
        if work.run.state is not RunState.BLOCKED:
            raise Conflict(
                f"The run {run_id} is {work.run.state}: only a BLOCKED run can be given up. Cancel it instead."
            )
        await conclude(work, RunState.FAILED, why, go_on)
        await settle(work, go_on)
        return True

    await _change(database, dispatcher, tenant_no, run_id, give_up, "run.give_up", by, objects)


async def pause_run(
    database: Database, dispatcher: Dispatcher, tenant_no: TenantNo, run_id: ExecutionId, *, by: By
) -> None:
    async def pause(work: RunPass) -> bool:
        _refuse_ended(work, "pause")
        if work.run.is_paused:
            return False
        work.run.is_paused = True
        return True

    await _change(database, dispatcher, tenant_no, run_id, pause, "run.pause", by)


async def resume_run(
    database: Database,
    dispatcher: Dispatcher,
    tenant_no: TenantNo,
    run_id: ExecutionId,
    *,
    by: By,
    objects: Objects | None = None,
) -> None:
    """Release the steps whose turn came meanwhile."""

    async def resume(work: RunPass) -> bool:
        _refuse_ended(work, "resume")
        if not work.run.is_paused:
            return False
        work.run.is_paused = False
        await move(work, consider=work.ordinary if work.may_release else ())
        return True

    await _change(database, dispatcher, tenant_no, run_id, resume, "run.resume", by, objects)


async def _stop(work: RunPass, why: str) -> None:
    run, progress = work.run, work.progress
    is_fresh = run.state is RunState.PENDING and run.started_at is None
    if is_fresh and await end_queued(work.connection, run.tenant_no, {run.id: why}, CANCEL):
        # No worker has begun this rerun, or child: no `finally` step runs.
        if run.is_rerun:
            await end_before_begin(work.connection, run, "CANCELLED")
        if run.parent_run_id is not None:
            work.effects.runs.add(run.parent_run_id)
        return
    if run.state is not RunState.ENDING:
        await conclude(work, RunState.CANCELLED, why, go_on)
    else:
        await work.load(set(work.graph.finals))
        if not run.active:
            for no in work.graph.finals:
                if progress.rows[no].state is StepState.WAITING:
                    progress.end(no, StepState.CANCELLED, why)
        await cancel_executions(work, why)
        await go_on(work)
    await settle(work, go_on)


def _refuse_ended(work: RunPass, what: str) -> None:
    run = work.run
    if run.state in ENDED_RUNS:
        raise Conflict(f"The run {run.id} has ended {run.state}: there is nothing left to {what}.")


async def _change(
    database: Database,
    dispatcher: Dispatcher,
    tenant_no: TenantNo | None,
    run_id: ExecutionId,
    change: Change,
    action: Action | None = None,
    by: By | None = None,
    objects: Objects | None = None,
) -> None:
    read: dict[ExecutionId, str] = {}
    while True:
        try:
            async with database.transaction() as connection:
                run = await lock_run(connection, run_id, tenant_no)
                work = None if run is None else await open_pass(database, connection, run, read)
                if work is None:
                    raise NotFound(f"There is no run {run_id}.")
                before = work.run.state
                if not await change(work):
                    return
                await work.write()
                if action is not None and by is not None:
                    states = {"state": before.value}, {"state": work.run.state.value}
                    await record(
                        connection, work.run.tenant_no, by, action, run_id, states[0], before=states[0], after=states[1]
                    )
                    await insert_repair(
                        connection, work.run.tenant_no, database.clock.new_id(), run_id, _REPAIRS[action], by
                    )
        except NeedsObjects as needs:
            read |= await read_objects(database, objects, needs)
            continue
        break
    log.info(action or "run.stopped", run_id=str(run_id), state=work.run.state.value)
    work.effects.send(dispatcher)
    for other in {run_id, *work.effects.runs}:
        await advance_run(database, dispatcher, other, objects)
