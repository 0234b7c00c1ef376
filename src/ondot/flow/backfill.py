"""②b Run fires of the past: catch-up after an outage, and backfills (S6, S7, P3, P4).

Both are ranges in `owed`, worked off by one pass: a bounded number of executions per turn, in the class behind live
work, and for each range no more live at once than it allows. The range has the bounds; the schedule has the instants. A
fire that has an execution already, live or ended, gets no second one. A fire that was recorded as skipped and is
backfilled is removed from its skipped range, so that it has one end on record.

A pass locks the timers of its jobs before it reads: no change of the job and no other node gets in between, and its
snapshot of executions and history is younger than the lock. A backfill settles the job's own fires up to now before it
starts; its range ends there, so the planner never reaches an instant of it. A backfill of fires whose executions may be
gone is refused (`flow.history.gone`), and executions of ranges under way are kept (`store/sql/day_rewrite.sql`).
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from ondot.flow.change.settle import lock, settle
from ondot.flow.dispatch import Dispatcher
from ondot.flow.history.gone import check_kept
from ondot.flow.idempotency import Idempotency, find_response, store_response
from ondot.flow.plan import compute_schedule
from ondot.flow.skipped import cut_skipped
from ondot.flow.suspension import leave_out_owed
from ondot.flow.work import Work, begin
from ondot.model.errors import Conflict, Fault, InvalidBody, NotFound
from ondot.model.execution import CANCEL, PriorityClass
from ondot.model.gates import encode_stages
from ondot.model.ids import ExecutionId, JobId, TenantNo, partition_of
from ondot.model.job import JobSpec, JobState
from ondot.model.planning import EXECUTION_AHEAD, fires_from
from ondot.model.schedule import GivenUp, Schedule, next_fire, start_delay
from ondot.model.schedule.counting import count_fires
from ondot.model.schedule.looks import A_REQUEST, allowed
from ondot.store.audit import By, record_change
from ondot.store.connection import TAKEN, Connection
from ondot.store.database import Database
from ondot.store.day_rewrite import hold_kept_from, read_kept_from
from ondot.store.endings import Waiting, end_waiting
from ondot.store.jobs import LockedJob, get_job
from ondot.store.owed import (
    BackfillRow,
    Made,
    NewBackfill,
    Owed,
    OwedFire,
    OwedStep,
    end_backfill,
    find_executed_fires,
    insert_backfill,
    list_backfills,
    make_owed,
    put_off_owed,
    take_owed,
)
from ondot.store.timers import lock_timer, set_timer
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import FIRES_OWED

MOST_FIRES = 1_000_000
"""The most fires of one backfill."""
WALKED_FIRES = 200_000
"""The same for fires that cannot be counted by arithmetic; fewer the more rules there are to check for each."""
RANGES_A_PASS = 200
FIRES_A_PASS = 250
TURN_S = 0.25
"""The time until a range's next turn: with FIRES_A_PASS this bounds a node's rate at 1,000 fires a second."""
RETRY_S = 5.0
"""The time until a range is tried again whose job is paused, or which this node cannot compute."""

_MICROSECOND = timedelta(microseconds=1)

log = get_logger()


@dataclass(frozen=True, slots=True)
class Backfill:
    """The request: the fires from `from_at` to `to_at`, both included."""

    from_at: datetime
    to_at: datetime
    newest_first: bool = False
    concurrency: int = 1


@dataclass(frozen=True, slots=True)
class BackfillCount:
    """What a backfill would do: `existing` of `total` fires have an execution already."""

    total: int
    existing: int


async def start_backfill(
    database: Database,
    tenant_no: TenantNo,
    job_id: JobId,
    backfill: Backfill,
    *,
    render: Callable[[BackfillRow], str],
    idempotency: Idempotency | None = None,
    by: By | None = None,
) -> str:
    """Register a backfill, which schedulers then work off; returns the response."""
    id_ = database.clock.new_id()
    # Counted before any row is locked, because it may take seconds.
    version, total = await _count(database, tenant_no, job_id, backfill)
    try:
        async with begin(database, tenant_no) as work:
            if (earlier := await find_response(work, idempotency)) is not None:
                return earlier
            job = await lock(work, job_id)
            if job.version != version:
                raise Conflict(f"The job {job_id} was changed at the same time: look at it, and try again.")
            _check_past(backfill, job.now)
            check_kept(backfill.from_at, job_id, await hold_kept_from(work.connection, tenant_no))
            if job.state is JobState.ACTIVE:
                # The job's own fires up to now come first: then it never reaches a fire of the range.
                await set_timer(work.connection, await settle(work, job))
            await insert_backfill(work.connection, tenant_no, _new(id_, job, backfill, total, by))
            [row] = await list_backfills(work.connection, tenant_no, job_id, id_=id_)
            detail = {"backfill_id": id_, "from_at": backfill.from_at, "to_at": backfill.to_at, "fires": total}
            await record_change(work.connection, tenant_no, by, "job.backfill", job_id, detail)
            text = render(row)
            await store_response(work, idempotency, text)
    except TAKEN as error:
        raise Conflict(f"A backfill of the job {job_id} is under way: wait for its end, or cancel it.") from error
    log.info("backfill.started", job_id=str(job_id), backfill_id=str(id_), total=total)
    return text


async def count_backfill(database: Database, tenant_no: TenantNo, job_id: JobId, backfill: Backfill) -> BackfillCount:
    """A dry run: how many fires there are, and how many of them have an execution."""
    version, total = await _count(database, tenant_no, job_id, backfill)
    async with database.connection() as connection:
        specs = await database.specs.find(connection, [(job_id, version)])
        executed = await find_executed_fires(
            connection, tenant_no, job_id, backfill.from_at, backfill.to_at, limit=MOST_FIRES
        )
    schedule = _schedule(specs[job_id, version])

    def count_existing() -> int:
        # The job may have fired by another schedule before: only fires of this one are counted.
        try:
            with allowed(A_REQUEST):
                return sum(next_fire(schedule, fire_at - _MICROSECOND) == fire_at for fire_at in sorted(executed))
        except GivenUp as search:
            raise _too_costly(search) from None

    return BackfillCount(total, await asyncio.to_thread(count_existing))


async def _count(database: Database, tenant_no: TenantNo, job_id: JobId, backfill: Backfill) -> tuple[int, int]:
    """The version of a job and the number of fires in the range; in a thread, because it may take seconds."""
    async with database.connection() as connection:
        job = await get_job(connection, tenant_no, job_id)
        kept_from, _ = await read_kept_from(connection, tenant_no)
    if job is None:
        raise NotFound(f"There is no job {job_id}.")
    if job.state is JobState.DELETED:
        raise Conflict(f"The job {job_id} is deleted: create it again.")
    check_kept(backfill.from_at, job_id, kept_from)
    await database.read_clock()
    total = await asyncio.to_thread(_count_fires, job.spec, backfill, database.clock.now())
    return job.version, total


async def cancel_backfill(
    database: Database, tenant_no: TenantNo, job_id: JobId, backfill_id: UUID, *, by: By | None = None
) -> BackfillRow:
    """Stop a backfill: waiting executions are cancelled, running ones may end. Cancelling twice changes nothing."""
    async with begin(database, tenant_no) as work:
        connection = work.connection
        await lock(work, job_id, deleted_too=True)
        await lock_timer(connection, job_id)
        if await end_backfill(connection, tenant_no, job_id, "CANCELLED", backfill_id):
            await end_waiting(connection, tenant_no, job_id, CANCEL, "backfill cancelled", Waiting.BACKFILL)
            await record_change(connection, tenant_no, by, "job.backfill_cancel", job_id, {"backfill_id": backfill_id})
            log.info("backfill.cancelled", job_id=str(job_id), backfill_id=str(backfill_id))
        rows = await list_backfills(connection, tenant_no, job_id, id_=backfill_id)
    if not rows:
        raise NotFound(f"The job {job_id} has no backfill {backfill_id}.")
    return rows[0]


async def owed_pass(database: Database, dispatcher: Dispatcher, partitions: Sequence[int]) -> int:
    """Work off one turn of each range that is due; returns how many ranges there were."""
    stopped = await database.tenants.stopped()
    async with database.transaction() as connection:
        owed = await take_owed(connection, partitions, RANGES_A_PASS)
        if not owed:
            return 0
        found = len(owed)
        if stopped:
            owed = await leave_out_owed(connection, owed, stopped)
        active = [entry for entry in owed if entry.job_state is JobState.ACTIVE]
        steps, fires, stuck = await _compute_steps(connection, database, active)
        made = await make_owed(connection, steps, fires, next_turn_s=TURN_S)
        await _cut_skipped(connection, database, steps, made)
        if later := [*stuck, *(entry.id for entry in owed if entry.job_state is not JobState.ACTIVE)]:
            await put_off_owed(connection, later, RETRY_S)
    FIRES_OWED.inc(len(made))
    dispatcher.wake((entry.pool_no, entry.ready_at) for entry in made)
    for step in steps:
        if step.is_over:
            log.info("owed.done", job_id=str(step.owed.job_id), origin=step.owed.origin, owed_id=str(step.owed.id))
    return found


async def _compute_steps(
    connection: Connection, database: Database, owed: Sequence[Owed]
) -> tuple[list[OwedStep], list[OwedFire], list[UUID]]:
    """The steps of ranges and their fires, until the pass is full (the rest is first next time); and stuck ranges."""
    versions = {(entry.job_id, version) for entry in owed for version in (entry.schedule_version, entry.job_version)}
    specs = await database.specs.find(connection, versions)
    steps: list[OwedStep] = []
    fires: list[OwedFire] = []
    stuck: list[UUID] = []
    for entry in owed:
        if len(fires) >= FIRES_A_PASS:
            break
        timed, run = (specs.get((entry.job_id, version)) for version in (entry.schedule_version, entry.job_version))
        if timed is None or run is None:
            log.error("owed.without_spec", job_id=str(entry.job_id), version=entry.job_version)
            stuck.append(entry.id)
            continue
        room = max(min(entry.concurrency - entry.live, FIRES_A_PASS - len(fires)), 0)
        try:
            schedule, newest_first = _schedule(timed), entry.newest_first
            fires_of = partial(fires_from, schedule, entry.from_at, entry.to_at, newest_first=newest_first)
            instants = await compute_schedule(schedule, partial(fires_of, at_most=room))
        except Exception:  # a schedule this node cannot compute must not stop all the others
            log.exception("owed.unplannable", job_id=str(entry.job_id))
            stuck.append(entry.id)
            continue
        numbers = await database.pools.register(connection, [run.pool])
        delay_s = start_delay(_schedule(run), entry.job_id).total_seconds()
        steps.append(_advance(entry, timed, instants, room))
        not_before = max(instants) - EXECUTION_AHEAD if instants else None
        ids = database.clock.new_ids(len(instants), not_before=not_before)
        fires.extend(
            OwedFire(
                ExecutionId(id_),
                entry.id,
                fire_at,
                delay_s,
                numbers[run.pool],
                int(PriorityClass.CATCH_UP),
                encode_stages(run.limits, entry.tenant_no, entry.job_id),
            )
            for id_, fire_at in zip(ids, instants, strict=True)
        )
    return steps, fires, stuck


def _advance(owed: Owed, spec: JobSpec, instants: list[datetime], room: int) -> OwedStep:
    """The rest of a range after these fires. A backfill is over only when its executions have ended."""
    from_at, to_at = owed.from_at, owed.to_at
    if len(instants) < room:
        to_at = from_at - _MICROSECOND
    elif instants and owed.newest_first:
        to_at = instants[0] - _MICROSECOND
    elif instants:
        from_at = instants[-1] + _MICROSECOND
    is_empty = to_at < from_at
    count = 0 if is_empty else max(owed.count - len(instants), 0) if owed.count is not None else None
    is_over = is_empty and not instants and not owed.live if owed.origin == "backfill" else is_empty
    return OwedStep(owed, _schedule(spec), from_at, to_at, count, is_over)


async def _cut_skipped(
    connection: Connection, database: Database, steps: Sequence[OwedStep], made: Sequence[Made]
) -> None:
    """Cut backfilled fires out of their skipped ranges."""
    filled: dict[UUID, list[datetime]] = defaultdict(list)
    for execution in made:
        filled[execution.owed_id].append(execution.fire_at)
    for step in steps:
        owed, fires = step.owed, sorted(filled[step.owed.id])
        if owed.origin != "backfill" or not fires:
            continue
        work = Work(connection, database, owed.tenant_no)
        await cut_skipped(work, owed.job_id, fires, version=owed.schedule_version, schedule=step.schedule)


def _count_fires(spec: JobSpec, backfill: Backfill, now: datetime) -> int:
    if not spec.recurs:
        raise Conflict("A one-time job has no fires of the past: start it with /run.")
    if spec.starts_by_event:
        raise Conflict("Events start this job, so it has no fires of the past: send events, or start it with /run.")
    _check_past(backfill, now)
    if backfill.to_at < backfill.from_at:
        raise _reject("to_at", f"It is before from_at; use {backfill.from_at.isoformat()} or later.")
    schedule = _schedule(spec)
    one_by_one = WALKED_FIRES // (1 + len(schedule.include) + len(schedule.exclude))
    try:
        with allowed(2 * WALKED_FIRES):
            total = count_fires(schedule, backfill.from_at - _MICROSECOND, backfill.to_at, one_by_one)
    except GivenUp as search:
        raise _too_costly(search) from None
    if total is None or total > MOST_FIRES:
        most = one_by_one if total is None else MOST_FIRES
        raise _reject("from_at", f"The range has more than {most:,} fires; split it into several backfills.")
    return total


def _check_past(backfill: Backfill, now: datetime) -> None:
    if backfill.to_at > now:
        raise _reject("to_at", f"It is in the future, and a backfill is of the past; use {now.isoformat()} or earlier.")


def _too_costly(search: GivenUp) -> InvalidBody:
    at = f"{search.reached_at:%Y-%m-%d %H:%M:%S} UTC"
    return _reject(
        "from_at", f"The fires of the range take too long to count, past {at}; split it into several backfills."
    )


def _reject(name: str, message: str) -> InvalidBody:
    message = f"`{name}`: {message}"
    return InvalidBody(message, faults=(Fault(f"/{name}", message),))


def _new(id_: UUID, job: LockedJob, backfill: Backfill, total: int, by: By | None) -> NewBackfill:
    return NewBackfill(
        id_,
        job.id,
        job.version,
        backfill.from_at,
        backfill.to_at,
        backfill.newest_first,
        backfill.concurrency,
        total,
        partition_of(job.id),
        None if by is None or by.trace is None else by.trace.traceparent,
    )


def _schedule(spec: JobSpec) -> Schedule:
    assert spec.schedule is not None, "submit completes every schedule"
    return spec.schedule
