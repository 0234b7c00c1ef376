"""The self-check: finds rows that no process owns, repairs, counts and logs them, because each is a bug (P4, P5, L6).

Every state has an owner that will move it on; the self-check verifies that. Tables are walked in the order of their
keys, a few thousand rows a step, one look at a time: without work that is one statement each tick. A row that a look
finds is a suspect. If it is still there, unchanged, some seconds later, it is repaired by a statement that checks it
once more and skips rows that are locked (`model.check`). Findings are counted in the database, by kind, in the
transaction that repairs them. A finding that cannot be repaired is logged again for as long as it is there.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from ondot.flow.dispatch import Dispatcher
from ondot.flow.plan import Planning, Steps, compute_step, write_steps
from ondot.flow.quotas import count_tenants
from ondot.flow.workflows.stranded import move_stranded
from ondot.model.check import MEANINGS, Kind, Memory, Place, Suspect
from ondot.model.ids import ExecutionId, TenantNo
from ondot.model.planning import Timer
from ondot.store.check import (
    Cursor,
    call_overlooked,
    drop_gated,
    drop_leases,
    drop_ready,
    drop_slots,
    drop_waiting,
    find_stuck_timers,
    lease_to_recovery,
    look_at,
    look_at_counts,
    look_at_partitions,
    look_at_timers,
    make_partitions,
    queue_again,
    record_found,
    walk_start,
)
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import FOUND

ROWS_A_LOOK: Final[dict[Place, int]] = {
    "executions": 2_000,
    "ready": 2_000,
    "waiting": 2_000,
    "gated": 2_000,
    "slots": 2_000,
    "lines": 1_000,
    "leases": 20,  # of hundreds of executions each
    "runs": 100,  # of up to 10,000 steps each
    "timers": 50,  # of each partition
    "partitions": 0,
    "counts": 0,
}
"""In the order of a round."""
PLACES: Final = tuple(ROWS_A_LOOK)
REPAIRED_A_PASS: Final = 200
OVERDUE_S: Final = 30.0
LEASES_OVERDUE: Final = 3
NAMED: Final = 5
REPORT: Final = "this is a bug in ondot: please report it with the lines before this one"

Repair = Callable[[Connection, Sequence[Suspect]], Awaitable[Sequence[object]]]

_REPAIRS: Final[dict[Place, Repair]] = {
    "ready": drop_ready,
    "waiting": drop_waiting,
    "gated": drop_gated,
    "slots": drop_slots,
    "lines": call_overlooked,
    "leases": drop_leases,
}

log = get_logger()


async def make_partitions_pass(database: Database) -> int:
    """Make partitions that are missing. Every node does, because without the first of them there is no housekeeper."""
    async with database.connection() as connection:
        made = [str(number) for number in await make_partitions(connection)]
        if made:
            await _count(connection, Kind.PARTITION, made)
            _log_found(Kind.PARTITION, made)
    return 0


class SelfCheck:
    """The self-check of one housekeeper. It remembers suspects only to ignore races: the memory may be lost with it."""

    def __init__(
        self,
        database: Database,
        dispatcher: Dispatcher,
        monotonic: Callable[[], float] = time.monotonic,
        rows_a_look: int | None = None,
    ) -> None:
        """`rows_a_look`: how many rows of a table one step looks at, instead of `ROWS_A_LOOK`."""
        self._database = database
        self._dispatcher = dispatcher
        self._monotonic = monotonic
        self._rows_a_look = rows_a_look
        self._memory = Memory()
        self._place = 0
        self._cursor: Cursor | None = None
        settings = database.settings
        self._overdue_s = max(settings.horizon_s, LEASES_OVERDUE * settings.lease_s, OVERDUE_S)

    async def one_pass(self) -> bool:
        """Repair rows that were suspects long enough, else look further; returns whether there is more to do."""
        if ripe := self._memory.take_ripe(monotonic_s=self._monotonic(), limit=REPAIRED_A_PASS):
            await self._repair_ripe(ripe)
            return True
        if self._memory.is_full:
            return False
        place = PLACES[self._place]
        suspects, self._cursor = await self._look(place)
        self._memory.suspect(suspects, monotonic_s=self._monotonic())
        if self._cursor is not None:
            return True
        self._place = (self._place + 1) % len(PLACES)
        return False

    async def _look(self, place: Place) -> tuple[list[Suspect], Cursor | None]:
        limit = self._rows_a_look or ROWS_A_LOOK[place]
        async with self._database.connection() as connection:
            if place == "timers":
                return await look_at_timers(connection, self._overdue_s, limit), None
            if place == "partitions":
                return await look_at_partitions(connection), None
            if place == "counts":
                return await look_at_counts(connection), None
            cursor = self._cursor or walk_start(place, self._database.clock.now())
            looked = await look_at(connection, place, cursor, limit)
            return looked.suspects, looked.through

    async def _repair_ripe(self, suspects: list[Suspect]) -> None:
        """All of one kind and place."""
        kind, place = suspects[0].kind, suspects[0].place
        if place == "timers":
            return await self._plan(suspects)
        if place == "partitions":
            return await self._name_unowned(suspects)
        if place == "counts":
            return await self._count_again(suspects)
        if place == "runs":
            return await self._move_runs(suspects)
        async with self._database.transaction() as connection:
            repaired = [str(name) for name in await self._repair(connection, suspects)]
            if repaired:
                await _count(connection, kind, repaired)
        if repaired:
            _log_found(kind, repaired)
        return None

    async def _repair(self, connection: Connection, suspects: list[Suspect]) -> Sequence[object]:
        """Returns the ids of those that were repaired."""
        match suspects[0].kind:
            case Kind.RUNNING_OF_GONE_WORKER | Kind.RUNNING_WITHOUT_LEASE:
                lease_ids = self._database.clock.new_ids(len(suspects))
                return await lease_to_recovery(connection, suspects, lease_ids)
            case Kind.UNQUEUED:
                queued = await queue_again(connection, suspects)
                self._dispatcher.wake((entry.pool_no, entry.ready_at) for entry in queued)
                return [entry.id for entry in queued]
            case _:
                return await _REPAIRS[suspects[0].place](connection, suspects)

    async def _plan(self, suspects: list[Suspect]) -> None:
        """Plan overdue timers as any plan does, but by their ids: no bound of a scan hides them here."""
        async with self._database.transaction() as connection:
            timers, now = await find_stuck_timers(connection, suspects)
            if now is None:
                return
            steps, faults = await self._steps(connection, timers, now)
            planned = await write_steps(connection, self._database.clock, steps)
            standing = {timer.job_id for timer in (await find_stuck_timers(connection, suspects))[0]}
            moved = [str(timer.job_id) for timer in timers if timer.job_id not in standing]
            new = self._memory.select_new(suspect for suspect in suspects if suspect.name in faults)
            if moved:
                await _count(connection, Kind.OVERDUE_TIMER, moved)
            if new:
                names = [suspect.name for suspect in new]
                await _count(connection, Kind.OVERDUE_TIMER, names, done=f"not planned: {faults[names[0]]}")
        self._dispatcher.wake(planned.pools)
        if moved:
            _log_found(Kind.OVERDUE_TIMER, moved)
        for job_id, fault in faults.items():
            _log_found(Kind.OVERDUE_TIMER, [job_id], done=f"not planned: {fault}", advice="update or delete the job")

    async def _steps(self, connection: Connection, timers: list[Timer], now: datetime) -> tuple[Steps, dict[str, str]]:
        """The steps of these timers; for those that cannot be planned, why, by their job."""
        horizon_at = now + timedelta(seconds=self._database.settings.horizon_s)
        specs = await self._database.specs.find(connection, [(timer.job_id, timer.job_version) for timer in timers])
        steps: Steps = []
        faults: dict[str, str] = {}
        for timer in timers:
            spec = specs.get((timer.job_id, timer.job_version))
            if spec is None:
                faults[str(timer.job_id)] = f"version {timer.job_version} of its spec is gone, or from a newer release"
                continue
            numbers = await self._database.pools.register(connection, [spec.pool])
            planning = Planning(timer, spec, numbers[spec.pool])
            try:
                steps.append((planning, compute_step(planning, now=now, horizon_at=horizon_at)))
            except Exception as error:  # noqa: BLE001 - a schedule that cannot be computed must not stop the others
                faults[str(timer.job_id)] = f"its schedule cannot be computed: {type(error).__name__}: {error}"
        return steps, faults

    async def _count_again(self, suspects: list[Suspect]) -> None:
        async with self._database.connection() as connection:
            wrong = sorted(set(await look_at_counts(connection)) & set(suspects), key=lambda suspect: suspect.name)
            if not wrong:
                return
            await _count(connection, Kind.WRONG_COUNT, [suspect.name for suspect in wrong])
        await count_tenants(self._database, [TenantNo(int(suspect.name)) for suspect in wrong])
        _log_found(Kind.WRONG_COUNT, [suspect.name for suspect in wrong])

    async def _move_runs(self, suspects: list[Suspect]) -> None:
        moved = [
            suspect.name
            for suspect in suspects
            if await move_stranded(self._database, self._dispatcher, ExecutionId(UUID(suspect.name)))
        ]
        if moved:
            async with self._database.connection() as connection:
                await _count(connection, Kind.STRANDED_RUN, moved)
            _log_found(Kind.STRANDED_RUN, moved)

    async def _name_unowned(self, suspects: list[Suspect]) -> None:
        async with self._database.transaction() as connection:
            unowned = set(await look_at_partitions(connection)) & set(suspects)
            if new := self._memory.select_new(unowned):
                await _count(connection, Kind.PARTITION, sorted(suspect.name for suspect in new))
        if unowned:
            _log_found(Kind.PARTITION, sorted(suspect.name for suspect in unowned), done="left to the schedulers")


async def _count(connection: Connection, kind: Kind, names: list[str], *, done: str | None = None) -> None:
    example: dict[str, Any] = {"ids": names[:NAMED], "done": done or MEANINGS[kind].done}
    await record_found(connection, kind, len(names), example)
    FOUND.labels(kind.value).inc(len(names))


def _log_found(kind: Kind, names: list[str], *, done: str | None = None, advice: str = REPORT) -> None:
    meaning = MEANINGS[kind]
    log.error(
        "self_check.found",
        kind=kind.value,
        count=len(names),
        ids=names[:NAMED],
        what=meaning.what,
        then=done or meaning.done,
        advice=advice,
    )
