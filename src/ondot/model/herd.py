"""Jobs that fire in the same steps of a forecast are one herd (S13).

Pure. The fires of a herd are listed once, however many jobs it has, which is what makes 100,000 jobs and a week a
matter of a second. So what does not change the fires within the grid is dropped: bounds outside of it, the job's own H,
the microseconds of an anchor. The delay of an interval is part of its anchor; other delays, by jitter or spread, are
whole steps. That is exact for what fires at the beginning of a step, as most cron expressions do with steps of a
minute. The rest is counted up to one step early.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from heapq import nlargest
from math import gcd
from operator import itemgetter
from typing import Final, NamedTuple

from msgspec import structs

from ondot.model.ids import JobId
from ondot.model.schedule import Cron, Interval, Schedule
from ondot.model.schedule.interval import next_after
from ondot.model.schedule.listing import list_fires
from ondot.model.schedule.looks import allowed
from ondot.model.schedule.rule import is_quick
from ondot.model.schedule.spread import resolve

TOP: Final = 3
LAST_FIRES: Final = 1_000_000
"""Fires of all jobs together that are listed to find the last ones: about 0.3 s."""
SEARCHES: Final = 200_000
"""Looks of all searches together: about a second."""
A_HERD: Final = 5_000
MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Grid:
    """Steps of equal length from an instant on, and how many of them a bucket has."""

    begin_at: datetime
    step_s: int
    steps: int
    steps_a_bucket: int = 1

    @property
    def end_at(self) -> datetime:
        return self.begin_at + timedelta(seconds=self.step_s * self.steps)


@dataclass(slots=True)
class Herd:
    schedule: Schedule
    delay_s: int
    pool_no: int
    from_at: datetime
    """Fires before it are not counted."""
    jobs: int = 0
    work_s: float = 0.0
    """What one fire of each of them takes."""
    longest: list[tuple[float, JobId]] = field(default_factory=list)
    """The longest first, at most `TOP`; of equal ones those that came first."""

    def join(self, jobs: "Jobs") -> None:
        self.jobs += jobs.number
        self.work_s += jobs.work_s
        if len(self.longest) < TOP or jobs.longest[0][0] > self.longest[-1][0]:
            self.longest = nlargest(TOP, [*self.longest, *jobs.longest], key=itemgetter(0))


class Jobs(NamedTuple):
    """Some jobs: how many, what one fire of each takes together, and the longest of them."""

    number: int
    work_s: float
    longest: Sequence[tuple[float, JobId]]


def measured_jobs(job_ids: Sequence[JobId], durations: Mapping[JobId, float], usual_s: float) -> Jobs:
    """`usual_s`: of those whose duration is not known."""
    if not durations:
        return Jobs(len(job_ids), len(job_ids) * usual_s, [(usual_s, job_id) for job_id in job_ids[:TOP]])
    lasting = [(durations.get(job_id, usual_s), job_id) for job_id in job_ids]
    longest = lasting if len(lasting) == 1 else nlargest(TOP, lasting, key=itemgetter(0))
    return Jobs(len(lasting), sum([lasts_s for lasts_s, _ in lasting]), longest)


class Herds:
    """Gathers jobs into herds, for one grid. `due_from`: what becomes due before it is not counted."""

    def __init__(self, grid: Grid, due_from: datetime | None = None) -> None:
        self.grid = grid
        self._due_from = max(grid.begin_at, due_from or grid.begin_at)
        self._begin_at, self._step_s, self._end_at = grid.begin_at, grid.step_s, grid.end_at
        self._herds: dict[tuple[Schedule, int, int, datetime], Herd] = {}
        self._fires_left, self._looks_left = LAST_FIRES, SEARCHES
        self.incomplete: set[int] = set()
        """Pools with a job whose last fire was not found."""

    def add(
        self, schedule: Schedule, delay_s: float, pool_no: int, jobs: Jobs, fires_from: datetime | None = None
    ) -> None:
        """Jobs with one schedule and one delay. `fires_from`: earlier fires are not counted, as they are queued."""
        rule, start_at, end_at = schedule.when, schedule.start_at, schedule.end_at
        from_at = self._due_from - timedelta(seconds=delay_s) if delay_s else self._due_from
        if fires_from is not None and fires_from > from_at:
            from_at = fires_from
        if start_at is not None and start_at <= from_at:
            start_at = None
        if end_at is not None and end_at >= self._end_at:
            end_at = None
        if isinstance(rule, Interval) and is_quick(schedule):
            first_at = next_after(rule, (start_at or from_at) - MICROSECOND)
            if first_at is None or first_at > (end_at or self._end_at):
                return
            schedule, delay_s, from_at = self._from_first_fire(rule, first_at, delay_s, end_at), 0, self._begin_at
        else:
            if isinstance(rule, Cron) and rule.spread:  # jobs whose H came to the same values fire together
                text = resolve(rule.expression, rule.spread)
                rule = structs.replace(rule, expression=text, spread=0)
            schedule = Schedule(
                when=rule,
                include=schedule.include,
                exclude=schedule.exclude,
                start_at=start_at,
                end_at=end_at,
                calendar=schedule.calendar,
            )
        key = schedule, int(delay_s // self._step_s) * self._step_s, pool_no, from_at
        herd = self._herds.get(key)
        if herd is None:
            herd = self._herds[key] = Herd(*key)
        herd.join(jobs)

    def add_limited(
        self,
        schedule: Schedule,
        delay_s: float,
        pool_no: int,
        jobs: Jobs,
        fires_left: int,
        next_fire_at: datetime,
    ) -> None:
        """The same, for a schedule that ends with its last fire (`max_fires`). If that takes too long to find, it is
        taken to go on."""
        end_at = self._last_fire(schedule, pool_no, fires_left, next_fire_at)
        if end_at is not None:
            schedule = structs.replace(schedule, end_at=end_at)
        self.add(schedule, delay_s, pool_no, jobs, next_fire_at)

    def __iter__(self) -> Iterator[Herd]:
        return iter(self._herds.values())

    def _last_fire(self, schedule: Schedule, pool_no: int, fires_left: int, next_fire_at: datetime) -> datetime | None:
        """None: it is later than the grid."""
        rule = schedule.when
        if isinstance(rule, Interval) and is_quick(schedule):
            last_s = (fires_left - 1) * rule.every_s
            is_later = last_s > (self._end_at - next_fire_at).total_seconds()
            return None if is_later else next_fire_at + timedelta(seconds=last_s)
        if self._fires_left <= 0 or self._looks_left <= 0:
            self.incomplete.add(pool_no)
            return None
        at_most = min(fires_left, self._fires_left)
        with allowed(A_HERD) as looks:
            fires, _ = list_fires(schedule, next_fire_at - MICROSECOND, self._end_at, at_most)
        self._fires_left -= len(fires)
        self._looks_left -= A_HERD - looks.left
        if looks.is_spent or at_most == len(fires) < fires_left:
            self.incomplete.add(pool_no)
        # The fires are whole seconds, and two of them are a second apart at least.
        return datetime.fromtimestamp(fires[-1] + 1, UTC) - MICROSECOND if len(fires) == fires_left else None

    def _from_first_fire(self, rule: Interval, first_at: datetime, delay_s: float, end_at: datetime | None) -> Schedule:
        """The interval, delayed, from its first fire that counts to its last. Instants that no step separates are the
        same."""
        every = timedelta(seconds=rule.every_s)
        apart_s = 1 if rule.every_s % 1 else gcd(self._step_s, int(rule.every_s))
        offset_s = (first_at - self._begin_at).total_seconds() + delay_s
        anchor_at = self._begin_at + timedelta(seconds=offset_s // apart_s * apart_s)
        last_at = None if end_at is None else anchor_at + (end_at - first_at) // every * every
        return Schedule(when=Interval(every_s=rule.every_s, anchor_at=anchor_at), end_at=last_at)
