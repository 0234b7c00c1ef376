"""②c Admit executions of limited jobs when they are due (E12, E13, E16, P11).

Such an execution waits before the first gate it has not passed, and costs nothing there. A worker admits before it
leases, and each second while it has no room. At rates it admits with the lease, because that is when a token is taken.
PostgreSQL admits (`ondot.admit`), and returns the executions that must make room or must not wait. They are ended
here, by the statements that end any other execution. If a pass dies in between, they stay in line for the next pass.
"""

from collections.abc import Sequence

from ondot.model.execution import CANCEL, SKIP
from ondot.model.ids import ExecutionId, PoolNo
from ondot.store.database import Database
from ondot.store.endings import end_queued, find_past_deadline, request_cancels
from ondot.store.gates import call_delayed_lines, forget_gates
from ondot.store.newest import NO_ID
from ondot.store.pools import add_missing_slots
from ondot.store.queue import Verdict, admit
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import EXECUTIONS_SKIPPED

DEADLINES_A_PASS = 500
GATES_A_PASS = 2_000
FEW = 10
"""If fewer than one gate in ten could be removed, the next pass may wait for its minute."""

log = get_logger()


async def admit_pass(database: Database, pool_nos: Sequence[PoolNo]) -> int:
    """Admit once at the gates of these pools, except rates. Returns how many executions something changed for."""
    async with database.connection() as connection:
        verdicts = await admit(connection, pool_nos)
    if skip := _ids_with(verdicts, "skip"):
        await skip_queued(database, skip, "overlap")
    if replace := _ids_with(verdicts, "replace"):
        async with database.transaction() as connection:
            await end_queued(connection, None, dict.fromkeys(replace, "overlap: a newer fire took its place"), CANCEL)
    if cancel := _ids_with(verdicts, "cancel"):
        async with database.connection() as connection:
            asked = await request_cancels(connection, None, cancel, "overlap: the next fire is due")
            # One that waits for its next attempt has its slot, but no worker that could see the request.
            waiting = [id_ for id_ in cancel if id_ not in set(asked)]
        if waiting:
            async with database.transaction() as connection:
                await end_queued(connection, None, dict.fromkeys(waiting, "overlap: the next fire is due"), CANCEL)
    return len(verdicts)


async def expire_pass(database: Database) -> int:
    """Skip the executions that did not start by their deadline. Returns how many."""
    async with database.connection() as connection:
        late = await find_past_deadline(connection, DEADLINES_A_PASS)
    return await skip_queued(database, late, "expired") if late else 0


async def skip_queued(database: Database, ids: Sequence[ExecutionId], reason: str) -> int:
    async with database.transaction() as connection:
        skipped = await end_queued(connection, None, dict.fromkeys(ids, reason), SKIP)
    EXECUTIONS_SKIPPED.labels(reason).inc(len(skipped))
    for id_ in skipped:
        log.info("execution.skipped", execution_id=str(id_), reason=reason)
    return len(skipped)


class Tidying:
    """Removes gates that no execution waits at, and repairs what a change of the clock or of limits left behind.

    A pass looks at some gates and the next pass continues there: with 300,000 gates in use, looking at all of them
    each minute would be for nothing. While many can be removed the next pass follows at once. Slots without an
    execution are not looked for here: they must not exist, and the self-check reports them.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._after = NO_ID

    async def one_pass(self) -> int:
        """Returns how many gates it removed, or 0 if they were few of those it looked at."""
        async with self._database.connection() as connection:
            await call_delayed_lines(connection)
            # For attempts whose lease was on its way when their pool got its limit.
            await add_missing_slots(connection)
            forgotten = await forget_gates(connection, self._after, GATES_A_PASS)
        self._after = forgotten.through or NO_ID
        return forgotten.removed if forgotten.removed * FEW >= forgotten.looked_at else 0


def _ids_with(verdicts: Sequence[Verdict], verdict: str) -> list[ExecutionId]:
    return sorted({entry.execution_id for entry in verdicts if entry.verdict == verdict})
