"""②a Take back the executions of a job that were planned for later, and what the job still owes (S8, P4, P10).

The third step of a change (`change`), when the job is settled up to now. The timer goes back to before the first fire
that is taken back, and the calendar's skipped ranges after it are removed. Executions that have started stay, and their
fires are not planned again, even if the clock was set back. The same holds for fires that were cancelled ahead of time.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from ondot.flow.change.settle import schedule_of
from ondot.flow.plan import compute_schedule, report_skipped
from ondot.flow.work import Work
from ondot.model.errors import Conflict
from ondot.model.ids import JobId
from ondot.model.planning import SkippedRange, Timer, calendar_range, cut, fired_through_after_take_back
from ondot.model.schedule import Once
from ondot.store.jobs import LockedJob
from ondot.store.owed import drop_owed, find_executed_fires
from ondot.store.planned import find_cancelled_ahead, find_newest_begun, has_begun, take_back_fires
from ondot.store.timers import guard_timer, record_skipped, take_calendar

_MICROSECOND = timedelta(microseconds=1)


async def take_back(work: Work, job: LockedJob, timer: Timer, *, retries_too: bool = False) -> Timer:
    """Step ③: remove the executions that were planned for later. Returns the timer without a next fire.

    A one-time job that waits for its next attempt has started, and is refused; with `retries_too` the caller ends it.
    """
    connection, tenant_no = work.connection, work.tenant_no
    once_at = once_at_of(job)
    bound_at, ahead = job.now, None
    is_planned_ahead = timer.fired_through is not None and timer.fired_through > job.now
    if is_planned_ahead:
        # If the clock was set back, some later fires have already run: fires before them stay as they are.
        bound_at = max(job.now, await find_newest_begun(connection, tenant_no, job.id, job.now) or job.now)
    taken = await take_back_fires(connection, tenant_no, job.id, after=bound_at, once_at=once_at)
    # Read after the taking back, which waits for a cancel under way: no fire is left that could still be cancelled.
    if is_planned_ahead and (ahead := await find_cancelled_ahead(connection, tenant_no, job.id, bound_at)) is not None:
        # The cancelled fires are not planned again, but the schedule's fires before and between them are.
        await guard_timer(connection, tenant_no, job.id, ahead[1])
        timer = replace(timer, guard_until=max(ahead[1], timer.guard_until or ahead[1]))
    if timer.fires_left is not None:
        timer = replace(timer, fires_left=timer.fires_left + len(taken))
    if once_at is None:
        first_taken_at = min([*taken[:1], *(ahead or ())[:1]], default=None)
        # A fire that came due meanwhile, and was leased before it could be taken back, has started: the new schedule
        # continues from it, and not from the first fire that was taken back.
        begun_at = await find_newest_begun(connection, tenant_no, job.id, bound_at)
        if begun_at is not None and first_taken_at is not None and begun_at < first_taken_at:
            bound_at = begun_at
        schedule = schedule_of(job)
        compute = partial(fired_through_after_take_back, schedule, timer.fired_through, first_taken_at, bound_at)
        through = await compute_schedule(schedule, compute)
        await _forget_calendar_after(work, job, through)
        return replace(timer, next_fire_at=None, fired_through=through)
    if await has_begun(connection, tenant_no, job.id, once_at, waiting_too=not retries_too, ended_too=True):
        # Checked last: the taking back above waited for a lease of it that was under way.
        raise too_late(job.id)
    return replace(timer, next_fire_at=None, fired_through=None if taken else timer.fired_through)


async def refuse_if_running(work: Work, job: LockedJob) -> None:
    """At the end of a delete: a one-time job that runs is not deleted.

    Ending the waiting executions waited for a lease that was taking one of them. The taking back did not wait for it if
    this was not the first attempt.
    """
    once_at = once_at_of(job)
    if once_at is not None and await has_begun(work.connection, work.tenant_no, job.id, once_at):
        raise too_late(job.id)


def once_at_of(job: LockedJob) -> datetime | None:
    when = schedule_of(job).when
    return when.at if isinstance(when, Once) else None


def too_late(job_id: JobId) -> Conflict:
    return Conflict(f"The job {job_id} has started or ended: a one-time job can be changed only before it runs.")


async def skip_owed(work: Work, job_id: JobId, reason: str) -> int:
    """Record as skipped the fires still to be caught up, without those that a backfill has run; returns how many."""
    connection, tenant_no = work.connection, work.tenant_no
    fires = 0
    for owed, version in await drop_owed(connection, tenant_no, job_id):
        specs = await work.database.specs.find(connection, [(job_id, version)])
        schedule = specs[job_id, version].schedule
        assert schedule is not None, "submit completes every schedule"
        executed = await find_executed_fires(connection, tenant_no, job_id, owed.from_at, owed.to_at, limit=owed.count)
        # One range covers everything, including the fires that the calendar leaves out of it.
        await take_calendar(connection, tenant_no, job_id, owed.from_at, owed.to_at)
        whole = SkippedRange(owed.from_at, owed.to_at, reason, owed.count)
        left = await compute_schedule(schedule, partial(cut, whole, schedule, sorted(executed)))
        await record_skipped(connection, tenant_no, job_id, version, left)
        for entry in left:
            report_skipped(job_id, entry)
        fires += owed.count
    return fires


async def _forget_calendar_after(work: Work, job: LockedJob, through: datetime) -> None:
    """The old calendar's skipped ranges were recorded as far as fires were planned: remove them after this instant."""
    connection, tenant_no, schedule = work.connection, work.tenant_no, schedule_of(job)
    for entry in await take_calendar(connection, tenant_no, job.id, through + _MICROSECOND, None):
        compute = partial(calendar_range, schedule, entry.skipped.from_at - _MICROSECOND, through + _MICROSECOND)
        left = await compute_schedule(schedule, compute)
        if left is not None:
            version = entry.job_version or job.version
            await record_skipped(connection, tenant_no, job.id, version, [left], at=entry.at)
