"""②a Change a job: update, pause, resume, delete (S8, P10). Takes back what was planned and has not come yet.

One transaction, its statements in one order, each with a fresh snapshot: ① lock the job and its timer, raise the
timer's version, so that a plan in flight either is committed and seen below or will be refused; ② settle what the old
schedule owes up to now (`settle` does both); ③ take back the fires still to come (`take_back`); ④ write where
the job stands. One statement for all of it would not see a plan that commits while it waits for the lock.
A due fire that has not begun runs the new version on update, in its pool and priority; it ends SKIPPED on pause and
CANCELLED on delete. What has begun, and what a person asked for (run, replay), keeps its version and pool and ends by
itself; delete also cancels retries that wait. What is owed runs the new version on update, and is recorded as skipped
on pause and delete; a backfill waits while its job is paused.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from msgspec import structs

from ondot.flow.change.settle import lock, lock_timer_of, schedule_of
from ondot.flow.change.take_back import refuse_if_running, settle_and_take_back, skip_owed
from ondot.flow.dispatch import Dispatcher
from ondot.flow.plan import Planning, plan_timers
from ondot.flow.skipped import cut_ended
from ondot.flow.unique_keys import move_unique_key
from ondot.model.errors import Conflict
from ondot.model.execution import CANCEL, SKIP
from ondot.model.gates import changed_rates, encode_stages
from ondot.model.ids import JobId, PoolNo, TenantNo
from ondot.model.job import JobSpec, JobState, completed, same_spec
from ondot.model.misfire import MissedPolicy
from ondot.model.planning import Timer, next_or_look_again
from ondot.model.schedule import Once, Schedule, jitter_offset
from ondot.store.audit import By, record_change
from ondot.store.clock import Moment
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.endings import Waiting, end_waiting
from ondot.store.jobs import LockedJob, change_job, lock_job
from ondot.store.owed import end_backfill, fires_executed
from ondot.store.planned import carry_tokens, renew_due
from ondot.store.streaks import forget_streak
from ondot.store.timers import set_timer

Wakes = list[tuple[PoolNo, datetime]]


async def update(
    database: Database,
    dispatcher: Dispatcher,
    tenant_no: TenantNo,
    job_id: JobId,
    spec: JobSpec,
    *,
    if_version: int | None = None,
    moment: Moment | None = None,
    by: By | None = None,
) -> None:
    """A new version takes over at once. `moment`: what its instants were computed from; see `flow.submit`."""
    async with database.transaction() as connection:
        job = await lock(connection, tenant_no, job_id, if_version)
        if moment is not None:
            database.clock.check(moment, job.now)
        wakes = await update_locked(connection, database, tenant_no, job, _as_stored(spec, job), by=by)
    dispatcher.wake(wakes)


async def patch(
    database: Database,
    dispatcher: Dispatcher,
    tenant_no: TenantNo,
    job_id: JobId,
    changed: Callable[[LockedJob], JobSpec],
    *,
    if_version: int | None = None,
    by: By | None = None,
) -> None:
    """A new version made out of the one in force, which nobody changes meanwhile; none if it asks for the same.

    `changed` is called in a thread: a schedule may take a while to be checked.
    """
    async with database.transaction() as connection:
        job = await lock(connection, tenant_no, job_id, if_version)
        spec = _as_stored(await asyncio.to_thread(changed, job), job)
        if same_spec(spec, job.spec):
            return
        wakes = await update_locked(connection, database, tenant_no, job, spec, by=by)
    dispatcher.wake(wakes)


async def pause(
    database: Database,
    tenant_no: TenantNo,
    job_id: JobId,
    *,
    if_version: int | None = None,
    because: str | None = None,
    by: By | None = None,
) -> None:
    """No further fire until it is resumed. Pausing twice is pausing once. `because`: why, if nobody asked by hand."""
    async with database.transaction() as connection:
        job = await lock(connection, tenant_no, job_id, if_version)
        if job.state is JobState.PAUSED:
            return
        timer = await settle_and_take_back(connection, database, tenant_no, job)
        skipped = await skip_owed(connection, database, tenant_no, job_id, "paused")
        if timer.fires_left is not None:
            timer = replace(timer, fires_left=timer.fires_left + skipped)
        await end_waiting(connection, tenant_no, job_id, SKIP, "paused", Waiting.FIRES)
        await change_job(
            connection, tenant_no, job_id, state=JobState.PAUSED, version=job.version, state_reason=because
        )
        await record_change(connection, tenant_no, by, "job.pause", job_id, {"name": job.spec.name})
        await set_timer(connection, replace(timer, next_fire_at=None))


async def resume(
    database: Database,
    dispatcher: Dispatcher,
    tenant_no: TenantNo,
    job_id: JobId,
    *,
    missed: MissedPolicy = "skip",
    if_version: int | None = None,
    by: By | None = None,
) -> None:
    """Fire again from now on. The fires of the pause are recorded as skipped, but for those that `missed` asks for."""
    async with database.transaction() as connection:
        job = await lock(connection, tenant_no, job_id, if_version)
        if job.state is JobState.ACTIVE:
            return
        timer = await lock_timer_of(connection, tenant_no, job)
        schedule = schedule_of(job)
        next_fire_at = _next(schedule, timer, job.now)
        if job.spec.recurs:
            # As after an outage: from the first fire that it has no end of on record.
            next_fire_at = _after(schedule, timer.fired_through or job.now) if timer.fires_left != 0 else None
        timer = replace(timer, next_fire_at=next_fire_at, version=timer.version + 1)
        await change_job(connection, tenant_no, job_id, state=JobState.ACTIVE, version=job.version)
        detail = {"name": job.spec.name, "missed": missed, "paused_because": job.state_reason}
        await record_change(connection, tenant_no, by, "job.resume", job_id, detail)
        resumes: MissedPolicy = missed if job.spec.recurs else "once"
        wakes = await _stand(connection, database, tenant_no, timer, job.spec, job.now, resumes=resumes)
        if job.spec.recurs and (since_at := timer.fired_through) is not None:
            await cut_ended(
                connection, database, tenant_no, job_id, since_at, job.now, version=job.version, schedule=schedule
            )
        await forget_streak(connection, tenant_no, job_id)
    dispatcher.wake(wakes)


async def delete(
    database: Database,
    tenant_no: TenantNo,
    job_id: JobId,
    *,
    if_version: int | None = None,
    by: By | None = None,
) -> None:
    """No further fire; what waits is cancelled, what runs may end. Deleting twice is deleting once."""
    async with database.transaction() as connection:
        job = await lock(connection, tenant_no, job_id, if_version, deleted_too=True)
        if job.state is JobState.DELETED:
            return
        timer = await settle_and_take_back(connection, database, tenant_no, job, retries_too=True)
        await skip_owed(connection, database, tenant_no, job_id, "deleted")
        await end_backfill(connection, tenant_no, job_id, "CANCELLED")
        await end_waiting(connection, tenant_no, job_id, CANCEL, "job deleted", Waiting.ALL)
        await refuse_if_running(connection, tenant_no, job)
        await change_job(connection, tenant_no, job_id, state=JobState.DELETED, version=job.version)
        detail = {"name": job.spec.name, "state": job.state.value, "version": job.version}
        await record_change(connection, tenant_no, by, "job.delete", job_id, detail)
        await set_timer(connection, replace(timer, next_fire_at=None))
        await forget_streak(connection, tenant_no, job_id)


async def plan_anew(database: Database, dispatcher: Dispatcher, tenant_no: TenantNo, job_id: JobId) -> bool:
    """Take back what is planned and compute the next fire again, by zones that have changed; gives whether it did."""
    async with database.transaction() as connection:
        job = await lock_job(connection, tenant_no, job_id)
        if job is None or job.state is not JobState.ACTIVE or not job.spec.recurs:
            return False
        timer = await settle_and_take_back(connection, database, tenant_no, job)
        if timer.fires_left != 0:
            timer = replace(timer, next_fire_at=_next(schedule_of(job), timer, job.now))
        wakes = await _stand(connection, database, tenant_no, timer, job.spec, job.now)
    dispatcher.wake(wakes)
    return True


async def update_locked(
    connection: Connection,
    database: Database,
    tenant_no: TenantNo,
    job: LockedJob,
    spec: JobSpec,
    *,
    by: By | None = None,
) -> Wakes:
    """Update a job whose row the caller has locked; gives the pools to wake after the commit."""
    # Pools and keys before gates, as a submit takes them: who makes the same pool at this moment may wait for a gate.
    pool_no = (await database.pools.numbers(connection, tenant_no, [spec.pool]))[spec.pool]
    await move_unique_key(connection, tenant_no, job, spec)
    stages = encode_stages(spec.limits, tenant_no, job.id)
    timer = await settle_and_take_back(connection, database, tenant_no, job, stages=stages)
    if rates := changed_rates(job.spec.limits, spec.limits, tenant_no, job.id):
        await carry_tokens(connection, tenant_no, rates)
    version = job.version + 1
    moved = await renew_due(
        connection,
        tenant_no,
        job.id,
        version,
        pool_no=pool_no,
        priority_class=spec.priority_class,
        stages=stages,
        start_deadline_s=_deadline_s(spec, job.id),
    )
    await change_job(
        connection,
        tenant_no,
        job.id,
        state=job.state,
        version=version,
        state_reason=job.state_reason,
        spec=spec,
        pool_no=pool_no,
    )
    # The versions say what was and what is; a payload is no matter of the log.
    detail = {"name": spec.name, "from_version": job.version, "version": version, "changed": _changed(job.spec, spec)}
    await record_change(connection, tenant_no, by, "job.update", job.id, detail)
    assert spec.schedule is not None
    if isinstance(spec.schedule.when, Once) and job.spec.recurs:
        # Whatever it fired before, its one fire is still to come; unless it was one of those.
        at = spec.schedule.when.at
        executed = await fires_executed(connection, tenant_no, job.id, at, at, limit=1)
        timer = replace(timer, fired_through=at if executed else None)
    fires_left = _fires_left(schedule_of(job), timer, spec.schedule)
    stands_still = job.state is JobState.PAUSED or fires_left == 0
    timer = replace(
        timer,
        job_version=version,
        next_fire_at=None if stands_still else _next(spec.schedule, timer, job.now),
        # Also of a one-time job that has no fire left: by this instant it is removed when it is old.
        fired_through=timer.fired_through or (job.now if spec.recurs or fires_left == 0 else None),
        fires_left=fires_left,
    )
    wakes = await _stand(connection, database, tenant_no, timer, spec, job.now)
    return [*((pool_no, ready_at) for ready_at in moved), *wakes]


def _changed(old: JobSpec, new: JobSpec) -> list[str]:
    return [field for field in JobSpec.__struct_fields__ if getattr(old, field) != getattr(new, field)]


def _as_stored(spec: JobSpec, job: LockedJob) -> JobSpec:
    if spec.key not in {None, job.spec.key}:
        raise Conflict(f"The key of a job stays {job.spec.key!r}: leave it out, or create another job.")
    return structs.replace(completed(spec, job.id, job.now), key=job.spec.key)


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
