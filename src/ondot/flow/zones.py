"""Compute stored fires again when the rules of time zones have changed (S4): one pass of housekeeping.

Every next fire in `timer` was computed with some release of tzdata. A node with a newer one than the installation's
checks all jobs once, in the order of their ids, and replans those whose next fire is another one now. A node with an
older one does nothing: in a rolling upgrade the newest rules win. The last job checked is stored, so that a node that
takes over continues from there.
"""

from datetime import datetime
from functools import partial
from uuid import UUID

from ondot.flow.change.change import replan
from ondot.flow.dispatch import Dispatcher
from ondot.flow.plan import compute_schedule
from ondot.model.errors import InvalidSchedule
from ondot.model.planning import Timer
from ondot.model.schedule import Schedule, next_fire, tzdata_version
from ondot.store.database import Database
from ondot.store.timers import list_timers_after
from ondot.store.zones import Zones, read_zones, set_zones
from ondot.telemetry.log import get_logger

JOBS_A_PASS = 500

log = get_logger()


async def zones_pass(database: Database, dispatcher: Dispatcher, version: str | None = None) -> int:
    """Check the next jobs, if the installation's zones are older than this node's; returns how many were checked."""
    version = version or tzdata_version()
    async with database.connection() as connection:
        stored = await read_zones(connection)
        if stored.version is not None and stored.version >= version:
            return 0
        # The progress of a node with another release does not count.
        through = stored.through if stored.coming == version else None
        timers = await list_timers_after(connection, through or UUID(int=0), JOBS_A_PASS)
        if not timers:
            await set_zones(connection, Zones(version))
            log.info("zones.changed", before=stored.version, now=version)
            return 0
        specs = await database.specs.find(connection, [(timer.job_id, timer.job_version) for timer in timers])
        now = database.clock.now()
    for timer in timers:
        spec = specs.get((timer.job_id, timer.job_version))
        if spec is None or spec.schedule is None or not spec.recurs:
            continue
        try:
            if await compute_schedule(spec.schedule, partial(_has_moved, spec.schedule, timer, now)) and await replan(
                database, dispatcher, timer.tenant_no, timer.job_id
            ):
                log.info("job.planned_anew", job_id=str(timer.job_id), was=str(timer.next_fire_at))
        except InvalidSchedule:  # a schedule this node cannot compute must not stop all the others
            log.exception("timer.unplannable", job_id=str(timer.job_id))
    async with database.connection() as connection:
        await set_zones(connection, Zones(stored.version, version, timers[-1].job_id))
    return len(timers)


def _has_moved(schedule: Schedule, timer: Timer, now: datetime) -> bool:
    """Whether the next fire is not the stored one. A due fire is left to the planner, which continues from it."""
    if timer.next_fire_at is None or timer.next_fire_at <= now:
        return False
    after = max(now, timer.fired_through) if timer.fired_through else now
    return next_fire(schedule, after) != timer.next_fire_at
