"""Cancel an execution at any time (E8): not yet due, in the queue or before a gate, or running.

An execution that waits ends CANCELLED in the same transaction. One that runs is asked to end (`cancel_at`): its worker
looks for such requests each second, and ends it by force when its grace is over. The first of outcome and cancel wins:
an attempt that succeeds meanwhile has SUCCEEDED, one that fails is not retried.

A run of a workflow has no worker: `flow.workflows.control` cancels it. The run of a step that is cancelled is advanced,
and so are jobs that depend on a cancelled one.
"""

from ondot.flow.dispatch import Dispatcher
from ondot.flow.workflows.advance import advance_arrived
from ondot.flow.workflows.control import cancel_run
from ondot.model.errors import Conflict, NotFound
from ondot.model.execution import CANCEL, TERMINAL, State
from ondot.model.ids import ExecutionId, TenantNo
from ondot.store.audit import By, record
from ondot.store.database import Database
from ondot.store.dependencies import end_blocked
from ondot.store.endings import end_queued, request_cancels
from ondot.store.executions import ExecutionRow, get_execution
from ondot.store.runs import lock_run

TRIES = 5


async def cancel(
    database: Database, dispatcher: Dispatcher, tenant_no: TenantNo, id_: ExecutionId, *, by: By
) -> ExecutionRow:
    """Cancel an execution, or ask it to end if it runs; returns it as it is then. A second cancel changes nothing."""
    row = await _cancel(database, dispatcher, tenant_no, id_, by)
    if row.state is State.CANCELLED:
        await advance_arrived(database, dispatcher, [row.run_id or row.job_id])
    return row


async def _cancel(
    database: Database, dispatcher: Dispatcher, tenant_no: TenantNo, id_: ExecutionId, by: By
) -> ExecutionRow:
    why = f"cancelled by {by.actor}" + (f": {by.reason}" if by.reason else "")
    for _ in range(TRIES):
        async with database.transaction() as connection:
            row = await get_execution(connection, tenant_no, id_)
            if row is None:
                raise NotFound(f"There is no execution {id_}.")
            if row.state is State.CANCELLED or (row.state is State.RUNNING and row.cancel_at is not None):
                return row
            if row.state in TERMINAL:
                raise Conflict(f"The execution {id_} has ended {row.state}: there is nothing left to cancel.")
            if _may_be_run(row) and await lock_run(connection, id_, tenant_no) is not None:
                break
            if row.state is State.RUNNING:
                changed = await request_cancels(connection, tenant_no, [id_], why)
            elif row.state is State.BLOCKED:
                changed = await end_blocked(connection, tenant_no, [id_], why)
            else:
                changed = await end_queued(connection, tenant_no, {id_: why}, CANCEL)
            if changed:
                was, row = row.state, await get_execution(connection, tenant_no, id_)
                assert row is not None
                # One that runs is asked to end: its state changes later.
                before, after = {"state": was.value}, {"state": row.state.value}
                detail = {"state": was.value}
                await record(connection, tenant_no, by, "execution.cancel", id_, detail, before=before, after=after)
                return row
        # A worker took it or gave it back at this moment: look again.
    else:
        raise Conflict(f"The execution {id_} keeps changing state while it is cancelled: try again.")
    await cancel_run(database, dispatcher, tenant_no, id_, by=by)
    async with database.connection() as connection:
        cancelled = await get_execution(connection, tenant_no, id_)
    assert cancelled is not None
    return cancelled


def _may_be_run(row: ExecutionRow) -> bool:
    """A run that has begun has no worker; one that is retried waits again."""
    return row.worker_id is None and row.attempt_no > 0
