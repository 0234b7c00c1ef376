"""②a Take back what was planned of a job and has not come yet, and what it still owes (S8, P4, P10).

Step ③ of a change (`change`), once the job is settled up to now. The timer goes back to before the first fire that
is taken back, and what the calendar left out beyond it is forgotten. What has begun stays, and is not planned again,
also if the clock was set back; nor is what was cancelled ahead of its time.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from ondot.flow.change.settle import lock_timer_of, schedule_of, settle
from ondot.flow.plan import tell_skipped, thought
from ondot.model.errors import Conflict
from ondot.model.gates import encode_stages
from ondot.model.ids import JobId, TenantNo
from ondot.model.planning import SkippedRange, Timer, calendar_range, cut, fired_through_after_take_back
from ondot.model.schedule import Once, Schedule
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.jobs import LockedJob
from ondot.store.owed import drop_owed, fires_executed
from ondot.store.planned import cancelled_ahead, has_begun, lock_gates_of_job, newest_begun, take_back_fires
from ondot.store.timers import guard_timer, record_skipped, take_calendar

_MICROSECOND = timedelta(microseconds=1)


async def settle_and_take_back(
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
    # After the timer, and before settling plans what is due: that touches lines, and whoever ends what waits there has
    # the gates locked and waits for the lines.
    await lock_timer_of(connection, tenant_no, job)
    of_old = encode_stages(job.spec.limits, tenant_no, job.id)
    await lock_gates_of_job(connection, tenant_no, job.id, versions=[of_old, stages])
    timer = await settle(connection, database, tenant_no, job)
    schedule = schedule_of(job)
    once_at = once_at_of(schedule)
    bound_at, ahead = job.now, None
    is_planned_ahead = timer.fired_through is not None and timer.fired_through > job.now
    if is_planned_ahead:
        # If the clock was set back, some of what is to come has run: what comes before it stays as it is.
        bound_at = max(job.now, await newest_begun(connection, tenant_no, job.id, job.now) or job.now)
    taken = await take_back_fires(connection, tenant_no, job.id, after=bound_at, once_at=once_at)
    # Read after the taking back, which waits for a cancel under way: then none of these fires is left to be cancelled.
    if is_planned_ahead and (ahead := await cancelled_ahead(connection, tenant_no, job.id, bound_at)) is not None:
        # They are not planned again; but what the schedule has before and between them is.
        await guard_timer(connection, tenant_no, job.id, ahead[1])
        timer = replace(timer, guard_until=max(ahead[1], timer.guard_until or ahead[1]))
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
    if await has_begun(connection, tenant_no, job.id, once_at, waiting_too=not retries_too, ended_too=True):
        # Looked at last: the taking back above waited for a lease that was taking it.
        raise too_late(job.id)
    return replace(timer, next_fire_at=None, fired_through=None if taken else timer.fired_through)


async def refuse_if_running(connection: Connection, tenant_no: TenantNo, job: LockedJob) -> None:
    """What a delete does at its end: the ending of what waits has waited for a lease that was taking it, and a one-time
    job that runs is not deleted. The taking back did not wait if this was not its first attempt."""
    once_at = once_at_of(schedule_of(job))
    if once_at is not None and await has_begun(connection, tenant_no, job.id, once_at):
        raise too_late(job.id)


def once_at_of(schedule: Schedule) -> datetime | None:
    return schedule.when.at if isinstance(schedule.when, Once) else None


def too_late(job_id: JobId) -> Conflict:
    return Conflict(f"The job {job_id} has begun or ended: a one-time job can be changed only before it runs.")


async def skip_owed(connection: Connection, database: Database, tenant_no: TenantNo, job_id: JobId, reason: str) -> int:
    """Record as skipped what is still to be caught up, but for what a backfill has run; gives how many fires."""
    fires = 0
    for owed, version in await drop_owed(connection, tenant_no, job_id):
        specs = await database.specs.find(connection, [(job_id, version)])
        schedule = specs[job_id, version].schedule
        assert schedule is not None, "submit completes every schedule"
        executed = await fires_executed(connection, tenant_no, job_id, owed.from_at, owed.to_at, limit=owed.count)
        # One range says it all, also what the calendar leaves out in it.
        await take_calendar(connection, tenant_no, job_id, owed.from_at, owed.to_at)
        whole = SkippedRange(owed.from_at, owed.to_at, reason, owed.count)
        left = await thought(schedule, partial(cut, whole, schedule, sorted(executed)))
        await record_skipped(connection, tenant_no, job_id, version, left)
        for entry in left:
            tell_skipped(job_id, entry)
        fires += owed.count
    return fires


async def _forget_calendar_after(
    connection: Connection, tenant_no: TenantNo, job: LockedJob, through: datetime
) -> None:
    """What the old calendar leaves out was recorded as far as fires were planned: no longer beyond this instant."""
    for entry in await take_calendar(connection, tenant_no, job.id, through + _MICROSECOND, None):
        left = calendar_range(schedule_of(job), entry.skipped.from_at - _MICROSECOND, through + _MICROSECOND)
        if left is not None:
            version = entry.job_version or job.version
            await record_skipped(connection, tenant_no, job.id, version, [left], at=entry.at)
