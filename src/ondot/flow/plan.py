"""② Look ahead: turn the coming fires of owned partitions into executions, before they are due (S6, E11, C2).

Each pass plans the timers that are due before the horizon, earliest first: executions with a future `ready_at`, and
the next fire in the timer, in one statement with a compare-and-set on where the timer stood. So at the full hour
nothing is left to be computed, and a node that dies delays nothing that is nearer than the horizon. Plan decides only
*when*; all else is decided when due. Jitter moves `ready_at`, never `fire_at`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ondot.flow.dispatch import Dispatcher
from ondot.model.execution import PriorityClass
from ondot.model.ids import EPOCH, ExecutionId, JobId, PoolNo
from ondot.model.job import JobSpec
from ondot.model.planning import SkippedRange, Timer, advance
from ondot.model.schedule import jitter_offset
from ondot.store.clock import DatabaseClock
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.timers import Move, Planned, PlannedFire, due_timers, plan_fires
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import DOUBLE_FIRES, FIRES_PLANNED, FIRES_SKIPPED, PLAN_CONFLICTS

FIRES_A_STATEMENT = 1_000
FIRES_A_TIMER = 100

BOUND_BEHIND = timedelta(seconds=2)
"""How far behind the last planned fire a scan begins: commits may come in another order than their instants."""
FULL_SCAN_EVERY = 5
"""Every fifth pass scans from the start, for timers that were committed late."""

log = get_logger()


@dataclass(frozen=True, slots=True)
class Planning:
    """A timer, what it fires, and the pool its executions go to."""

    timer: Timer
    spec: JobSpec
    pool_no: PoolNo


async def plan_timers(
    connection: Connection,
    clock: DatabaseClock,
    plannings: Iterable[Planning],
    *,
    now: datetime,
    horizon_at: datetime,
) -> Planned:
    """Plan what these timers owe up to the horizon, at most a statement's worth: one statement, one place."""
    moves: list[Move] = []
    fires: list[PlannedFire] = []
    skipped: list[tuple[JobId, SkippedRange]] = []
    for planning in plannings:
        if len(fires) >= FIRES_A_STATEMENT:
            break
        timer, spec = planning.timer, planning.spec
        assert spec.schedule is not None
        step = advance(spec.schedule, timer, now=now, horizon_at=horizon_at, limit=FIRES_A_TIMER)
        moves.append(
            Move(
                timer,
                step.next_fire_at,
                step.fired_through,
                step.fires_left,
                ends=step.next_fire_at is None and not spec.recurs and spec.key is None and timer.version == 1,
            )
        )
        later = jitter_offset(timer.job_id, spec.schedule.jitter_s)
        fires.extend(
            PlannedFire(
                ExecutionId(clock.new_id()),
                timer.job_id,
                fire_at,
                fire_at + later,
                planning.pool_no,
                int(priority_class),
            )
            for instants, priority_class in (
                (step.catch_up, PriorityClass.CATCH_UP),
                (step.fires, spec.priority_class),
            )
            for fire_at in instants
        )
        if step.skipped:
            skipped.append((timer.job_id, step.skipped))
            FIRES_SKIPPED.labels(step.skipped.reason).inc(step.skipped.count)
            # Coalesced ones were run, as one; those of the other policies were not.
            (log.info if step.skipped.reason == "coalesced" else log.warning)(
                "fires.skipped",
                job_id=str(timer.job_id),
                reason=step.skipped.reason,
                count=step.skipped.count,
                from_at=step.skipped.from_at.isoformat(),
                to_at=step.skipped.to_at.isoformat(),
            )
    planned = await plan_fires(connection, moves, fires, skipped)
    FIRES_PLANNED.inc(planned.planned)
    PLAN_CONFLICTS.inc(len(moves) - planned.moved)
    if planned.moved == len(moves):
        DOUBLE_FIRES.inc(len(fires) - planned.planned)
    return planned


class Planner:
    """Plans the partitions of one node. Holds only how far each partition's scan may begin: lost with the node."""

    def __init__(self, database: Database, dispatcher: Dispatcher) -> None:
        self._database = database
        self._dispatcher = dispatcher
        self._from_ats: dict[int, datetime] = {}
        self._passes = 0

    async def one_pass(self, partitions: Sequence[int]) -> int:
        """Plan one statement's worth of the timers due before the horizon; gives how many timers moved."""
        if not partitions:
            return 0
        horizon_s = self._database.settings.horizon_s
        async with self._database.connection() as connection:
            timers, now = await due_timers(
                connection,
                partitions,
                self._scan_from(partitions),
                horizon_s=horizon_s,
                limit=FIRES_A_STATEMENT,
            )
            if now is None:
                return 0
            plannings = await self._plannings(connection, timers)
            planned = await plan_timers(
                connection,
                self._database.clock,
                plannings,
                now=now,
                horizon_at=now + timedelta(seconds=horizon_s),
            )
        # What did not move (locked, or more than a statement holds) must be seen again: the bound stays before it.
        for timer in timers if planned.moved == len(timers) else reversed(timers):
            assert timer.next_fire_at is not None
            self._from_ats[timer.partition_no] = min(timer.next_fire_at, now) - BOUND_BEHIND
        self._dispatcher.wake(planned.pools)
        return planned.moved

    def _scan_from(self, partitions: Sequence[int]) -> list[datetime]:
        self._passes += 1
        if self._passes % FULL_SCAN_EVERY == 0:
            return [EPOCH] * len(partitions)
        return [self._from_ats.get(partition_no, EPOCH) for partition_no in partitions]

    async def _plannings(self, connection: Connection, timers: Sequence[Timer]) -> list[Planning]:
        specs = await self._database.specs.find(connection, [(timer.job_id, timer.job_version) for timer in timers])
        plannings = []
        for timer in timers:
            spec = specs.get((timer.job_id, timer.job_version))
            if spec is None:
                log.error("timer.without_spec", job_id=str(timer.job_id), version=timer.job_version)
                continue
            pools = await self._database.pools.numbers(connection, timer.tenant_no, [spec.pool])
            plannings.append(Planning(timer, spec, pools[spec.pool]))
        return plannings
