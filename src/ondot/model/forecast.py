"""What the schedules will bring: fires, work and waits, by step of time (S13, C8).

Pure. Jobs that share a schedule, a pool and a delay are one `Herd`: its fires are listed once, however many jobs it
has, which is what makes 100,000 jobs and a week a matter of a second. The wait is predicted step by step, from
the work that is left and the slots that do it. Everything of a step is taken to be due at its start, because most cron
expressions name the first second of a minute.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from heapq import heappush, heapreplace, nlargest
from operator import add
from typing import Final

from msgspec import structs

from ondot.model.ids import JobId
from ondot.model.schedule import Cron, Interval, Schedule
from ondot.model.schedule.listing import list_fires
from ondot.model.schedule.looks import allowed
from ondot.model.schedule.rule import is_quick
from ondot.model.schedule.spread import resolve

FIRES_LISTED: Final = 50_000
"""Of one herd. More often than each 12 s for a week: its rate is taken to go on as it was."""
SEARCHES: Final = 200_000
"""Looks of all searches together: about a second."""
A_HERD: Final = 5_000
TOP: Final = 3
SHORTEST_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class Herd:
    """Jobs that fire in the same steps. `jobs`: how long each takes, in seconds."""

    schedule: Schedule
    delay_s: int
    pool_no: int
    jobs: dict[JobId, float]


class Herds:
    """Gathers jobs into herds, for one grid: what differs by less than a step is the same. `fires_from`: as in
    `add_up`."""

    def __init__(self, grid: "Grid", fires_from: datetime | None = None) -> None:
        self._grid = grid
        self._open_from = max(grid.begin_at, fires_from or grid.begin_at)
        self._herds: dict[tuple[Schedule, int, int], Herd] = {}

    def add(self, job_id: JobId, schedule: Schedule, delay_s: float, pool_no: int, lasts_s: float) -> None:
        delay_s, step_s, rule = int(delay_s), self._grid.step_s, schedule.when
        if isinstance(rule, Cron) and rule.spread:  # jobs whose H came to the same values fire together
            text = resolve(rule.expression, rule.spread)
            schedule = structs.replace(schedule, when=structs.replace(rule, expression=text, spread=0))
        elif isinstance(rule, Interval) and self._is_open(schedule, rule):
            every_s, since = rule.every_s, self._grid.begin_at - rule.anchor_at
            phase_s = (-(since.total_seconds() - delay_s)) % every_s if every_s >= step_s else 0
            anchor_at = self._grid.begin_at + timedelta(seconds=phase_s // step_s * step_s - every_s)
            schedule, delay_s = Schedule(when=Interval(every_s=every_s, anchor_at=anchor_at)), 0
        elif schedule.jitter_s or schedule.offset_s:
            schedule = structs.replace(
                schedule, jitter_s=0, spread_s=0, offset_s=None, is_offset_given=False
            )  # they are in `delay_s`
        key = schedule, delay_s // step_s * step_s, pool_no
        if (herd := self._herds.get(key)) is None:
            herd = self._herds[key] = Herd(*key, {})
        herd.jobs[job_id] = lasts_s

    def __iter__(self) -> Iterator[Herd]:
        return iter(self._herds.values())

    def _is_open(self, schedule: Schedule, rule: Interval) -> bool:
        """Whether an interval goes on through all of the grid that counts, so that only its phase matters. The first
        bucket may have begun an hour before the first fire that counts: jobs created meanwhile are open too."""
        begins_at, grid = max(rule.anchor_at, schedule.start_at or rule.anchor_at), self._grid
        is_alone = schedule.calendar is None and not schedule.include and not schedule.exclude
        return is_alone and begins_at <= self._open_from and (schedule.end_at is None or schedule.end_at >= grid.end_at)


@dataclass(slots=True)
class Load:
    """One pool's load over the steps of a forecast."""

    steps: int
    fires: "array[float]" = field(init=False)
    work_s: "array[float]" = field(init=False)
    """Slot-seconds that begin in the step."""
    busy_s: "array[float]" = field(init=False)
    """Slot-seconds that are used in the step, by work of any step."""
    top: dict[int, list[tuple[float, JobId]]] = field(default_factory=dict)
    """The jobs with the most work in a step, as a heap."""
    is_complete: bool = True
    others_s: "array[float] | None" = None
    """The part of `work_s` that was added from others."""

    def add_others(self, other: "Load") -> None:
        """Numbers only: whose jobs they are is not kept."""
        self.fires = array("d", map(add, self.fires, other.fires))
        self.work_s = array("d", map(add, self.work_s, other.work_s))
        self.busy_s = array("d", map(add, self.busy_s, other.busy_s))
        self.others_s = other.work_s
        self.is_complete = self.is_complete and other.is_complete

    def __post_init__(self) -> None:
        self.fires = array("d", bytes(8 * self.steps))
        self.work_s = array("d", bytes(8 * self.steps))
        self.busy_s = array("d", bytes(8 * self.steps))


@dataclass(frozen=True, slots=True)
class Grid:
    """Steps of equal length from an instant on."""

    begin_at: datetime
    step_s: int
    steps: int

    @property
    def end_at(self) -> datetime:
        return self.begin_at + timedelta(seconds=self.step_s * self.steps)


@dataclass(frozen=True, slots=True)
class Bucket:
    """What a part of the forecast shows: several steps, added up; the wait is the longest of them."""

    at: datetime
    fires: float
    work_s: float
    busy_s: float
    wait_s: float | None
    top: tuple[tuple[JobId, float], ...]
    others_s: float = 0.0
    """The part of `work_s` that is not the caller's own."""


def add_up(herds: Iterable[Herd], grid: Grid, fires_from: datetime) -> dict[int, Load]:
    """The load of each pool. Fires before `fires_from` are left out.

    Schedules whose fires take a search (calendars, RRULEs) share one budget: what it does not suffice for is left out,
    and the load of that pool is marked as not complete.
    """
    loads: dict[int, Load] = {}
    with allowed(SEARCHES) as budget:
        for herd in herds:
            load = loads.get(herd.pool_no)
            if load is None:
                load = loads[herd.pool_no] = Load(grid.steps)
            if is_quick(herd.schedule):
                _add(load, herd, grid, fires_from)
            elif budget.is_spent:
                load.is_complete = False
            else:
                with allowed(A_HERD):
                    _add(load, herd, grid, fires_from)
    for load in loads.values():
        _spread_long_work(load)
    return loads


def _add(load: Load, herd: Herd, grid: Grid, fires_from: datetime) -> None:
    counts = _count_by_step(load, herd, grid, fires_from)
    if not counts:
        return
    jobs, work_s = len(herd.jobs), sum(herd.jobs.values())
    lasts = max(work_s / jobs, SHORTEST_S)
    longest = nlargest(TOP, herd.jobs.items(), key=lambda job: job[1])
    fires, works, busy, step_s, last = load.fires, load.work_s, load.busy_s, grid.step_s, grid.steps
    for step, count in counts.items():
        fires[step] += count * jobs
        works[step] += count * work_s
        # `busy` holds differences until `_spread_long_work` adds them up: so much more from here, so much less later.
        spread = max(1, round(lasts / step_s))
        share = count * work_s / spread
        busy[step] += share
        if step + spread < last:
            busy[step + spread] -= share
        best = load.top.setdefault(step, [])
        for job_id, took_s in longest:
            entry = (count * took_s, job_id)
            if len(best) < TOP:
                heappush(best, entry)
            elif entry > best[0]:
                heapreplace(best, entry)
            else:
                break


def _count_by_step(load: Load, herd: Herd, grid: Grid, fires_from: datetime) -> dict[int, float]:
    rule, step_s = herd.schedule.when, grid.step_s
    if isinstance(rule, Interval) and rule.every_s < step_s and herd.schedule.end_at is None:
        first_at = max(rule.anchor_at, herd.schedule.start_at or rule.anchor_at, fires_from)
        first = max(0, int((first_at - grid.begin_at).total_seconds() + herd.delay_s) // step_s)
        return dict.fromkeys(range(first, grid.steps), step_s / rule.every_s)
    after = max(grid.begin_at - timedelta(seconds=herd.delay_s), fires_from) - timedelta(microseconds=1)
    until = grid.end_at - timedelta(seconds=herd.delay_s, microseconds=1)
    fires, is_complete = list_fires(herd.schedule, after, until, FIRES_LISTED)
    first_s = int(grid.begin_at.timestamp()) - herd.delay_s
    counts: dict[int, float] = {}
    for fire_s in fires:
        step = (fire_s - first_s) // step_s
        counts[step] = counts.get(step, 0) + 1
    if not is_complete:
        load.is_complete = False
    if len(fires) == FIRES_LISTED:
        # As often as before, to the end: a guess for a schedule of many thousand fires, and marked as one.
        first, last = min(counts), max(counts)
        rate = len(fires) / (last + 1 - first)
        counts.update((step, rate) for step in range(last + 1, grid.steps))
    return counts


def _spread_long_work(load: Load) -> None:
    level = 0.0
    for step, change in enumerate(load.busy_s):
        level += change
        load.busy_s[step] = max(level, 0.0)


def predict_waits(
    fires: Sequence[float], work_s: Sequence[float], slots: int, step_s: int, *, due: float = 0.0
) -> "array[float]":
    """For each step, how long the last of its fires waits for a slot; infinite if there is none.

    `due`: executions that wait before the first step, each taken to be as long as the others are on average.
    """
    if slots <= 0:
        return array("d", (float("inf") if count or due else 0.0 for count in fires))
    waits = array("d")
    all_fires = sum(fires)
    mean_s = sum(work_s) / all_fires if all_fires else SHORTEST_S
    count, left_s = due, due * mean_s
    for new, new_s in zip(fires, work_s, strict=True):
        count, left_s = count + new, left_s + new_s
        if count < SHORTEST_S:
            waits.append(0.0)
            continue
        mean_s = left_s / count
        waits.append(max(0.0, left_s / slots - mean_s))
        done_s = min(left_s, min(float(slots), count) * step_s)
        count, left_s = count * (1 - done_s / left_s) if left_s else 0.0, left_s - done_s
    return waits


def gather(load: Load, grid: Grid, steps_a_bucket: int, waits: Sequence[float] | None) -> list[Bucket]:
    """The load in buckets of several steps."""
    buckets = []
    for begin in range(0, grid.steps, steps_a_bucket):
        steps = range(begin, min(begin + steps_a_bucket, grid.steps))
        best: dict[JobId, float] = {}
        for step in steps:
            for work_s, job_id in load.top.get(step, ()):
                best[job_id] = best.get(job_id, 0.0) + work_s
        buckets.append(
            Bucket(
                at=grid.begin_at + timedelta(seconds=begin * grid.step_s),
                fires=sum(load.fires[step] for step in steps),
                work_s=sum(load.work_s[step] for step in steps),
                busy_s=sum(load.busy_s[step] for step in steps),
                wait_s=None if waits is None else max(waits[step] for step in steps),
                top=tuple(nlargest(TOP, best.items(), key=lambda job: job[1])),
                others_s=0.0 if load.others_s is None else sum(load.others_s[step] for step in steps),
            )
        )
    return buckets
