"""Repair a run that nothing would move (W1): part of the self-check, because each is a bug.

The ends of executions that left no arrival are read from history, all steps are decided again, and a run whose
execution is gone ends as that did.
"""

from ondot.flow.dispatch import Dispatcher
from ondot.flow.workflows.advance import advance_run, move
from ondot.flow.workflows.run_pass import RunPass, open_pass
from ondot.model.ids import ExecutionId
from ondot.model.workflow.progress import Arrival
from ondot.model.workflow.states import ENDED_RUNS, RunState, StepState
from ondot.store.database import Database
from ondot.store.executions import get_execution
from ondot.store.passes import change_run
from ondot.store.runs import take_run
from ondot.store.step_waits import find_waits
from ondot.store.steps import find_all_steps, find_ends_missed, find_executions_of_run


async def move_stranded(database: Database, dispatcher: Dispatcher, run_id: ExecutionId) -> bool:
    """Returns whether the run was stranded, and moves or has ended now."""
    async with database.transaction() as connection:
        run = await take_run(connection, run_id)
        if run is None or run.state in ENDED_RUNS:
            return False
        execution = await get_execution(connection, run.tenant_no, run_id)
        if execution is None or execution.ended_at is not None:
            ends_as = RunState.FAILED if execution is None else RunState(_ENDS.get(execution.state, execution.state))
            run.state = run.verdict = ends_as
            run.reason = run.reason or (None if execution is None else execution.reason)
            run.look_at = None
            await change_run(connection, run)
            return True
        work = await open_pass(database, connection, run)
        if work is None:
            return False
        before = (run.state, run.waiting, run.active)
        await move(work, await _find_missed(work), work.ordinary if work.may_release else ())
        await work.write()
    work.effects.send(dispatcher)
    await advance_run(database, dispatcher, run_id)
    return before != (run.state, run.waiting, run.active)


_ENDS = {"SKIPPED": "CANCELLED"}


async def _find_missed(work: RunPass) -> list[Arrival]:
    """Arrivals of released steps whose executions have ended."""
    run, connection = work.run, work.connection
    rows = await find_all_steps(connection, run.id)
    work.progress.load(rows)
    live = {id_ for id_, _ in await find_executions_of_run(connection, run.id)}
    released = {
        row.execution_id: row.step_no
        for row in rows
        if row.state is StepState.RELEASED
        and row.execution_id is not None
        and row.execution_id not in live
        and row.step_no not in work.graph.mapped
    }
    waits = await find_waits(connection, run.tenant_no, run.id, [ExecutionId(id_) for id_ in released])
    ids = [id_ for id_ in released if id_ not in waits]
    ended = await find_ends_missed(connection, ids)
    return [Arrival(released[id_], None, id_, ended[id_]) for id_ in ids if id_ in ended]
