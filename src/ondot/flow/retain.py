"""Keep house: remove rows that have ended and are older than the retention, forget workers and nodes that are gone, and
sweep queue rows that were committed too late for any worker to see them.

A pass removes one bounded batch of each kind, by an index on age, with SKIP LOCKED, and is repeated at once while there
is more: it removes more than a thousand rows a second. A kind that fails or takes too long does not stop the others.
docs/reference/operations.md states for every table what bounds it.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from ondot.flow.channels.deliver import end_abandoned
from ondot.flow.dispatch import Dispatcher
from ondot.store.channels import forget_deliveries, retire_channel_jobs
from ondot.store.conditions import forget_conditions
from ondot.store.database import Database
from ondot.store.dependencies import end_blocked, find_stuck
from ondot.store.events import forget_event_keys
from ondot.store.idempotency import forget_keys
from ondot.store.incidents import forget_incidents
from ondot.store.known_functions import forget_functions, forget_unknown_calls, mark_live_functions
from ondot.store.logs import forget_checkpoints
from ondot.store.newest import NO_ID
from ondot.store.nodes import forget_nodes
from ondot.store.queue import forget_idle_counts, sweep_late_ready
from ondot.store.removal import forget_tenants
from ondot.store.retain import (
    BEGIN,
    Aged,
    Over,
    Place,
    forget,
    forget_traces,
    forget_versions,
    lock_over_jobs,
    remove_jobs,
)
from ondot.store.sessions import forget_failures, forget_sessions
from ondot.store.unique_keys import forget_claims
from ondot.store.workers import forget_workers
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import SWEPT

FUNCTION_DAYS = 14
"""How long a function that no worker runs stays known."""
ROWS_A_PASS = 1_000
INCIDENTS_A_PASS = 5
"""Each may have ten thousand causes."""
JOBS_A_PASS = 200
"""Each has versions, whose specs may be large; and the tables of all days in which they were created are locked."""

log = get_logger()

Batch = Callable[[], Awaitable[int]]


async def sweep_pass(database: Database, dispatcher: Dispatcher) -> int:
    """Re-insert rows below every live worker's bound (from callers' long transactions); returns how many."""
    async with database.connection() as connection:
        swept = await sweep_late_ready(connection, ROWS_A_PASS)
    now = database.clock.now()
    dispatcher.wake((pool_no, now) for pool_no in swept)
    count = sum(swept.values())
    if count:
        SWEPT.inc(count)
        log.warning("ready.swept", count=count)
    return count


class Retention:
    """The progress of the kinds that are walked through, and which are done for this round."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._days = database.settings.retention_days
        self._checkpoint = NO_ID
        self._trace = NO_ID
        self._places: dict[Over, Place] = {"ended": BEGIN, "deleted": BEGIN}
        self._kinds: dict[str, Batch] = {
            "fleet": self._forget_fleet,
            "functions": self._forget_functions,
            "keys": self._forget_keys,
            "event keys": self._forget_event_keys,
            "claims": self._forget_claims,
            "sessions": self._forget_sessions,
            "checkpoints": self._forget_checkpoints,
            "ended jobs": partial(self._forget_jobs, "ended"),
            "deleted jobs": partial(self._forget_jobs, "deleted"),
            "versions": self._forget_versions,
            "letters": partial(self._forget_aged, "letters"),
            "skipped": partial(self._forget_aged, "skipped"),
            "backfills": partial(self._forget_aged, "backfills"),
            "bulks": partial(self._forget_aged, "bulks"),
            "runs": partial(self._forget_aged, "runs"),
            "traces": self._forget_traces,
            "deliveries": self._forget_deliveries,
            "incidents": self._forget_incidents,
            "blocked jobs": self._end_blocked,
            "tenants": self._forget_tenants,
        }
        self._done: set[str] = set()

    async def one_pass(self) -> int:
        """A batch of each kind that has more to do; returns how many have."""
        for kind, forget_batch in self._kinds.items():
            if kind in self._done:
                continue
            try:
                has_more = await forget_batch()
            except Exception:  # one that fails is tried again with the next tick, after the others
                log.exception("retain.failed", kind=kind)
                has_more = 0
            if not has_more:
                self._done.add(kind)
        left = len(self._kinds) - len(self._done)
        if not left:
            self._done.clear()
        return left

    async def _forget_fleet(self) -> int:
        async with self._database.connection() as connection:
            await forget_workers(connection)
            await forget_idle_counts(connection)
            await forget_nodes(connection)
        return 0

    async def _forget_functions(self) -> int:
        async with self._database.connection() as connection:
            await mark_live_functions(connection)
            if await forget_unknown_calls(connection, ROWS_A_PASS):
                return 1
            return await forget_functions(connection, FUNCTION_DAYS, ROWS_A_PASS)

    async def _forget_keys(self) -> int:
        async with self._database.connection() as connection:
            return await forget_keys(connection, ROWS_A_PASS)

    async def _forget_event_keys(self) -> int:
        async with self._database.connection() as connection:
            return await forget_event_keys(connection, ROWS_A_PASS)

    async def _forget_sessions(self) -> int:
        async with self._database.connection() as connection:
            sessions = await forget_sessions(connection, self._database.settings.session_idle_s, ROWS_A_PASS)
            return sessions + await forget_failures(connection, ROWS_A_PASS)

    async def _end_blocked(self) -> int:
        """Jobs that wait for one which failed long ago: nothing was done about it, and nothing would end them."""
        async with self._database.transaction() as connection:
            ids = await find_stuck(connection, self._days, JOBS_A_PASS)
            reason = f"a job that it depends on did not succeed, and nothing was done for {self._days} days"
            return len(await end_blocked(connection, None, ids, reason)) if ids else 0

    async def _forget_claims(self) -> int:
        async with self._database.connection() as connection:
            return await forget_claims(connection, ROWS_A_PASS)

    async def _forget_checkpoints(self) -> int:
        """A batch of a walk through all of them; the next follows at once until the end is reached."""
        async with self._database.connection() as connection:
            through = await forget_checkpoints(connection, self._checkpoint, ROWS_A_PASS)
        self._checkpoint = through or NO_ID
        return through is not None

    async def _forget_traces(self) -> int:
        """The same for traces of old executions."""
        async with self._database.connection() as connection:
            through = await forget_traces(connection, self._days, self._trace, ROWS_A_PASS)
        self._trace = through or NO_ID
        return through is not None

    async def _forget_jobs(self, over: Over) -> int:
        """A batch of a walk through jobs that have been over for long enough; some stay, and are skipped."""
        async with self._database.transaction() as connection:
            ids, place = await lock_over_jobs(connection, over, self._days, self._places[over], JOBS_A_PASS)
            removed = await remove_jobs(connection, ids) if ids else 0
        self._places[over] = place or BEGIN
        if removed:
            log.info("jobs.removed", count=removed, because=f"{over} {self._days} days ago")
        return place is not None

    async def _forget_versions(self) -> int:
        async with self._database.transaction() as connection:
            return await forget_versions(connection, self._days, JOBS_A_PASS)

    async def _forget_deliveries(self) -> int:
        async with self._database.transaction() as connection:
            await end_abandoned(connection)
        async with self._database.connection() as connection:
            await retire_channel_jobs(connection)
            return await forget_deliveries(connection, self._days, ROWS_A_PASS)

    async def _forget_incidents(self) -> int:
        async with self._database.connection() as connection:
            await forget_conditions(connection)
            return await forget_incidents(connection, self._days, INCIDENTS_A_PASS)

    async def _forget_tenants(self) -> int:
        async with self._database.connection() as connection:
            await forget_tenants(connection, self._days)
        return 0

    async def _forget_aged(self, aged: Aged) -> int:
        async with self._database.connection() as connection:
            return await forget(connection, aged, self._days, ROWS_A_PASS)
