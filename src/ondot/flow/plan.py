"""② Look ahead: turn the coming fires of owned partitions into executions, before they are due (S6, E11, C2).

Each pass plans the timers that are due before the horizon, earliest first. One statement makes executions with a future
`ready_at` and writes the next fire into the timer, with a compare-and-set on the fire that it had. So at the full hour
nothing is left to compute, and a node that dies delays nothing that is nearer than the horizon. Plan decides only
*when*; everything else is decided when the execution is due. Jitter moves `ready_at`, never `fire_at`.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

from msgspec import Struct

from ondot.flow.dispatch import Dispatcher
from ondot.flow.suspension import leave_out_timers
from ondot.model.errors import Unavailable
from ondot.model.execution import PriorityClass
from ondot.model.gates import encode_stages
from ondot.model.ids import EPOCH, JobId, PoolNo, TenantNo
from ondot.model.job import JobSpec
from ondot.model.misfire import MissedPolicy
from ondot.model.planning import EXECUTION_AHEAD, SkippedRange, Step, Timer, advance
from ondot.model.schedule import Schedule, start_delay
from ondot.model.schedule.looks import A_TURN, TooCostly, allowed
from ondot.model.schedule.rule import is_quick
from ondot.store.adaptive_batch import AdaptiveBatch
from ondot.store.clock import DatabaseClock
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.timers import Move, NewOwed, Planned, PlannedFire, find_due_timers, is_crowded, plan_fires
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import COSTLY_PLANS, DOUBLE_FIRES, FIRES_PLANNED, FIRES_SKIPPED, PLAN_CONFLICTS

TIMERS_A_SCAN = 10_000
"""A smaller scan of a herd would read as much, because it selects the earliest timers of all partitions."""
FIRES_A_STATEMENT = 1_000
STATEMENTS_AT_ONCE = 2
FIRES_A_TIMER = 100
COMPUTED_S = 0.25
CATCH_UP_AT_ONCE = 100
"""Executions of one job's catch-up that may be live at once, so that an outage does not fill the queue with one job."""

BOUND_BEHIND = timedelta(seconds=2)
"""How far behind the last planned fire a scan starts: timers may commit in another order than their instants."""
FULL_SCAN_EVERY = 5
"""Every fifth pass scans from the start, for timers that were committed late."""
FURTHER = 3
"""How far ahead to plan while a crowd is coming: this many horizons."""
COSTLY_FOUND_AT_ONCE = 20
LOOKS_IN_THREAD = 500_000
"""What a job may cost when it is planned alone, in a thread: about 2 s. Among others it is `A_TURN`."""
COSTLY_A_PASS = 2
"""Jobs that are planned alone in a pass, after the others; further ones wait for the next pass."""
RETRY_UNPLANNABLE_EVERY = 60
"""Timers that cannot be planned are left out, so that they do not fill every pass, and are retried every 60 passes."""

log = get_logger()


class Planning(Struct, frozen=True, gc=False):
    """A timer, the spec that it fires, and the pool of its executions; `resumes` as in `advance`."""

    timer: Timer
    spec: JobSpec
    pool_no: PoolNo
    resumes: MissedPolicy | None = None


Steps = list[tuple[Planning, Step]]
Result = TypeVar("Result")


def compute_step(planning: Planning, *, now: datetime, horizon_at: datetime, looks: int = LOOKS_IN_THREAD) -> Step:
    """What a timer does up to the horizon. Raises TooCostly beyond `looks`, unless these are the most there are."""
    schedule = schedule_of(planning)
    if is_quick(schedule):
        return _advance(planning, schedule, now, horizon_at)
    with allowed(looks, is_strict=looks < LOOKS_IN_THREAD):
        return _advance(planning, schedule, now, horizon_at)


def schedule_of(planning: Planning) -> Schedule:
    assert planning.spec.schedule is not None, "submit completes every schedule"
    return planning.spec.schedule


async def _compute_step_off_loop(planning: Planning, *, now: datetime, horizon_at: datetime) -> Step:
    """`compute_step`, in a thread if it takes long."""
    try:
        return compute_step(planning, now=now, horizon_at=horizon_at, looks=A_TURN)
    except TooCostly:
        return await asyncio.to_thread(compute_step, planning, now=now, horizon_at=horizon_at)


async def compute_schedule(schedule: Schedule, compute: Callable[[], Result]) -> Result:
    """Compute something about a schedule; in a thread, if it may take long."""
    return compute() if is_quick(schedule) else await asyncio.to_thread(compute)


def _advance(planning: Planning, schedule: Schedule, now: datetime, horizon_at: datetime) -> Step:
    return advance(
        schedule,
        planning.timer,
        now=now,
        horizon_at=horizon_at,
        limit=FIRES_A_TIMER,
        resumes=planning.resumes,
    )


async def plan_timers(
    connection: Connection,
    clock: DatabaseClock,
    plannings: Iterable[Planning],
    *,
    now: datetime,
    horizon_at: datetime,
) -> Planned:
    """Plan the fires of these timers up to the horizon, as many as fit into a statement; the rest is left to a pass."""
    steps: Steps = []
    fires = 0
    for planning in plannings:
        if fires >= FIRES_A_STATEMENT:
            break
        step = await _compute_step_off_loop(planning, now=now, horizon_at=horizon_at)
        fires += _weight(step)
        steps.append((planning, step))
    return await write_steps(connection, clock, steps)


async def write_steps(connection: Connection, clock: DatabaseClock, steps: Steps) -> Planned:
    """Write the steps of these timers, in one statement."""
    ids = iter(clock.new_ids(sum(_count_ids(step) for _, step in steps), not_before=_earliest_id_at(steps)))
    moves: list[Move] = []
    fires: list[PlannedFire] = []
    skipped: list[tuple[JobId, SkippedRange]] = []
    owed: list[NewOwed] = []
    for planning, step in steps:
        timer, spec = planning.timer, planning.spec
        is_over = step.next_fire_at is None and not spec.recurs and spec.key is None and timer.version == 1
        moves.append(Move(timer, step.next_fire_at, step.fired_through, step.fires_left, is_over))
        fires += _make_fires(planning, step, ids)
        if step.owed:
            owed.append(NewOwed(next(ids), timer.job_id, step.owed))
        if step.skipped:
            skipped.extend((timer.job_id, entry) for entry in step.skipped)
    planned = await plan_fires(connection, moves, fires, skipped, owed, live_at_once=CATCH_UP_AT_ONCE)
    FIRES_PLANNED.inc(planned.planned)
    PLAN_CONFLICTS.inc(len(moves) - planned.moved)
    if planned.moved == len(moves):
        for job_id, entry in skipped:
            report_skipped(job_id, entry)
        DOUBLE_FIRES.inc(len(fires) - planned.planned)
    return planned


def _earliest_id_at(steps: Steps) -> datetime | None:
    """The earliest instant for ids: history is searched from EXECUTION_AHEAD before a fire on."""
    fires = (step.fires[-1] if step.fires else step.catch_up for _, step in steps)
    last_at = max((fire_at for fire_at in fires if fire_at is not None), default=None)
    return None if last_at is None else last_at - EXECUTION_AHEAD


def _count_ids(step: Step) -> int:
    return len(step.fires) + (step.catch_up is not None) + (step.owed is not None)


def _make_fires(planning: Planning, step: Step, ids: Iterator[UUID]) -> list[PlannedFire]:
    timer, spec, pool_no = planning.timer, planning.spec, planning.pool_no
    assert spec.schedule is not None
    later = start_delay(spec.schedule, timer.job_id) if spec.schedule.jitter_s or spec.schedule.spread_s else None
    stages = encode_stages(spec.limits, timer.tenant_no, timer.job_id)
    deadline = None if spec.start_deadline_s is None else timedelta(seconds=spec.start_deadline_s)
    fires: list[PlannedFire] = []
    if step.catch_up:
        # A catch-up is always late: it has no start deadline.
        ready_at = None if later is None else step.catch_up + later
        class_ = int(PriorityClass.CATCH_UP)
        fires.append(
            PlannedFire(next(ids), timer.job_id, step.catch_up, ready_at, pool_no, class_, stages, None, False)
        )
    class_ = int(spec.priority_class)
    for fire_at in step.fires:
        ready_at = None if later is None else fire_at + later
        start_by = None if deadline is None else (ready_at or fire_at) + deadline
        fires.append(PlannedFire(next(ids), timer.job_id, fire_at, ready_at, pool_no, class_, stages, start_by, True))
    return fires


def report_skipped(job_id: JobId, skipped: SkippedRange) -> None:
    FIRES_SKIPPED.labels(skipped.reason).inc(skipped.count or 1)
    # Misfires should have run and will not; the others were coalesced, or were not wanted.
    (log.warning if skipped.reason == "misfire" else log.info)(
        "fires.skipped",
        job_id=str(job_id),
        reason=skipped.reason,
        count=skipped.count,
        from_at=skipped.from_at.isoformat(),
        to_at=skipped.to_at.isoformat(),
    )


def _weight(step: Step) -> int:
    """How many rows of a statement a step takes."""
    return len(step.fires) + len(step.skipped) + (step.catch_up is not None) + (step.owed is not None)


class Planner:
    """Plans the partitions of one node. Its memory only saves work, and may be lost with the node."""

    def __init__(self, database: Database, dispatcher: Dispatcher, *, crowd: int = TIMERS_A_SCAN) -> None:
        """`crowd`: if this many fires are due soon after the horizon, they are planned sooner."""
        self._database = database
        self._dispatcher = dispatcher
        self._crowd = crowd
        self._is_crowded = False
        self._from_ats: dict[int, datetime] = {}
        self._unplannable: set[JobId] = set()
        self._costly: dict[JobId, Planning] = {}
        self._known_costly: set[JobId] = set()
        self._passes = 0
        self._at_once = AdaptiveBatch(FIRES_A_STATEMENT)
        self._stopped: frozenset[TenantNo] = frozenset()
        self._full_scans = 0

    async def one_pass(self, partitions: Sequence[int]) -> int:
        """Plan the timers due before the horizon, at most TIMERS_A_SCAN; returns how many of them moved."""
        if not partitions:
            return 0
        stopped = await self._look_at_tenants()
        async with self._database.connection() as connection:
            horizon_s = await self._horizon_s(connection, partitions)
            timers, now = await find_due_timers(
                connection,
                partitions,
                self._scan_from(partitions),
                horizon_s=horizon_s,
                limit=TIMERS_A_SCAN,
                without=self._unplannable,
            )
            if now is None:
                return 0
            found = len(timers)
            if stopped:
                timers = await leave_out_timers(connection, timers, stopped)
        horizon_at = now + timedelta(seconds=horizon_s)
        moved = await self._plan_all(timers, now, horizon_at)
        moved += await self._plan_costly(now, horizon_at)
        # Timers that did not move (locked, or too many for a statement) must be read again: the bound stays before.
        for timer in timers if moved == len(timers) else reversed(timers):
            assert timer.next_fire_at is not None
            self._from_ats[timer.partition_no] = min(timer.next_fire_at, now) - BOUND_BEHIND
        return moved + found - len(timers)

    async def _look_at_tenants(self) -> frozenset[TenantNo]:
        """Tenants that are not active. After one was resumed, its timers come back behind the bounds of the scan."""
        stopped = await self._database.tenants.stopped()
        if self._stopped - stopped:
            self._full_scans = FULL_SCAN_EVERY
        self._stopped = stopped
        return stopped

    async def _horizon_s(self, connection: Connection, partitions: Sequence[int]) -> float:
        """How far ahead to plan: further while a crowd is coming, which takes longer to plan than the horizon lasts."""
        near_s = self._database.settings.horizon_s
        far_s = near_s * FURTHER
        if self._passes % FULL_SCAN_EVERY == 0:
            self._is_crowded = await is_crowded(connection, partitions, from_s=near_s, to_s=far_s, crowd=self._crowd)
        return far_s if self._is_crowded else near_s

    async def _plan_all(self, timers: list[Timer], now: datetime, horizon_at: datetime) -> int:
        """Plan statement by statement, earliest first; while PostgreSQL writes one, the next is computed."""
        rest = timers

        async def plan_batches() -> int:
            nonlocal rest
            moved = 0
            async with self._database.connection() as connection:
                while rest:
                    batch, rest = rest[: self._at_once.size], rest[self._at_once.size :]
                    with self._at_once.adapt(len(batch)):
                        steps = self._compute_steps(await self._read_plannings(connection, batch), now, horizon_at)
                        planned = await write_steps(connection, self._database.clock, steps)
                    self._dispatcher.wake(planned.pools)
                    moved += planned.moved
            return moved

        if len(timers) <= FIRES_A_STATEMENT:
            return await plan_batches()
        try:
            async with asyncio.TaskGroup() as group:
                writing = [group.create_task(plan_batches()) for _ in range(STATEMENTS_AT_ONCE)]
        except ExceptionGroup as errors:
            away, others = errors.split(Unavailable)
            if away is None or others is not None:
                raise
            raise away.exceptions[0] from None
        return sum(task.result() for task in writing)

    def _compute_steps(self, plannings: list[Planning], now: datetime, horizon_at: datetime) -> Steps:
        """Compute the steps of one statement, and no more than the event loop can bear at once."""
        steps: Steps = []
        fires = found_costly = 0
        started_s = time.monotonic()
        for planning in plannings:
            if fires >= FIRES_A_STATEMENT or (steps and time.monotonic() - started_s > COMPUTED_S):
                break
            if planning.timer.job_id in self._known_costly:
                self._costly[planning.timer.job_id] = planning
                continue
            if found_costly >= COSTLY_FOUND_AT_ONCE and not is_quick(schedule_of(planning)):
                continue  # more of them at once would block the loop: the next pass reaches it
            try:
                step = compute_step(planning, now=now, horizon_at=horizon_at, looks=A_TURN)
            except TooCostly:
                found_costly += 1
                self._costly[planning.timer.job_id] = planning
                self._known_costly.add(planning.timer.job_id)
                continue
            except Exception:  # a schedule this node cannot compute must not stop all the others
                log.exception("timer.unplannable", job_id=str(planning.timer.job_id))
                self._unplannable.add(planning.timer.job_id)
                continue
            fires += _weight(step)
            steps.append((planning, step))
        return steps

    async def _plan_costly(self, now: datetime, horizon_at: datetime) -> int:
        """Plan the jobs whose schedules take long, one by one and in a thread: no other job waits for them."""
        moved = 0
        for job_id in list(self._costly)[:COSTLY_A_PASS]:
            planning = self._costly.pop(job_id)
            started_s = time.monotonic()
            try:
                step = await asyncio.to_thread(compute_step, planning, now=now, horizon_at=horizon_at)
            except Exception:  # as above
                log.exception("timer.unplannable", job_id=str(job_id))
                self._unplannable.add(job_id)
                continue
            async with self._database.connection() as connection:
                planned = await write_steps(connection, self._database.clock, [(planning, step)])
            self._dispatcher.wake(planned.pools)
            moved += planned.moved
            COSTLY_PLANS.inc()
            log.warning("timer.costly", job_id=str(job_id), took_s=round(time.monotonic() - started_s, 3))
        self._costly.clear()
        return moved

    def _scan_from(self, partitions: Sequence[int]) -> list[datetime]:
        self._passes += 1
        if self._passes % RETRY_UNPLANNABLE_EVERY == 0:
            self._unplannable.clear()
            self._known_costly.clear()
        if self._passes % FULL_SCAN_EVERY == 0 or self._full_scans:
            self._full_scans = max(self._full_scans - 1, 0)
            return [EPOCH] * len(partitions)
        return [self._from_ats.get(partition_no, EPOCH) for partition_no in partitions]

    async def _read_plannings(self, connection: Connection, timers: Sequence[Timer]) -> list[Planning]:
        specs = await self._database.specs.find(connection, [(timer.job_id, timer.job_version) for timer in timers])
        plannings = []
        numbers: dict[str, PoolNo] = {}
        for timer in timers:
            spec = specs.get((timer.job_id, timer.job_version))
            if spec is None:
                log.error("timer.without_spec", job_id=str(timer.job_id), version=timer.job_version)
                self._unplannable.add(timer.job_id)
                continue
            if spec.pool not in numbers:
                numbers |= await self._database.pools.register(connection, [spec.pool])
            plannings.append(Planning(timer, spec, numbers[spec.pool]))
        return plannings
