"""What the schedules will bring: fires, work and waits, by step of time (S13, C8).

Pure. The fires of each herd (`model.herd`) are added up by step. What fires in every step is a rate, and costs nothing
to add; the rest is listed, the rarest first, within one budget: what it does not suffice for is taken to fire evenly.
The wait is predicted step by step, from the work that is left and the slots that do it. Everything of a step is taken
to be due at its start, because most cron expressions name the first second of a minute.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from heapq import heappush, heapreplace, nlargest
from itertools import accumulate
from math import ceil
from operator import add
from typing import Final

from msgspec import structs

from ondot.model.herd import A_HERD, MICROSECOND, SEARCHES, TOP, Grid, Herd, Herds
from ondot.model.ids import JobId
from ondot.model.schedule import Cron, Interval, Schedule
from ondot.model.schedule.cron import parsed_of
from ondot.model.schedule.dst import naive
from ondot.model.schedule.listing import list_fires
from ondot.model.schedule.looks import allowed
from ondot.model.schedule.rule import is_quick

FIRES_LISTED: Final = 1_000_000
"""Of all herds together: one to two seconds. 100,000 usual jobs have 100,000 in a week."""
SHORTEST_S: Final = 0.001
_MINUTE_S: Final = 60
_DAY: Final = timedelta(days=1)


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
    """The jobs with the most work in a bucket, as a heap."""
    steady: list[tuple[float, JobId, int]] = field(default_factory=list)
    """The jobs with the most work among those that fire in every step: their work in a step, and the first one."""
    is_complete: bool = True
    others_s: "array[float] | None" = None
    """The part of `work_s` that was added from others."""

    def __post_init__(self) -> None:
        self.fires, self.work_s, self.busy_s = _zeros(self.steps), _zeros(self.steps), _zeros(self.steps)

    def add_others(self, other: "Load") -> None:
        """Numbers only: whose jobs they are is not kept."""
        self.fires = _sum(self.fires, other.fires)
        self.work_s = _sum(self.work_s, other.work_s)
        self.busy_s = _sum(self.busy_s, other.busy_s)
        self.others_s = other.work_s
        self.is_complete = self.is_complete and other.is_complete


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


def add_up(herds: Herds) -> dict[int, Load]:
    """The load of each pool.

    Schedules whose fires take a search (calendars, RRULEs) share one budget: what it does not suffice for is left out.
    The load of a pool with a herd that was left out or guessed is marked as not complete.
    """
    sums: dict[int, _Sums] = {}
    left = FIRES_LISTED
    with allowed(SEARCHES) as budget:
        for herd in sorted(herds, key=lambda herd: _fires_a_day(herd.schedule)):
            of_pool = sums.get(herd.pool_no)
            if of_pool is None:
                of_pool = sums[herd.pool_no] = _Sums(herds.grid)
            if is_quick(herd.schedule):
                left -= of_pool.add(herd, left)
            elif budget.is_spent:
                of_pool.load.is_complete = False
            else:
                with allowed(A_HERD):
                    left -= of_pool.add(herd, left)
    for pool_no in herds.incomplete:
        sums[pool_no].load.is_complete = False
    return {pool_no: of_pool.finish() for pool_no, of_pool in sums.items()}


def _fires_a_day(schedule: Schedule) -> float:
    """At most. What the budget does not suffice for should be what fires most often: it fires most evenly."""
    rule = schedule.when
    if isinstance(rule, Interval):
        return 86_400 / rule.every_s
    return _times_a_day(rule) if isinstance(rule, Cron) else 0.0


def _times_a_day(rule: Cron) -> int:
    seconds, minutes, hours = parsed_of(rule).times
    return len(hours) * len(minutes) * len(seconds)


class _Sums:
    """Adds up the herds of one pool."""

    def __init__(self, grid: Grid) -> None:
        self.load = Load(grid.steps)
        self._grid = grid
        self._short_s, self._long_s = _zeros(grid.steps), _zeros(grid.steps)
        """Work that ends in the step in which it begins, and longer work."""
        self._changes_s = _zeros(grid.steps)
        """How much of the longer work is under way, as the difference to the step before."""
        self._least_s = array("d", [-1.0]) * (grid.steps // grid.steps_a_bucket + 1)
        """What a job must need at least to be among the largest of a bucket."""
        self._rates: list[tuple[int, float, Herd]] = []

    def add(self, herd: Herd, at_most: int) -> int:
        """Returns how many fires were listed, at most so many."""
        grid, schedule, from_at = self._grid, herd.schedule, herd.from_at
        until = grid.end_at - timedelta(seconds=herd.delay_s) - MICROSECOND
        rate, weight, listed = _find_rate(schedule, grid.step_s), 1, 0
        if rate is None and grid.step_s == _MINUTE_S:
            schedule, weight = _by_minute(schedule)
        if rate is None and _fires_a_day(schedule) * (until - from_at) / _DAY > at_most:
            rate = _guess_rate(herd.schedule, grid, from_at, until)
            self.load.is_complete = False
        if rate is not None or weight > 1:
            # What is due in a step that has begun is listed; from the next one on, each step is like the others.
            if isinstance(schedule.when, Interval):
                from_at = max(from_at, schedule.when.anchor_at)
            first = ceil(((from_at - grid.begin_at).total_seconds() + herd.delay_s) / grid.step_s)
            edge_at = grid.begin_at + timedelta(seconds=first * grid.step_s - herd.delay_s)
            listed += self._list(herd, herd.schedule, from_at, min(until, edge_at - MICROSECOND), at_most)
            from_at = edge_at
            if rate is not None:
                self._rates.append((first, rate, herd))
                return listed
        return listed + self._list(herd, schedule, from_at, until, at_most - listed, weight)

    def finish(self) -> Load:
        steps, load = self._grid.steps, self.load
        fires, short_s, long_s, ramps_s = (_zeros(steps) for _ in range(4))
        for first, rate, herd in self._rates:
            if first >= steps:
                continue
            work_s, spread = rate * herd.work_s, self._spread(herd)
            fires[first] += rate * herd.jobs
            if spread == 1:
                short_s[first] += work_s
            else:
                # Each step begins as much; what is under way rises until the first of it ends.
                long_s[first] += work_s
                ramps_s[first] += work_s / spread
                if first + spread < steps:
                    ramps_s[first + spread] -= work_s / spread
        short_s, long_s = _sum(self._short_s, accumulate(short_s)), _sum(self._long_s, accumulate(long_s))
        under_way_s = accumulate(map(add, self._changes_s, accumulate(ramps_s)))
        load.fires = _sum(load.fires, accumulate(fires))
        load.work_s = _sum(short_s, long_s)
        load.busy_s = array("d", (short + max(long, 0.0) for short, long in zip(short_s, under_way_s, strict=True)))
        steady = (
            (rate * took_s, job_id, first) for first, rate, herd in self._rates for took_s, job_id in herd.longest
        )
        load.steady = nlargest(TOP, steady)
        return load

    def _list(
        self, herd: Herd, schedule: Schedule, from_at: datetime, until: datetime, at_most: int, weight: int = 1
    ) -> int:
        """Add the fires in [from_at, until], each of them so many times."""
        if from_at > until:
            return 0
        found, is_complete = list_fires(schedule, from_at - MICROSECOND, until, max(at_most, 0))
        if not is_complete:
            self.load.is_complete = False
        if not found:
            return 0
        step_s, first_s = self._grid.step_s, int(self._grid.begin_at.timestamp()) - herd.delay_s
        steps = [(fire_s - first_s) // step_s for fire_s in found]
        fires, jobs, work_s, spread = self.load.fires, weight * herd.jobs, weight * herd.work_s, self._spread(herd)
        works_s = self._short_s if spread == 1 else self._long_s
        for step in steps:
            fires[step] += jobs
            works_s[step] += work_s
        if spread > 1:
            changes_s, last, share_s = self._changes_s, self._grid.steps, work_s / spread
            for step in steps:
                changes_s[step] += share_s
                if step + spread < last:
                    changes_s[step + spread] -= share_s
        self._rank(herd, steps, weight)
        return len(found)

    def _rank(self, herd: Herd, steps: list[int], weight: int) -> None:
        a_bucket, least_s, longest_s = self._grid.steps_a_bucket, self._least_s, herd.longest[0][0] * weight
        for bucket, count in Counter(steps if a_bucket == 1 else [step // a_bucket for step in steps]).items():
            if count * longest_s <= least_s[bucket]:
                continue
            best = self.load.top.setdefault(bucket, [])
            for took_s, job_id in herd.longest:
                work_s = count * weight * took_s
                if len(best) < TOP:
                    heappush(best, (work_s, job_id))
                elif work_s > best[0][0]:
                    heapreplace(best, (work_s, job_id))
                else:
                    break
            if len(best) == TOP:
                least_s[bucket] = best[0][0]

    def _spread(self, herd: Herd) -> int:
        """The steps in which its work is under way."""
        return max(1, round(herd.work_s / herd.jobs / self._grid.step_s))


def _find_rate(schedule: Schedule, step_s: int) -> float | None:
    """How often it fires in each step, if in all of them alike: `* * * * *`, or an interval that is not longer."""
    rule = schedule.when
    if not is_quick(schedule) or schedule.start_at is not None or schedule.end_at is not None:
        return None
    if isinstance(rule, Interval):
        return step_s / rule.every_s if rule.every_s <= step_s else None
    if not isinstance(rule, Cron):
        return None
    parsed = parsed_of(rule)
    if not (parsed.is_straight and parsed.is_daily and _times_a_day(rule) == 1440 * len(parsed.times.seconds)):
        return None
    count = len(parsed.times.seconds)
    is_every_step = step_s == _MINUTE_S or _times_a_day(rule) == 86_400
    return count * step_s / _MINUTE_S if is_every_step else None


def _guess_rate(schedule: Schedule, grid: Grid, from_at: datetime, until: datetime) -> float | None:
    """How often it fires in a step on average; None: only a search finds it."""
    rule = schedule.when
    if isinstance(rule, Interval) and is_quick(schedule):
        return grid.step_s / rule.every_s
    if not isinstance(rule, Cron) or not is_quick(schedule):
        return None
    if parsed_of(rule).is_daily:
        return _times_a_day(rule) * grid.step_s / _DAY.total_seconds()
    range_s = max((until - from_at).total_seconds(), grid.step_s)
    return parsed_of(rule).slots_between(naive(from_at), naive(until)) * grid.step_s / range_s


def _by_minute(schedule: Schedule) -> tuple[Schedule, int]:
    """For steps of a minute: the schedule at the first second of its minutes, and how often it fires in each."""
    rule = schedule.when
    if not isinstance(rule, Cron) or not is_quick(schedule) or schedule.start_at or schedule.end_at:
        return schedule, 1
    parsed = parsed_of(rule)
    count = len(parsed.times.seconds)
    if count == 1 or not parsed.is_straight:  # what a skipped hour does to the others is not the same for each minute
        return schedule, 1
    minutely = structs.replace(rule, expression=" ".join(("0", *parsed.fields[1:])), spread=0)
    return structs.replace(schedule, when=minutely), count


def _zeros(count: int) -> "array[float]":
    return array("d", bytes(8 * count))


def _sum(one: Iterable[float], other: Iterable[float]) -> "array[float]":
    return array("d", map(add, one, other))


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


def gather(load: Load, grid: Grid, waits: Sequence[float] | None) -> list[Bucket]:
    """The load in buckets."""
    buckets, a_bucket = [], grid.steps_a_bucket
    fires, works_s, busy_s, others_s = load.fires, load.work_s, load.busy_s, load.others_s
    for number, begin in enumerate(range(0, grid.steps, a_bucket)):
        end = min(begin + a_bucket, grid.steps)
        buckets.append(
            Bucket(
                at=grid.begin_at + timedelta(seconds=begin * grid.step_s),
                fires=sum(fires[begin:end]),
                work_s=sum(works_s[begin:end]),
                busy_s=sum(busy_s[begin:end]),
                wait_s=None if waits is None else max(waits[begin:end]),
                top=_largest(load, number, begin, end),
                others_s=0.0 if others_s is None else sum(others_s[begin:end]),
            )
        )
    return buckets


def _largest(load: Load, bucket: int, begin: int, end: int) -> tuple[tuple[JobId, float], ...]:
    found, steady = load.top.get(bucket, ()), load.steady
    if steady and (len(found) < TOP or found[0][0] < steady[0][0] * (end - begin)):
        best = {job_id: work_s for work_s, job_id in found}
        for step_s, job_id, first in steady:
            if first < end:
                best[job_id] = best.get(job_id, 0.0) + step_s * (end - max(begin, first))
        found = [(work_s, job_id) for job_id, work_s in best.items()]
    return tuple((job_id, work_s) for work_s, job_id in sorted(found, reverse=True)[:TOP])
