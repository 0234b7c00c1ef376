"""Events that matched a paused job: its misfire policy decides when it is resumed (S11, S6).

With `skip` they are recorded as skipped when they arrive. Otherwise they are held, and at the resume `once` starts the
last one, `all` those within the window, at most the newest `limit`, behind live work. The others are skipped.
"""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from ondot.flow.work import Work
from ondot.model.event import read_event
from ondot.model.event_payload import make_payload
from ondot.model.execution import PriorityClass
from ondot.model.gates import encode_stages
from ondot.model.ids import ExecutionId, PoolNo, first_id_at
from ondot.model.misfire import MissedPolicy
from ondot.model.schedule import OnEvent
from ondot.store.events import drop_held, list_held, release_held
from ondot.store.jobs import LockedJob
from ondot.store.subscriptions import find_subscriptions

if TYPE_CHECKING:
    from uuid import UUID

CLOCKS_DIFFER: Final = timedelta(hours=1)
"""The ids of events are made by the processes that receive them."""


async def release_events(work: Work, job: LockedJob, missed: MissedPolicy) -> list[tuple[PoolNo, datetime]]:
    """Start what a job owes for its pause, before it is marked as resumed; returns the pools to wake."""
    [row] = await find_subscriptions(work.connection, work.tenant_no, [job.id])
    if row.paused_at is None:
        return []
    from_id = first_id_at(row.paused_at - CLOCKS_DIFFER)
    started: list[tuple[UUID, ExecutionId, str | None]] = []
    if missed != "skip":
        assert job.spec.schedule is not None
        misfire = job.spec.schedule.misfire
        limit = 1 if missed == "once" else misfire.limit
        since_id = (
            from_id if missed == "once" else max(from_id, first_id_at(job.now - timedelta(seconds=misfire.window_s)))
        )
        held = await list_held(work.connection, work.tenant_no, job.id, limit=limit, from_id=since_id)
        ids = work.database.clock.new_ids(len(held))
        when = job.spec.schedule.when
        is_list = isinstance(when, OnEvent) and when.batch is not None
        for execution_id, (event_id, body) in zip(ids, reversed(held), strict=True):
            event = read_event(msgspec.json.decode(body), from_outside=False)
            payload = make_payload(job.spec.payload, event)
            if payload is not None and is_list:
                payload = f"[{payload}]"
            started.append((event_id, ExecutionId(execution_id), payload))
    if not started:
        await drop_held(work.connection, work.tenant_no, job.id, from_id=from_id)
        return []
    return await release_held(
        work.connection,
        work.tenant_no,
        job.id,
        started,
        job_version=job.version,
        pool_no=await work.pool_no_of_job(job.spec.pool),
        priority_class=int(PriorityClass.CATCH_UP),
        stages=encode_stages(job.spec.limits, work.tenant_no, job.id),
        from_id=from_id,
    )


async def skip_events(work: Work, job: LockedJob) -> None:
    """A paused job is deleted, or no longer started by events."""
    rows = await find_subscriptions(work.connection, work.tenant_no, [job.id])
    if rows and rows[0].paused_at is not None:
        from_id = first_id_at(rows[0].paused_at - CLOCKS_DIFFER)
        await drop_held(work.connection, work.tenant_no, job.id, from_id=from_id)
