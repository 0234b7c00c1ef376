"""Housekeeping of runs (W8): what no end of a step brings about, looked for each second.

Arrivals that are older than a second: the process that wrote them died before it advanced the run, or found the row
locked by one that died. Runs whose `look_at` is due: their timeout, or the end of `blocked_for`. Runs that were asked
to end (overlap, a deleted tenant): no worker has them, so no worker sees the request. Steps that wait for a time.
"""

from collections.abc import Callable, Collection
from uuid import UUID

from ondot.flow.dispatch import Dispatcher
from ondot.flow.workflows.control import stop_run
from ondot.flow.workflows.waits import end_waits_pass
from ondot.store.arrivals import find_old_arrivals
from ondot.store.database import Database
from ondot.store.runs import find_cancelled_runs, find_due_runs

OLD_S = 1.0
AT_ONCE = 1_000

Request = Callable[[Collection[UUID]], None]


async def due_pass(database: Database, dispatcher: Dispatcher, request: Request) -> int:
    """Ask for advances of the runs that need one (`request`: that of an Advancer); returns how many there were."""
    due: set[UUID] = set(await end_waits_pass(database))
    async with database.connection() as connection:
        due.update(await find_due_runs(connection, AT_ONCE))
        due.update(await find_old_arrivals(connection, OLD_S, AT_ONCE))
        cancelled = await find_cancelled_runs(connection, AT_ONCE)
    for run_id, reason in cancelled:
        await stop_run(database, dispatcher, run_id, reason or "cancelled")
    request(due | {run_id for run_id, _ in cancelled})
    return 0
