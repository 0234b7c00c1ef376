"""Skipped ranges hold no fire that has an execution (P4): what was run after all, or has ended ahead of its time, is
cut out of them, each by the schedule that the range was recorded by."""

from collections.abc import Sequence
from datetime import datetime
from functools import partial

from ondot.flow.plan import thought
from ondot.model.ids import JobId, TenantNo
from ondot.model.planning import cut
from ondot.model.schedule import Schedule
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.owed import fires_executed
from ondot.store.timers import record_skipped, take_skipped

MOST = 10_000
"""Fires to come that a person cancels one by one: at most as many as a horizon has."""


async def cut_skipped(
    connection: Connection,
    database: Database,
    tenant_no: TenantNo,
    job_id: JobId,
    fires: Sequence[datetime],
    *,
    version: int,
    schedule: Schedule,
) -> None:
    """Cut these fires, ascending, out of their ranges. `version`, `schedule`: of ranges that do not say theirs."""
    for recorded in await take_skipped(connection, tenant_no, job_id, fires):
        skipped, recorded_by = recorded.skipped, recorded.job_version or version
        specs = await database.specs.find(connection, [(job_id, recorded_by)])
        spec = specs.get((job_id, recorded_by))
        within = [fire_at for fire_at in fires if skipped.from_at <= fire_at <= skipped.to_at]
        by = spec.schedule if spec and spec.schedule else schedule
        left = await thought(by, partial(cut, skipped, by, within))
        await record_skipped(connection, tenant_no, job_id, recorded_by, left, at=recorded.at)


async def cut_ended(
    connection: Connection,
    database: Database,
    tenant_no: TenantNo,
    job_id: JobId,
    from_at: datetime,
    to_at: datetime,
    *,
    version: int,
    schedule: Schedule,
) -> None:
    """Cut out of what was just skipped what has an execution: fires to come that were cancelled before a pause."""
    ended = await fires_executed(connection, tenant_no, job_id, from_at, to_at, limit=MOST)
    if ended:
        await cut_skipped(connection, database, tenant_no, job_id, sorted(ended), version=version, schedule=schedule)
