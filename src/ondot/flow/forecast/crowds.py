"""The crowds of all pools, at most a minute old, for those who create recurring jobs (S13).

Read when a recurring job is created and the last reading is older than `KEPT_S`, of the jobs of all tenants: slots are
shared. A create waits for it only briefly; without it, it goes on without a warning, and a spread gets an offset by the
job's id. One-time jobs never come here.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import uuid4

from msgspec import structs

from ondot.flow.forecast.compute import add_up_jobs
from ondot.model.crowd import Crowd, Warned
from ondot.model.forecast import predict_waits
from ondot.model.herd import Grid
from ondot.model.job import JobSpec
from ondot.model.schedule import Once, OnEvent
from ondot.store.database import Database
from ondot.store.forecast import list_recurring, list_slots, measure_durations
from ondot.telemetry.log import get_logger

KEPT_S: Final = 60.0
WAITED_S: Final = 0.5
STEP_S: Final = 60
STEPS: Final = 25 * 60
JOBS_WARNED: Final = 100
"""Of one request: the first so many are looked at."""

log = get_logger()


@dataclass(frozen=True, slots=True)
class JobWarning:
    """A fact that the creator of a job should know, and that does not stop it."""

    code: str
    detail: str


class Crowds:
    def __init__(self, database: Database, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._monotonic = monotonic
        self._crowds: dict[str, Crowd] = {}
        self._read_s = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def place(self, specs: Sequence[JobSpec]) -> tuple[Sequence[JobSpec], dict[int, list[JobWarning]]]:
        """The specs with an offset for each spread, and warnings by their place in the request."""
        found = [(place, spec) for place, spec in enumerate(specs) if _recurs(spec)]
        if not found or not await self._is_fresh():
            return specs, {}
        placed, warnings = list(specs), dict[int, list[JobWarning]]()
        for place, spec in found:
            crowd, schedule = self._crowds.get(spec.pool), spec.schedule
            if crowd is None or schedule is None:
                continue
            if schedule.spread_s and schedule.offset_s is None:
                offset_s = crowd.choose_offset(schedule, (spec.key or uuid4().hex).encode())
                placed[place] = structs.replace(spec, schedule=structs.replace(schedule, offset_s=float(offset_s)))
                await asyncio.sleep(0)  # a window of a day takes some milliseconds: others get their turn
            elif place < JOBS_WARNED and (warned := crowd.warn(schedule, schedule.offset_s or 0.0)) is not None:
                warnings[place] = [_say(warned, spec)]
        return placed, warnings

    def forget(self) -> None:
        """Read again with the next recurring job."""
        self._read_s = float("-inf")

    async def _is_fresh(self) -> bool:
        if self._monotonic() - self._read_s < KEPT_S:
            return True
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        done, _ = await asyncio.wait({self._reading}, timeout=WAITED_S)
        return bool(done) and self._monotonic() - self._read_s < KEPT_S

    async def _read(self) -> None:
        try:
            async with self._database.patient.connection() as connection:
                begin_at = self._database.clock.now().replace(second=0, microsecond=0)
                grid = Grid(begin_at, STEP_S, STEPS)
                slots = await list_slots(connection)
                recurring = await list_recurring(connection, None, grid.end_at)
                durations = await measure_durations(connection, None)
            work = await asyncio.to_thread(add_up_jobs, recurring, durations, grid, begin_at, is_queued=False)
            crowds: dict[str, Crowd] = {}
            for pool_no, name, count in slots:
                load = work.loads.get(pool_no)
                if load is not None and count:
                    waits = predict_waits(load.fires, load.work_s, count, STEP_S)
                    crowds[name] = Crowd(grid, load.fires, waits)
            self._crowds, self._read_s = crowds, self._monotonic()
        except Exception:  # without it jobs are created all the same
            log.exception("crowds.failed")


def _recurs(spec: JobSpec) -> bool:
    return spec.schedule is not None and not isinstance(spec.schedule.when, (Once, OnEvent))


def _say(warned: Warned, spec: JobSpec) -> JobWarning:
    detail = (
        f"At {_instant(warned.at)} the pool {spec.pool!r} is crowded: an execution is likely to wait"
        f" {warned.wait_s:.0f} s for a slot."
    )
    if warned.minutes:
        minutes = ", ".join(map(str, warned.minutes))
        detail += f" There is room at minute {minutes} of the hour; or let ondot choose: `spread`, for example 10m."
    else:
        detail += " Let ondot choose a better instant: `spread`, for example 10m."
    return JobWarning("crowded", detail)


def _instant(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"
