"""②a Settle a job: lock it, and give every fire up to now its end on record, by the rules in force (P3, P4).

Steps ① and ② of a change (`change`), and what a backfill begins with. The job's row is locked first, then its
timer. What is due and the schedulers have not come to is planned as they would; what no plan comes to, such as the
fires of a pause, is recorded as skipped. The caller writes the timer, its version raised.
"""

from dataclasses import replace

from ondot.flow.plan import Planning, plan_timers, tell_skipped, thought
from ondot.flow.skipped import cut_ended
from ondot.model.errors import Conflict, NotFound, PreconditionFailed
from ondot.model.ids import JobId, TenantNo, partition_of
from ondot.model.job import JobState
from ondot.model.planning import Timer, settled_range
from ondot.model.schedule import Once, Schedule
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.jobs import LockedJob, lock_job
from ondot.store.timers import lock_timer, record_skipped


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


async def settle(connection: Connection, database: Database, tenant_no: TenantNo, job: LockedJob) -> Timer:
    """Steps ① and ②: every fire of a locked job up to now gets its end on record, by the rules in force.

    Gives the timer, locked, its version raised and `fired_through` at now, for the caller to write.
    """
    timer = await lock_timer_of(connection, tenant_no, job)
    schedule = schedule_of(job)
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
            is_paused = job.state is JobState.PAUSED
            skipped = await thought(
                schedule, lambda: settled_range(schedule, fired_through or job.now, job.now, paused=is_paused)
            )
        if skipped is not None:
            await record_skipped(connection, tenant_no, job.id, job.version, [skipped])
            from_at, to_at = skipped.from_at, skipped.to_at
            await cut_ended(
                connection, database, tenant_no, job.id, from_at, to_at, version=job.version, schedule=schedule
            )
            tell_skipped(job.id, skipped)
        fired_through = max(fired_through or job.now, job.now)
    return replace(timer, version=timer.version + 1, fired_through=fired_through)


async def lock_timer_of(connection: Connection, tenant_no: TenantNo, job: LockedJob) -> Timer:
    """The job's timer, locked; a one-time job that was planned at once has none, and stands where it fired."""
    timer = await lock_timer(connection, job.id)
    if timer is not None:
        return timer
    when = schedule_of(job).when
    fired_through = when.at if isinstance(when, Once) else None
    return Timer(job.id, tenant_no, partition_of(job.id), 1, job.version, None, fired_through)


def schedule_of(job: LockedJob) -> Schedule:
    assert job.spec.schedule is not None, "submit completes every schedule"
    return job.spec.schedule
