"""②a Settle a job: every fire up to now gets its end on record, by the rules in force (P3, P4).

The first two steps of a change (`change`), and the start of a backfill. The job's row is locked first, then its timer,
then its gates. Fires that are due and that the schedulers have not planned yet are planned as they would plan them.
Fires that no plan reaches, such as those of a pause, are recorded as skipped. The caller writes the timer.
"""

from dataclasses import replace
from datetime import datetime

from ondot.flow.plan import Planning, compute_schedule, plan_timers, report_skipped
from ondot.flow.skipped import cut_ended
from ondot.flow.work import Work
from ondot.model.errors import Conflict, NotFound, PreconditionFailed
from ondot.model.gates import encode_stages
from ondot.model.ids import JobId, partition_of
from ondot.model.job import JobState
from ondot.model.planning import Timer, settled_ranges
from ondot.model.schedule import Once, Schedule
from ondot.store.jobs import JobRow, LockedJob, lock_job
from ondot.store.planned import lock_gates_of_job
from ondot.store.timers import lock_timer, record_skipped


async def lock(work: Work, job_id: JobId, if_version: int | None = None, *, deleted_too: bool = False) -> LockedJob:
    """Step ①: lock the job's row. Raises if there is no such job, or if it cannot be changed."""
    job = await lock_job(work.connection, work.tenant_no, job_id)
    if job is None:
        raise NotFound(f"There is no job {job_id}.")
    check_changeable(job, if_version, deleted_too=deleted_too)
    return job


def check_changeable(job: LockedJob | JobRow, if_version: int | None, *, deleted_too: bool = False) -> None:
    if if_version is not None and job.version != if_version:
        raise PreconditionFailed(
            f"The job {job.id} is at version {job.version}, not {if_version}: read it again, then change that."
        )
    if job.state is JobState.DELETED and not deleted_too:
        raise Conflict(f"The job {job.id} is deleted: create it again.")


async def settle(work: Work, job: LockedJob, *, new_stages: str | None = None) -> Timer:
    """Step ②: every fire of a locked job up to now gets its end on record.

    Locks the timer and the gates. `new_stages`: the gates that the job's executions pass from now on; they are locked
    with the old ones. Returns the timer with its version raised and `fired_through` at now, for the caller to write.
    """
    timer = await lock_timer_of(work, job)
    # The gates are locked before the plan below inserts into their lines: a transaction that ends waiting executions
    # locks the gates first and then waits for the lines.
    stages = [encode_stages(job.spec.limits, work.tenant_no, job.id), new_stages]
    await lock_gates_of_job(work.connection, work.tenant_no, job.id, versions=stages)
    timer = await _plan_due(work, job, timer)
    fired_through = timer.fired_through
    if job.spec.recurs:
        if timer.fires_left != 0:
            await _record_unplanned(work, job, fired_through or job.now)
        fired_through = max(fired_through or job.now, job.now)
    return replace(timer, version=timer.version + 1, fired_through=fired_through)


async def _plan_due(work: Work, job: LockedJob, timer: Timer) -> Timer:
    """Plan the fires that are due by now, if the schedulers are behind."""
    while timer.next_fire_at is not None and timer.next_fire_at <= job.now:
        planning = Planning(timer, job.spec, await work.pool_no_of_job(job.spec.pool))
        await plan_timers(work.connection, work.database.clock, [planning], now=job.now, horizon_at=job.now)
        moved = await lock_timer(work.connection, job.id)
        if moved is None or moved.next_fire_at == timer.next_fire_at:
            break
        timer = moved
    return timer


async def _record_unplanned(work: Work, job: LockedJob, since_at: datetime) -> None:
    """Record as skipped the fires up to now that no plan reaches."""
    schedule, is_paused = schedule_of(job), job.state is JobState.PAUSED
    skipped = await compute_schedule(schedule, lambda: settled_ranges(schedule, since_at, job.now, paused=is_paused))
    if skipped:
        await record_skipped(work.connection, work.tenant_no, job.id, job.version, skipped)
        await cut_ended(work, job, skipped[0].from_at, skipped[-1].to_at)
    for entry in skipped:
        report_skipped(job.id, entry)


async def lock_timer_of(work: Work, job: LockedJob) -> Timer:
    """The job's timer, locked. A one-time job that was planned when it was submitted has none: it is as if fired."""
    timer = await lock_timer(work.connection, job.id)
    if timer is not None:
        return timer
    when = schedule_of(job).when
    fired_through = when.at if isinstance(when, Once) else None
    return Timer(job.id, work.tenant_no, partition_of(job.id), 1, job.version, None, fired_through)


def schedule_of(job: LockedJob) -> Schedule:
    assert job.spec.schedule is not None, "submit completes every schedule"
    return job.spec.schedule
