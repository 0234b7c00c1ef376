"""Skipped ranges hold no fire that has an execution (P4).

A fire that ran after all, or that ended ahead of its time, is cut out of the skipped range that covers it, by the
schedule that the range was recorded with.
"""

from collections.abc import Sequence
from datetime import datetime
from functools import partial

from ondot.flow.plan import compute_schedule
from ondot.flow.work import Work
from ondot.model.ids import JobId
from ondot.model.planning import cut
from ondot.model.schedule import Schedule
from ondot.store.jobs import LockedJob
from ondot.store.owed import find_executed_fires
from ondot.store.timers import record_skipped, take_skipped

MOST_CANCELLED = 10_000
"""Future fires that a person cancels one by one: at most as many as a horizon has."""


async def cut_skipped(
    work: Work, job_id: JobId, fires: Sequence[datetime], *, version: int, schedule: Schedule
) -> None:
    """Cut these fires, ascending, out of their ranges. `version`, `schedule`: for ranges that do not name theirs."""
    for recorded in await take_skipped(work.connection, work.tenant_no, job_id, fires):
        skipped, recorded_by = recorded.skipped, recorded.job_version or version
        specs = await work.database.specs.find(work.connection, [(job_id, recorded_by)])
        spec = specs.get((job_id, recorded_by))
        within = [fire_at for fire_at in fires if skipped.from_at <= fire_at <= skipped.to_at]
        by = spec.schedule if spec and spec.schedule else schedule
        left = await compute_schedule(by, partial(cut, skipped, by, within))
        await record_skipped(work.connection, work.tenant_no, job_id, recorded_by, left, at=recorded.at)


async def cut_ended(work: Work, job: LockedJob, from_at: datetime, to_at: datetime) -> None:
    """Cut fires that have an execution out of a range that was just skipped: those cancelled before a pause."""
    assert job.spec.schedule is not None, "submit completes every schedule"
    ended = await find_executed_fires(work.connection, work.tenant_no, job.id, from_at, to_at, limit=MOST_CANCELLED)
    if ended:
        await cut_skipped(work, job.id, sorted(ended), version=job.version, schedule=job.spec.schedule)
