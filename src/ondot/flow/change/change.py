"""②a Change a job: update, pause, resume, delete (S8, P10).

A change is one transaction of four steps, which every function here calls in this order:
① `lock` the job. From here on a plan in flight has committed, and is seen below, or is refused by the timer's version.
② `settle`: every fire up to now gets its end on record, by the old rules.
③ `take_back` the executions that were planned for later.
④ write the job, its entry in the audit log and its timer (`_write`), and plan what is nearer than the horizon.
Each step has statements of its own, each with a fresh snapshot: one statement for everything would not see a plan that
commits while it waits for the lock. A resume has nothing to settle or to take back, because nothing of a paused job is
planned.

A due fire that has not started runs the new version after an update, in its pool and priority. It ends SKIPPED after a
pause and CANCELLED after a delete. Executions that have started, and those that a person asked for (run, replay), keep
their version and pool and end by themselves; a delete also cancels retries that wait. Owed fires run the new version
after an update, and are recorded as skipped after a pause or a delete. A backfill waits while its job is paused.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from msgspec import structs

from ondot.flow.change.settle import check_changeable, lock, lock_timer_of, schedule_of, settle
from ondot.flow.change.take_back import refuse_if_running, skip_owed, take_back
from ondot.flow.dispatch import Dispatcher
from ondot.flow.events.held import release_events, skip_events
from ondot.flow.events.subscriptions import change_subscription, lock_if_events
from ondot.flow.plan import Planning, compute_schedule, plan_timers
from ondot.flow.secrets_in_jobs import record_uses
from ondot.flow.sinks.job_events import post_changed_job
from ondot.flow.skipped import cut_ended
from ondot.flow.unique_keys import move_unique_key
from ondot.flow.work import Work, begin
from ondot.flow.workflows.depends import (
    cancel_blocked,
    fire_of,
    keep_parents,
    lock_blocked,
    resume_blocked,
    update_blocked,
)
from ondot.model.audit_values import show_changes
from ondot.model.errors import Conflict, NotFound
from ondot.model.execution import CANCEL, SKIP
from ondot.model.gates import changed_rates, encode_stages
from ondot.model.ids import JobId, PoolNo, TenantNo
from ondot.model.job import TRACE_FIELDS, JobSpec, JobState, fill_in_schedule, is_same_spec
from ondot.model.misfire import MissedPolicy
from ondot.model.own_events import JOB_PAUSED
from ondot.model.planning import Timer, next_or_look_again
from ondot.model.schedule import Once, Schedule, start_delay
from ondot.store.audit import Action, By, record_change
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.dependencies import look_again
from ondot.store.endings import Waiting, end_waiting
from ondot.store.expect import put_watches
from ondot.store.jobs import JobRow, LockedJob, change_job, get_job, lock_job
from ondot.store.owed import end_backfill, find_executed_fires
from ondot.store.own_events import emit_event
from ondot.store.planned import carry_tokens, renew_due
from ondot.store.streaks import forget_streak
from ondot.store.timers import set_timer

Wakes = list[tuple[PoolNo, datetime]]

ComputeSpec = Callable[[JobRow, datetime], Awaitable[JobSpec]]
"""The new spec of a job, from the job as it is and the time now. May take long; does no I/O."""


async def update(
    database: Database,
    dispatcher: Dispatcher,
    tenant_no: TenantNo,
    job_id: JobId,
    compute: ComputeSpec,
    *,
    if_version: int | None = None,
    only_if_changed: bool = False,
    by: By | None = None,
) -> JobRow:
    """A new version takes over at once; returns the job as this change leaves it.

    `compute` is called before the lock, because a schedule may take seconds to check. If the job has another version
    once it is locked, or the clock was set, it is called a second and last time, for the job as locked.
    `only_if_changed`: a spec that asks for what is stored makes no new version.
    """
    moment = database.clock.moment()
    async with database.connection() as connection:
        before = await _read(connection, tenant_no, job_id)
    check_changeable(before, if_version)
    spec = await compute(before, moment.at)
    wakes: Wakes = []
    async with begin(database, tenant_no) as work:
        job = await lock(work, job_id, if_version)
        if job.version != before.version or not database.clock.agrees(moment, job.now):
            spec = await compute(await _read(work.connection, tenant_no, job_id), job.now)
        spec = _with_trace(_as_stored(spec, job), job.spec, by)
        if not (only_if_changed and is_same_spec(spec, job.spec)):
            wakes = await update_locked(work, job, spec, by=by)
        row = await _read(work.connection, tenant_no, job_id)
    dispatcher.wake(wakes)
    return row


async def pause(
    database: Database,
    tenant_no: TenantNo,
    job_id: JobId,
    *,
    if_version: int | None = None,
    because: str | None = None,
    by: By | None = None,
) -> JobRow:
    """No further fire until it is resumed; pausing a paused job changes nothing. `because`: why, if not by hand."""
    async with begin(database, tenant_no) as work:
        job = await lock(work, job_id, if_version)
        if job.state is not JobState.PAUSED:
            await lock_if_events(work, job.spec)
            is_waiting = await lock_blocked(work, job) is not None
            timer = await settle(work, job)
            timer = timer if is_waiting else await take_back(work, job, timer)
            skipped = await skip_owed(work, job_id, "paused")
            if timer.fires_left is not None:
                timer = replace(timer, fires_left=timer.fires_left + skipped)
            await end_waiting(work.connection, tenant_no, job_id, SKIP, "paused", Waiting.FIRES)
            paused = replace(job, state=JobState.PAUSED, state_reason=because)
            await _write(work, job, paused, replace(timer, next_fire_at=None), "job.pause", by=by)
            await emit_event(
                work.connection, tenant_no, JOB_PAUSED, job_id, reason=because or (None if by is None else by.reason)
            )
        return await _read(work.connection, tenant_no, job.id)


async def resume(
    database: Database,
    dispatcher: Dispatcher,
    tenant_no: TenantNo,
    job_id: JobId,
    *,
    missed: MissedPolicy | None = None,
    if_version: int | None = None,
    by: By | None = None,
) -> JobRow:
    """Fire again from now on. The fires of the pause are recorded as skipped, except those that `missed` asks for. Of a
    job that events start, its own policy decides unless `missed` does."""
    wakes: Wakes = []
    async with begin(database, tenant_no) as work:
        job = await lock(work, job_id, if_version)
        if job.state is not JobState.ACTIVE:
            wakes = await _resume(work, job, missed or _missed_by(job.spec), by)
        row = await _read(work.connection, tenant_no, job.id)
    dispatcher.wake(wakes)
    return row


async def _resume(work: Work, job: LockedJob, missed: MissedPolicy, by: By | None) -> Wakes:
    await lock_if_events(work, job.spec)
    waiting = await lock_blocked(work, job)
    timer = await lock_timer_of(work, job)
    since_at = timer.fired_through
    held = await release_events(work, job, missed) if job.spec.starts_by_event else []
    if not job.spec.recurs:
        next_fire_at = await _next(schedule_of(job), timer, job.now)
    elif timer.fires_left == 0:
        next_fire_at = None
    else:
        # As after an outage: from the first fire that has no end on record.
        next_fire_at = await _after(schedule_of(job), since_at or job.now)
    wakes = await _write(
        work,
        job,
        replace(job, state=JobState.ACTIVE, state_reason=None),
        replace(timer, next_fire_at=next_fire_at, version=timer.version + 1),
        "job.resume",
        {"missed": missed, "paused_because": job.state_reason},
        resumes=missed if job.spec.recurs else "once",
        by=by,
    )
    if job.spec.recurs and since_at is not None:
        await cut_ended(work, job, since_at, job.now)
    await forget_streak(work.connection, work.tenant_no, job.id)
    if waiting is not None:
        wakes += await resume_blocked(work, waiting)
    return [*held, *wakes]


def _missed_by(spec: JobSpec) -> MissedPolicy:
    """What a resume does about the pause if it is not asked for something else."""
    return spec.schedule.misfire.policy if spec.starts_by_event and spec.schedule is not None else "skip"


async def delete(
    database: Database,
    tenant_no: TenantNo,
    job_id: JobId,
    *,
    if_version: int | None = None,
    by: By | None = None,
) -> None:
    """No further fire. Waiting executions are cancelled, running ones may end; deleting twice changes nothing."""
    async with begin(database, tenant_no) as work:
        job = await lock(work, job_id, if_version, deleted_too=True)
        if job.state is JobState.DELETED:
            return
        await lock_if_events(work, job.spec)
        waiting = await lock_blocked(work, job)
        timer = await settle(work, job)
        timer = await take_back(work, job, timer, retries_too=True)
        if waiting is not None:
            await cancel_blocked(work, waiting, "job deleted")
        await skip_owed(work, job_id, "deleted")
        await end_backfill(work.connection, tenant_no, job_id, "CANCELLED")
        await end_waiting(work.connection, tenant_no, job_id, CANCEL, "job deleted", Waiting.ALL)
        await refuse_if_running(work, job)
        deleted = replace(job, state=JobState.DELETED, state_reason=None)
        detail = {"state": job.state.value, "version": job.version}
        await _write(work, job, deleted, replace(timer, next_fire_at=None), "job.delete", detail, by=by)
        await forget_streak(work.connection, tenant_no, job_id)


async def replan(database: Database, dispatcher: Dispatcher, tenant_no: TenantNo, job_id: JobId) -> bool:
    """Compute the next fire again, by time zones that have changed; returns whether the job was replanned."""
    async with begin(database, tenant_no) as work:
        job = await lock_job(work.connection, tenant_no, job_id)
        if job is None or job.state is not JobState.ACTIVE or not job.spec.recurs:
            return False
        timer = await settle(work, job)
        timer = await take_back(work, job, timer)
        if timer.fires_left != 0:
            timer = replace(timer, next_fire_at=await _next(schedule_of(job), timer, job.now))
        wakes = await _write_timer(work, timer, job.spec, job.now)
    dispatcher.wake(wakes)
    return True


async def update_locked(work: Work, job: LockedJob, spec: JobSpec, *, by: By | None = None) -> Wakes:
    """Update a job that the caller has locked (step ①); returns the pools to wake after the commit."""
    if spec.depends_on or job.spec.depends_on:
        spec = await keep_parents(work, job, spec)
    waiting = await lock_blocked(work, job)
    # Pools and keys before gates, as in a submit: a transaction that creates the same pool now may wait for a gate.
    pool_no = await work.pool_no(spec.pool)
    await move_unique_key(work, job, spec)
    await lock_if_events(work, job.spec, spec)
    stages = encode_stages(spec.limits, work.tenant_no, job.id)
    timer = await settle(work, job, new_stages=stages)
    if waiting is None:
        timer = await take_back(work, job, timer)
    if rates := changed_rates(job.spec.limits, spec.limits, work.tenant_no, job.id):
        await carry_tokens(work.connection, work.tenant_no, rates)
    updated = replace(job, version=job.version + 1, spec=spec)
    moved = await renew_due(
        work.connection,
        work.tenant_no,
        job.id,
        updated.version,
        pool_no=pool_no,
        priority_class=spec.priority_class,
        stages=stages,
        start_deadline_s=_deadline_s(spec, job.id),
    )
    if waiting is None:
        timer = await _timer_for(work, job, updated, timer)
    else:
        timer = replace(timer, job_version=updated.version, fired_through=fire_of(job.id, spec)[0])
    detail = {"from_version": job.version, "version": updated.version, "changed": _list_changes(job.spec, spec)}
    wakes = await _write(work, job, updated, timer, "job.update", detail, pool_no=pool_no, by=by)
    if job.spec.secrets is not None or spec.secrets is not None:
        await record_uses(work.connection, work.tenant_no, [(job.id, spec)], are_new=False)
    if waiting is not None:
        wakes = [*wakes, *await update_blocked(work, job, waiting, spec, pool_no)]
    return [*((pool_no, ready_at) for ready_at in moved), *wakes]


async def _timer_for(work: Work, job: LockedJob, updated: LockedJob, timer: Timer) -> Timer:
    """The timer of the new version: when it fires next, and how often it still may."""
    spec, schedule = updated.spec, schedule_of(updated)
    if isinstance(schedule.when, Once) and job.spec.recurs:
        # Its one fire is still to come, whatever the job fired before, unless it was one of those fires.
        at = schedule.when.at
        executed = await find_executed_fires(work.connection, work.tenant_no, job.id, at, at, limit=1)
        timer = replace(timer, fired_through=at if executed else None)
    fires_left = _fires_left(schedule_of(job), timer, schedule)
    is_still = job.state is JobState.PAUSED or fires_left == 0
    return replace(
        timer,
        job_version=updated.version,
        next_fire_at=None if is_still else await _next(schedule, timer, job.now),
        # Also for a one-time job without a fire left: retention removes an old job by this instant.
        fired_through=timer.fired_through or (job.now if spec.recurs or fires_left == 0 else None),
        fires_left=fires_left,
    )


async def _write(
    work: Work,
    job: LockedJob,
    changed: LockedJob,
    timer: Timer,
    action: Action,
    detail: Mapping[str, object] | None = None,
    *,
    pool_no: PoolNo | None = None,
    resumes: MissedPolicy | None = None,
    by: By | None,
) -> Wakes:
    """Step ④: the job as it is from now on, its entry in the audit log, and its timer."""
    await change_job(
        work.connection,
        work.tenant_no,
        job.id,
        state=changed.state,
        version=changed.version,
        state_reason=changed.state_reason,
        spec=changed.spec if changed.version > job.version else None,
        pool_no=pool_no,
    )
    if job.spec.starts_by_event or changed.spec.starts_by_event:
        if not changed.spec.starts_by_event or changed.state is JobState.DELETED:
            await skip_events(work, job)
        await change_subscription(work, job, changed)
    if job.spec.expect is not None or changed.spec.expect is not None:
        given = [] if changed.spec.expect is None else changed.spec.expect.given
        await put_watches(work.connection, work.tenant_no, job.id, given)
    await post_changed_job(work.connection, work.tenant_no, action, changed, None if by is None else by.reason)
    if by is not None:
        entry = {"name": changed.spec.name, **(detail or {})}
        before, after = show_changes(job.spec, changed.spec)
        if changed.state is not job.state:
            before, after = before | {"state": job.state.value}, after | {"state": changed.state.value}
        await record_change(work.connection, work.tenant_no, by, action, job.id, entry, before=before, after=after)
    if not changed.spec.recurs:
        await look_again(work.connection, [job.id])
    return await _write_timer(work, timer, changed.spec, job.now, resumes=resumes)


async def _write_timer(
    work: Work, timer: Timer, spec: JobSpec, now: datetime, *, resumes: MissedPolicy | None = None
) -> Wakes:
    """Write the timer, and plan at once what is nearer than the horizon."""
    await set_timer(work.connection, timer)
    horizon_at = now + timedelta(seconds=work.database.settings.horizon_s)
    if timer.next_fire_at is None or timer.next_fire_at > horizon_at:
        return []
    planning = Planning(timer, spec, await work.pool_no_of_job(spec.pool), resumes)
    planned = await plan_timers(work.connection, work.database.clock, [planning], now=now, horizon_at=horizon_at)
    return list(planned.pools)


async def _read(connection: Connection, tenant_no: TenantNo, job_id: JobId) -> JobRow:
    row = await get_job(connection, tenant_no, job_id)
    if row is None:
        raise NotFound(f"There is no job {job_id}.")
    return row


def _list_changes(old: JobSpec, new: JobSpec) -> list[str]:
    names = (field for field in JobSpec.__struct_fields__ if field not in TRACE_FIELDS)
    return [field for field in names if getattr(old, field) != getattr(new, field)]


def _as_stored(spec: JobSpec, job: LockedJob) -> JobSpec:
    if spec.key not in {None, job.spec.key}:
        raise Conflict(f"The key of a job stays {job.spec.key!r}: leave it out, or create another job.")
    return structs.replace(fill_in_schedule(spec, job.id, job.now), key=job.spec.key)


def _with_trace(spec: JobSpec, old: JobSpec, by: By | None) -> JobSpec:
    """The trace of a version is that of its request, or of the version before: a one-time job stays with its caller."""
    if by is not None and by.trace is not None:
        return structs.replace(spec, trace=by.trace.traceparent, tracestate=by.trace.state)
    return structs.replace(spec, trace=old.trace, tracestate=old.tracestate)


def _deadline_s(spec: JobSpec, job_id: JobId) -> float | None:
    """From a fire on, with its jitter or offset."""
    if spec.start_deadline_s is None or spec.schedule is None:
        return None
    return spec.start_deadline_s + start_delay(spec.schedule, job_id).total_seconds()


def _fires_left(old: Schedule, timer: Timer, new: Schedule) -> int | None:
    """How often a new version may still fire: earlier fires count, as far as they were counted."""
    if new.max_fires is None:
        return None
    fired = old.max_fires - timer.fires_left if old.max_fires is not None and timer.fires_left is not None else 0
    return max(new.max_fires - fired, 0)


async def _next(schedule: Schedule, timer: Timer, now: datetime) -> datetime | None:
    """The first fire after now that was not fired before."""
    after = max(now, timer.fired_through) if timer.fired_through else now
    if isinstance(schedule.when, Once):
        # A one-time job has no later fire: one that came due while it was paused runs now.
        fired = timer.fired_through is not None and timer.fired_through >= schedule.when.at
        return None if fired else schedule.when.at
    return await _after(schedule, after)


async def _after(schedule: Schedule, after: datetime) -> datetime | None:
    """The next fire, or the instant from which to search for it again. It depends on the locked timer."""
    fire_at, look_again_at = await compute_schedule(schedule, lambda: next_or_look_again(schedule, after))
    return fire_at or look_again_at
