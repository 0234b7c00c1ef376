"""②c Admit executions of limited jobs when they are due (E12, E13, E16, P11).

Such an execution stands in line before the first gate it has not passed, and costs nothing there. A worker admits
before it leases, and each second while it has no room; at rates with the lease, since that is when a token is taken.
PostgreSQL lets through who may (`ondot.admit`), and says who has to make room or is not to wait; what becomes
of those is written here, by the statements that end any other execution. A pass that dies in between leaves
them in line, and the next finds them there.
"""

from collections.abc import Sequence

from ondot.model.execution import CANCEL, SKIP
from ondot.model.ids import ExecutionId, PoolNo
from ondot.store.database import Database
from ondot.store.endings import end_queued, past_deadline, request_cancels
from ondot.store.gates import call_put_off, forget_gates
from ondot.store.newest import NO_ID
from ondot.store.pools import slot_running
from ondot.store.queue import Verdict, admit
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import EXECUTIONS_SKIPPED

DEADLINES_A_PASS = 500
GATES_A_PASS = 2_000
FEW = 10
"""One gate in so many to be forgotten is not many: the next pass may wait for its minute."""

log = get_logger()


async def admit_pass(database: Database, pool_nos: Sequence[PoolNo]) -> int:
    """Admit once at the gates of these pools, but for rates; gives for how many executions something changed."""
    async with database.connection() as connection:
        verdicts = await admit(connection, pool_nos)
    if skip := _those(verdicts, "skip"):
        await skip_queued(database, skip, "overlap")
    if replace := _those(verdicts, "replace"):
        async with database.transaction() as connection:
            await end_queued(connection, None, dict.fromkeys(replace, "overlap: a newer fire took its place"), CANCEL)
    if cancel := _those(verdicts, "cancel"):
        async with database.connection() as connection:
            asked = await request_cancels(connection, None, cancel, "overlap: the next fire is due")
            # One that waits for its next attempt holds its slot, and will not hear of it.
            waiting = [id_ for id_ in cancel if id_ not in set(asked)]
        if waiting:
            async with database.transaction() as connection:
                await end_queued(connection, None, dict.fromkeys(waiting, "overlap: the next fire is due"), CANCEL)
    return len(verdicts)


async def expire_pass(database: Database) -> int:
    """Skip what was not started by its deadline; gives how many."""
    async with database.connection() as connection:
        late = await past_deadline(connection, DEADLINES_A_PASS)
    return await skip_queued(database, late, "expired") if late else 0


async def skip_queued(database: Database, ids: Sequence[ExecutionId], reason: str) -> int:
    async with database.transaction() as connection:
        skipped = await end_queued(connection, None, dict.fromkeys(ids, reason), SKIP)
    EXECUTIONS_SKIPPED.labels(reason).inc(len(skipped))
    for id_ in skipped:
        log.info("execution.skipped", execution_id=str(id_), reason=reason)
    return len(skipped)


class Tidying:
    """Forgets gates that nobody stands before, and sees to what a change of clock or limits left behind.

    A pass looks at some gates, and the next ones go on from there: of 300,000 that live all would be looked at each
    minute, for nothing. While many of them are to be forgotten the next pass follows at once. Slots that nobody holds
    are the self-check's: they must not be.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._after = NO_ID

    async def one_pass(self) -> int:
        """Returns how many gates it forgot, or 0 if they were few of those it looked at."""
        async with self._database.connection() as connection:
            await call_put_off(connection)
            # What was just being leased when a pool got its limit.
            await slot_running(connection)
            forgotten = await forget_gates(connection, self._after, GATES_A_PASS)
        self._after = forgotten.through or NO_ID
        return forgotten.removed if forgotten.removed * FEW >= forgotten.looked_at else 0


def _those(verdicts: Sequence[Verdict], verdict: str) -> list[ExecutionId]:
    return sorted({entry.execution_id for entry in verdicts if entry.verdict == verdict})
