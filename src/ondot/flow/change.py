"""②a Change a job: update, pause, resume, delete (S8, P10). Takes back what was planned and has not come yet.

One transaction, its statements in one order, each with a fresh snapshot: ① lock the job and its timer, raise the
timer's version, so that a plan in flight either is committed and seen below or will be refused; ② settle what the old
schedule owes up to now; ③ take back the fires still to come; ④ write where the job stands. One statement for all of it
would not see a plan that commits while it waits for the lock.
A due fire that has not begun runs the new version on update, ends SKIPPED on pause and CANCELLED on delete. What has
begun keeps its version and ends by itself; delete also cancels retries that wait. What is owed runs the new version on
update, and is recorded as skipped on pause and delete; a backfill waits while its job is paused.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from msgspec import structs

from ondot.flow.claim import move_unique_key
from ondot.flow.dispatch import Dispatcher
from ondot.flow.plan import Planning, plan_timers, tell_skipped
from ondot.flow.skipped import cut_ended
from ondot.model.errors import Conflict, NotFound, PreconditionFailed
from ondot.model.execution import State
from ondot.model.gates import encoded_stages
from ondot.model.ids import JobId, PoolNo, TenantNo, partition_of
from ondot.model.job import JobSpec, JobState, completed, same_spec
from ondot.model.misfire import MissedPolicy
from ondot.model.planning import (
    SkippedRange,
    Timer,
    calendar_range,
    cut,
    fired_through_after_take_back,
    next_or_look_again,
    settled_range,
)
from ondot.model.schedule import Once, Schedule, jitter_offset
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.executions import (
    Waiting,
    cancelled_ahead,
    end_waiting,
    has_begun,
    lock_gates_of_job,
    newest_begun,
    renew_due,
    take_back_fires,
)
from ondot.store.jobs import LockedJob, change_job, lock_job
from ondot.store.owed import drop_owed, end_backfill, fires_executed
from ondot.store.streaks import forget_streak
from ondot.store.timers import guard_timer, lock_timer, record_skipped, set_timer, take_calendar

_MICROSECOND = timedelta(microseconds=1)

Wakes = list[tuple[PoolNo, datetime]]


async def update(
    database: Database,
    dispatcher: Dispatcher,
    tenant_no: TenantNo,
    job_id: JobId,
    spec: JobSpec,
    *,
    if_version: int | None = None,
) -> None:
    """A new version takes over at once."""
    async with database.transaction() as connection:
        job = await lock(connection, tenant_no, job_id, if_version)
        wakes = await update_locked(connection, database, tenant_no, job, _as_stored(spec, job))
    dispatcher.wake(wakes)


async def patch(
    database: Database,
    dispatcher: Dispatcher,
    tenant_no: TenantNo,
    job_id: JobId,
    changed: Callable[[LockedJob], JobSpec],
    *,
    if_version: int | None = None,
) -> None:
    """A new version made out of the one in force, which nobody changes meanwhile; none if it asks for the same.

    `changed` is called in a thread: a schedule may take a while to be checked.
    """
    async with database.transaction() as connection:
        job = await lock(connection, tenant_no, job_id, if_version)
        spec = _as_stored(await asyncio.to_thread(changed, job), job)
        if same_spec(spec, job.spec):
            return
        wakes = await update_locked(connection, database, tenant_no, job, spec)
    dispatcher.wake(wakes)


async def pause(
    database: Database,
    tenant_no: TenantNo,
    job_id: JobId,
    *,
    if_version: int | None = None,
    because: str | None = None,
) -> None:
    """No further fire until it is resumed. Pausing twice is pausing once. `because`: why, if nobody asked by hand."""
    async with database.transaction() as connection:
        job = await lock(connection, tenant_no, job_id, if_version)
        if job.state is JobState.PAUSED:
            return
        timer = await _settle_and_take_back(connection, database, tenant_no, job)
        skipped = await _skip_owed(connection, database, tenant_no, job_id, "paused")
        if timer.fires_left is not None:
            timer = replace(timer, fires_left=timer.fires_left + skipped)
        await end_waiting(connection, tenant_no, job_id, State.SKIPPED, "paused", Waiting.FIRES)
        await change_job(
            connection, tenant_no, job_id, state=JobState.PAUSED, version=job.version, state_reason=because
        )
        await set_timer(connection, replace(timer, next_fire_at=None))


async def resume(
    database: Database,
    dispatcher: Dispatcher,
    tenant_no: TenantNo,
    job_id: JobId,
    *,
    missed: MissedPolicy = "skip",
    if_version: int | None = None,
) -> None:
    """Fire again from now on. The fires of the pause are recorded as skipped, but for those that `missed` asks for."""
    async with database.transaction() as connection:
        job = await lock(connection, tenant_no, job_id, if_version)
        if job.state is JobState.ACTIVE:
            return
        timer = await _timer(connection, tenant_no, job)
        schedule = _schedule(job)
        next_fire_at = _next(schedule, timer, job.now)
        if job.spec.recurs:
            # As after an outage: from the first fire that it has no end of on record.
            next_fire_at = _after(schedule, timer.fired_through or job.now) if timer.fires_left != 0 else None
        timer = replace(timer, next_fire_at=next_fire_at, version=timer.version + 1)
        await change_job(connection, tenant_no, job_id, state=JobState.ACTIVE, version=job.version)
        resumes: MissedPolicy = missed if job.spec.recurs else "once"
        wakes = await _stand(connection, database, tenant_no, timer, job.spec, job.now, resumes=resumes)
        if job.spec.recurs and timer.fired_through is not None:
            await _cut_ended(connection, database, tenant_no, job, timer.fired_through, job.now)
        await forget_streak(connection, tenant_no, job_id)
    dispatcher.wake(wakes)


async def delete(database: Database, tenant_no: TenantNo, job_id: JobId, *, if_version: int | None = None) -> None:
    """No further fire; what waits is cancelled, what runs may end. Deleting twice is deleting once."""
    async with database.transaction() as connection:
        job = await lock(connection, tenant_no, job_id, if_version, deleted_too=True)
        if job.state is JobState.DELETED:
            return
        timer = await _settle_and_take_back(connection, database, tenant_no, job, retries_too=True)
        await _skip_owed(connection, database, tenant_no, job_id, "deleted")
        await end_backfill(connection, tenant_no, job_id, "CANCELLED")
        await end_waiting(connection, tenant_no, job_id, State.CANCELLED, "job deleted", Waiting.ALL)
        await change_job(connection, tenant_no, job_id, state=JobState.DELETED, version=job.version)
        await set_timer(connection, replace(timer, next_fire_at=None))
        await forget_streak(connection, tenant_no, job_id)


async def plan_anew(database: Database, dispatcher: Dispatcher, tenant_no: TenantNo, job_id: JobId) -> bool:
    """Take back what is planned and compute the next fire again, by zones that have changed; gives whether it did."""
    async with database.transaction() as connection:
        job = await lock_job(connection, tenant_no, job_id)
        if job is None or job.state is not JobState.ACTIVE or not job.spec.recurs:
            return False
        timer = await _settle_and_take_back(connection, database, tenant_no, job)
        if timer.fires_left != 0:
            timer = replace(timer, next_fire_at=_next(_schedule(job), timer, job.now))
        wakes = await _stand(connection, database, tenant_no, timer, job.spec, job.now)
    dispatcher.wake(wakes)
    return True


async def update_locked(
    connection: Connection, database: Database, tenant_no: TenantNo, job: LockedJob, spec: JobSpec
) -> Wakes:
    """Update a job whose row the caller has locked; gives the pools to wake after the commit."""
    # Keys before gates, as a submit takes them.
    await move_unique_key(connection, tenant_no, job, spec)
    stages = encoded_stages(spec.limits, tenant_no, job.id)
    timer = await _settle_and_take_back(connection, database, tenant_no, job, stages=stages)
    version = job.version + 1
    await renew_due(
        connection,
        tenant_no,
        job.id,
        version,
        stages=stages,
        start_deadline_s=_deadline_s(spec, job.id),
    )
    numbers = await database.pools.numbers(connection, tenant_no, [spec.pool])
    await change_job(
        connection,
        tenant_no,
        job.id,
        state=job.state,
        version=version,
        state_reason=job.state_reason,
        spec=spec,
        pool_no=numbers[spec.pool],
    )
    assert spec.schedule is not None
    if isinstance(spec.schedule.when, Once) and job.spec.recurs:
        # Whatever it fired before, its one fire is still to come; unless it was one of those.
        at = spec.schedule.when.at
        executed = await fires_executed(connection, tenant_no, job.id, at, at, limit=1)
        timer = replace(timer, fired_through=at if executed else None)
    fires_left = _fires_left(_schedule(job), timer, spec.schedule)
    stands_still = job.state is JobState.PAUSED or fires_left == 0
    timer = replace(
        timer,
        job_version=version,
        next_fire_at=None if stands_still else _next(spec.schedule, timer, job.now),
        fired_through=timer.fired_through or (job.now if spec.recurs else None),
        fires_left=fires_left,
    )
    return await _stand(connection, database, tenant_no, timer, spec, job.now)


async def lock(
    connection: Connection,
    tenant_no: TenantNo,
    job_id: JobId,
    if_version: int | None = None,
    *,
    deleted_too: bool = False,
) -> LockedJob:
    """Step ①, its first half: the job's row."""
    job = await lock_job(connection, tenant_no, job_id)
    if job is None:
        raise NotFound(f"There is no job {job_id}.")
    if if_version is not None and job.version != if_version:
        raise PreconditionFailed(
            f"The job {job_id} is at version {job.version}, not {if_version}: read it again, then change that."
        )
    if job.state is JobState.DELETED and not deleted_too:
        raise Conflict(f"The job {job_id} is deleted: create it anew.")
    return job


def _as_stored(spec: JobSpec, job: LockedJob) -> JobSpec:
    if spec.key not in {None, job.spec.key}:
        raise Conflict(f"The key of a job stays {job.spec.key!r}: leave it out, or create another job.")
    return structs.replace(completed(spec, job.id, job.now), key=job.spec.key)


async def settle(connection: Connection, database: Database, tenant_no: TenantNo, job: LockedJob) -> Timer:
    """Steps ① and ②: every fire of a locked job up to now gets its end on record, by the rules in force.

    Gives the timer, locked, its version raised and `fired_through` at now, for the caller to write.
    """
    timer = await _timer(connection, tenant_no, job)
    schedule = _schedule(job)
    while timer.next_fire_at is not None and timer.next_fire_at <= job.now:
        # The schedulers are behind: plan what is due by now.
        numbers = await database.pools.numbers(connection, tenant_no, [job.spec.pool])
        planning = Planning(timer, job.spec, numbers[job.spec.pool])
        await plan_timers(connection, database.clock, [planning], now=job.now, horizon_at=job.now)
        settled = await lock_timer(connection, job.id)
        if settled is None or settled.next_fire_at == timer.next_fire_at:
            break
        timer = settled
    fired_through = timer.fired_through
    if job.spec.recurs:
        skipped = None
        if timer.fires_left != 0:
            skipped = settled_range(schedule, fired_through or job.now, job.now, paused=job.state is JobState.PAUSED)
        if skipped is not None:
            await record_skipped(connection, tenant_no, job.id, job.version, [skipped])
            await _cut_ended(connection, database, tenant_no, job, skipped.from_at, skipped.to_at)
            tell_skipped(job.id, skipped)
        fired_through = max(fired_through or job.now, job.now)
    return replace(timer, version=timer.version + 1, fired_through=fired_through)


async def _settle_and_take_back(
    connection: Connection,
    database: Database,
    tenant_no: TenantNo,
    job: LockedJob,
    *,
    retries_too: bool = False,
    stages: str | None = None,
) -> Timer:
    """Steps ① to ③; gives the timer as it stands then, its version raised, without a next fire.

    A one-time job that waits for its next attempt has begun; `retries_too` says that the caller ends it all the same.
    `stages`: the gates that the job's executions pass from now on; they are locked with the old ones.
    """
    timer = await settle(connection, database, tenant_no, job)
    await lock_gates_of_job(connection, tenant_no, job.id, stages=stages)
    schedule = _schedule(job)
    once_at = schedule.when.at if isinstance(schedule.when, Once) else None
    bound_at, ahead = job.now, None
    if timer.fired_through is not None and timer.fired_through > job.now:
        # If the clock was set back, some of what is to come has run: what comes before it stays as it is.
        bound_at = max(job.now, await newest_begun(connection, tenant_no, job.id, job.now) or job.now)
        if (ahead := await cancelled_ahead(connection, tenant_no, job.id, bound_at)) is not None:
            # They are not planned again; but what the schedule has before and between them is.
            await guard_timer(connection, tenant_no, job.id, ahead[1])
    taken = await take_back_fires(connection, tenant_no, job.id, after=bound_at, once_at=once_at)
    if timer.fires_left is not None:
        timer = replace(timer, fires_left=timer.fires_left + len(taken))
    if once_at is None:
        first_taken_at = min([*taken[:1], *(ahead or ())[:1]], default=None)
        # What came due since, and was leased before it could be taken back, has begun: the new schedule goes on from
        # there, not from the first that was taken.
        begun_at = await newest_begun(connection, tenant_no, job.id, bound_at)
        if begun_at is not None and first_taken_at is not None and begun_at < first_taken_at:
            bound_at = begun_at
        through = fired_through_after_take_back(schedule, timer.fired_through, first_taken_at, bound_at)
        await _forget_calendar_after(connection, tenant_no, job, through)
        return replace(timer, next_fire_at=None, fired_through=through)
    if await has_begun(connection, tenant_no, job.id, once_at, waiting_too=not retries_too):
        # Looked at last: the taking back above waited for a lease that was taking it.
        raise Conflict(f"The job {job.id} has begun or ended: a one-time job can be changed only before it runs.")
    return replace(timer, next_fire_at=None, fired_through=None if taken else timer.fired_through)


async def _cut_ended(
    connection: Connection, database: Database, tenant_no: TenantNo, job: LockedJob, from_at: datetime, to_at: datetime
) -> None:
    schedule = _schedule(job)
    await cut_ended(connection, database, tenant_no, job.id, from_at, to_at, version=job.version, schedule=schedule)


async def _forget_calendar_after(
    connection: Connection, tenant_no: TenantNo, job: LockedJob, through: datetime
) -> None:
    """What the old calendar leaves out was recorded as far as fires were planned: no longer beyond this instant."""
    for entry in await take_calendar(connection, tenant_no, job.id, through + _MICROSECOND, None):
        left = calendar_range(_schedule(job), entry.skipped.from_at - _MICROSECOND, through + _MICROSECOND)
        if left is not None:
            version = entry.job_version or job.version
            await record_skipped(connection, tenant_no, job.id, version, [left], at=entry.at)


async def _skip_owed(
    connection: Connection, database: Database, tenant_no: TenantNo, job_id: JobId, reason: str
) -> int:
    """Record as skipped what is still to be caught up, but for what a backfill has run; gives how many fires."""
    fires = 0
    for owed, version in await drop_owed(connection, tenant_no, job_id):
        specs = await database.specs.find(connection, [(job_id, version)])
        schedule = specs[job_id, version].schedule
        assert schedule is not None, "submit completes every schedule"
        executed = await fires_executed(connection, tenant_no, job_id, owed.from_at, owed.to_at, limit=owed.count)
        # One range says it all, also what the calendar leaves out in it.
        await take_calendar(connection, tenant_no, job_id, owed.from_at, owed.to_at)
        left = cut(SkippedRange(owed.from_at, owed.to_at, reason, owed.count), schedule, sorted(executed))
        await record_skipped(connection, tenant_no, job_id, version, left)
        for entry in left:
            tell_skipped(job_id, entry)
        fires += owed.count
    return fires


async def _timer(connection: Connection, tenant_no: TenantNo, job: LockedJob) -> Timer:
    """The job's timer, locked; a one-time job that was planned at once has none, and stands where it fired."""
    timer = await lock_timer(connection, job.id)
    if timer is not None:
        return timer
    when = _schedule(job).when
    fired_through = when.at if isinstance(when, Once) else None
    return Timer(job.id, tenant_no, partition_of(job.id), 1, job.version, None, fired_through)


async def _stand(
    connection: Connection,
    database: Database,
    tenant_no: TenantNo,
    timer: Timer,
    spec: JobSpec,
    now: datetime,
    *,
    resumes: MissedPolicy | None = None,
) -> Wakes:
    """Step ④: write the timer, and plan at once what is nearer than the horizon."""
    await set_timer(connection, timer)
    horizon_at = now + timedelta(seconds=database.settings.horizon_s)
    if timer.next_fire_at is None or timer.next_fire_at > horizon_at:
        return []
    numbers = await database.pools.numbers(connection, tenant_no, [spec.pool])
    planned = await plan_timers(
        connection,
        database.clock,
        [Planning(timer, spec, numbers[spec.pool], resumes)],
        now=now,
        horizon_at=horizon_at,
    )
    return list(planned.pools)


def _deadline_s(spec: JobSpec, job_id: JobId) -> float | None:
    """From a fire on, with its jitter."""
    if spec.start_deadline_s is None or spec.schedule is None:
        return None
    return spec.start_deadline_s + jitter_offset(job_id, spec.schedule.jitter_s).total_seconds()


def _fires_left(old: Schedule, timer: Timer, new: Schedule) -> int | None:
    """What a new version may still fire: those that were fired count, as far as they were counted."""
    if new.max_fires is None:
        return None
    fired = old.max_fires - timer.fires_left if old.max_fires is not None and timer.fires_left is not None else 0
    return max(new.max_fires - fired, 0)


def _next(schedule: Schedule, timer: Timer, now: datetime) -> datetime | None:
    """The first fire after now that was not fired before."""
    after = max(now, timer.fired_through) if timer.fired_through else now
    if isinstance(schedule.when, Once):
        # A one-time job has nothing after it: one that came due while it was paused runs now.
        fired = timer.fired_through is not None and timer.fired_through >= schedule.when.at
        return None if fired else schedule.when.at
    return _after(schedule, after)


def _after(schedule: Schedule, after: datetime) -> datetime | None:
    """Where a timer goes: the next fire, or where to look for it again."""
    fire_at, look_again_at = next_or_look_again(schedule, after)
    return fire_at or look_again_at


def _schedule(job: LockedJob) -> Schedule:
    assert job.spec.schedule is not None, "submit completes every schedule"
    return job.spec.schedule
