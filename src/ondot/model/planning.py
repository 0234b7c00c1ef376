"""What planning does to one timer (S6, E11): which fires become executions, which are skipped, and its next fire.

Pure. `flow.plan` calls it for each timer that is due before the horizon, `flow.submit` for a job's first fire, and
`flow.change.settle` for the fires that an old schedule still owes. A fire is missed when it was not planned by
`fire_at + grace`, so a short failover misses nothing. The misfire policy decides: `skip` records missed fires, `once`
runs the latest and records the others as coalesced, `all` runs those within `window`, at most the newest `limit`.
Missed fires are not listed one by one unless they run, so an outage of any length costs the same.

Every fire up to `fired_through` has a record: an execution, or a place in a skipped range. This includes the fires that
the calendar excludes.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final
from uuid import UUID

from msgspec import Struct, structs

from ondot.model.ids import EPOCH, JobId, TenantNo, first_id_at
from ondot.model.misfire import Misfire, MissedPolicy
from ondot.model.schedule import GivenUp, Schedule, next_fire, unrestricted
from ondot.model.schedule.counting import count_fires, last_fire, newest_fires
from ondot.model.schedule.looks import bounded

COUNTED_AT_MOST: Final = 1_000
"""The most fires that are counted one by one, where arithmetic cannot count. A longer range has no count."""

EXECUTION_AHEAD: Final = timedelta(days=1)
"""No execution is created earlier than this before its fire. Plans look at most half an hour ahead (three horizons);
the rest allows for clocks that differ."""

_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Timer:
    """A job's position in its schedule. `next_fire_at` None: no further fire, or paused (`infinity` in the database).

    `guard_until`: fires up to this instant may have ended before they were due, so a plan looks for them in history.
    """

    job_id: JobId
    tenant_no: TenantNo
    partition_no: int
    version: int
    job_version: int
    next_fire_at: datetime | None
    fired_through: datetime | None = None
    fires_left: int | None = None
    guard_until: datetime | None = None

    @property
    def is_guarded(self) -> bool:
        """Whether the guard covers the next fire. If not, it covers no later fire either."""
        return self.guard_until is not None and self.next_fire_at is not None and self.guard_until >= self.next_fire_at


def first_execution_id(fire_at: datetime) -> UUID:
    """No execution of a recurring job's fire has a smaller id: a search of history by day may start here (P3).

    The execution of a replaced one-time job is as old as the job: there, search from the job's id.
    """
    return first_id_at(max(fire_at - EXECUTION_AHEAD, EPOCH))


@dataclass(frozen=True, slots=True)
class SkippedRange:
    """Fires from `from_at` to `to_at`, both included, that will not run, and the reason. `count` None: not counted."""

    from_at: datetime
    to_at: datetime
    reason: str
    count: int | None


@dataclass(frozen=True, slots=True)
class OwedRange:
    """Missed fires from `from_at` to `to_at`, both included, that will run, behind live work."""

    from_at: datetime
    to_at: datetime
    count: int


class Step(Struct, frozen=True, kw_only=True, gc=False):
    """One advance of a timer. A single missed fire that still runs is `catch_up`, several are `owed`."""

    fires: tuple[datetime, ...]
    catch_up: datetime | None
    owed: OwedRange | None
    skipped: tuple[SkippedRange, ...]
    next_fire_at: datetime | None
    fired_through: datetime | None
    fires_left: int | None


@dataclass(frozen=True, slots=True)
class _Missed:
    """Missed fires: `run` are those that run, ascending; the others are `skipped`."""

    run: list[datetime]
    skipped: SkippedRange | None
    last_at: datetime


def advance(
    schedule: Schedule,
    timer: Timer,
    *,
    now: datetime,
    horizon_at: datetime,
    limit: int,
    resumes: MissedPolicy | None = None,
) -> Step:
    """Plan at most `limit` fires of one timer up to the horizon, and settle the missed ones.

    `resumes`: the job was paused, so every fire up to now was missed, and this policy decides about them.
    """
    policy, late_before = schedule.misfire, now - timedelta(seconds=schedule.misfire.grace_s)
    if resumes is not None:
        policy, late_before = structs.replace(policy, policy=resumes), now + _MICROSECOND
    upcoming = _Upcoming(schedule, timer.next_fire_at)
    missed = None
    if upcoming.fire_at is not None and upcoming.fire_at < late_before:
        missed = _settle(schedule, policy, upcoming.fire_at, late_before, now, "paused" if resumes else None)
        upcoming.go_on(late_before - _MICROSECOND)
    run = missed.run[: timer.fires_left] if missed else []
    room = limit if timer.fires_left is None else min(limit, timer.fires_left - len(run))

    fires: list[datetime] = []
    while upcoming.fire_at is not None and upcoming.fire_at <= horizon_at and len(fires) < room:
        fires.append(upcoming.fire_at)
        upcoming.go_on(upcoming.fire_at)

    fires_left = None
    next_fire_at = upcoming.fire_at or upcoming.look_again_at
    if timer.fires_left is not None:
        fires_left = timer.fires_left - len(run) - len(fires)
        if fires_left == 0:
            next_fire_at = None
    settled = [missed.last_at] if missed else []
    if fires:
        settled.append(fires[-1])
    if timer.fired_through:
        settled.append(timer.fired_through)
    return Step(
        fires=tuple(fires),
        catch_up=run[0] if len(run) == 1 else None,
        owed=OwedRange(run[0], run[-1], len(run)) if len(run) > 1 else None,
        skipped=_list_skipped(schedule, timer, missed, [*run, *fires]) if missed or schedule.calendar else (),
        next_fire_at=next_fire_at,
        fired_through=max(settled, default=None),
        fires_left=fires_left,
    )


class _Upcoming:
    """The next fire of a schedule. If its exclude rules skip more fires than one search may look at: none, and the
    instant from which to search again."""

    def __init__(self, schedule: Schedule, next_fire_at: datetime | None) -> None:
        self._schedule = schedule
        self.fire_at = next_fire_at
        self.look_again_at: datetime | None = None
        if schedule.exclude and next_fire_at is not None:
            self.go_on(next_fire_at - _MICROSECOND)  # a timer may hold an instant to search from, not a fire

    def go_on(self, after: datetime) -> None:
        self.fire_at, self.look_again_at = next_or_look_again(self._schedule, after)


def next_or_look_again(schedule: Schedule, after: datetime) -> tuple[datetime | None, datetime | None]:
    """The next fire, or None and the instant up to which there is none."""
    try:
        return next_fire(schedule, after), None
    except GivenUp as search:
        return None, search.reached_at


def _settle(
    schedule: Schedule, policy: Misfire, first_at: datetime, late_before: datetime, now: datetime, because: str | None
) -> _Missed:
    """Split the fires from `first_at` to before `late_before` into those that run and the range of the others."""
    before_first = first_at - _MICROSECOND
    reason = because or ("coalesced" if policy.policy == "once" else "misfire")
    try:
        last_at = last_fire(schedule, before_first, late_before) or first_at
        run: list[datetime] = []
        if policy.policy == "once":
            run = [last_at]
        elif policy.policy == "all":
            oldest_at = max(before_first, now - timedelta(seconds=policy.window_s) - _MICROSECOND)
            run = newest_fires(schedule, oldest_at, late_before, policy.limit)
        skipped_to = last_fire(schedule, before_first, run[0]) if run else last_at
    except GivenUp:
        # More fires are excluded than one search may look at: the whole range is recorded as skipped.
        last_at = late_before - _MICROSECOND
        return _Missed([], SkippedRange(first_at, last_at, reason, None), last_at)
    return _Missed(run, skipped_range(schedule, first_at, skipped_to, reason) if skipped_to else None, last_at)


def skipped_range(schedule: Schedule, first_at: datetime, last_at: datetime, reason: str) -> SkippedRange:
    return SkippedRange(first_at, last_at, reason, _count(schedule, first_at, last_at))


def _count(schedule: Schedule, first_at: datetime, last_at: datetime) -> int | None:
    try:
        return count_fires(schedule, first_at - _MICROSECOND, last_at, COUNTED_AT_MOST)
    except GivenUp:
        return None


@bounded
def range_between(schedule: Schedule, after: datetime, before: datetime, reason: str) -> SkippedRange | None:
    """The fires between two instants, both excluded, as one range; None if there are none."""
    if before - after <= _MICROSECOND:
        return None
    try:
        first_at = next_fire(schedule, after)
        if first_at is None or first_at >= before:
            return None
        last_at = last_fire(schedule, first_at - _MICROSECOND, before) or first_at
    except GivenUp:
        return SkippedRange(after + _MICROSECOND, before - _MICROSECOND, reason, None)
    return skipped_range(schedule, first_at, last_at, reason)


def calendar_range(schedule: Schedule, after: datetime, before: datetime) -> SkippedRange | None:
    """The fires that the calendar excludes between two instants (both excluded) between which it keeps none."""
    return None if schedule.calendar is None else range_between(unrestricted(schedule), after, before, "calendar")


def settled_ranges(schedule: Schedule, after: datetime, now: datetime, *, paused: bool) -> list[SkippedRange]:
    """Fires up to now without a record when nothing is left to plan: those of a pause, or excluded by the calendar."""
    if paused:
        return ranges_between(schedule, after, now + _MICROSECOND, "paused")
    found = calendar_range(schedule, after, now + _MICROSECOND)
    return [] if found is None else [found]


def ranges_between(schedule: Schedule, after: datetime, before: datetime, reason: str) -> list[SkippedRange]:
    """All fires between two instants, both excluded: one range from the first to the last that the calendar keeps, and
    those that it excludes before and after."""
    kept = range_between(schedule, after, before, reason)
    if kept is None:
        found = [calendar_range(schedule, after, before)]
    else:
        first, last = calendar_range(schedule, after, kept.from_at), calendar_range(schedule, kept.to_at, before)
        found = [first, kept, last]
    return [part for part in found if part is not None]


def _list_skipped(
    schedule: Schedule, timer: Timer, missed: _Missed | None, fires: list[datetime]
) -> tuple[SkippedRange, ...]:
    """The ranges to record as not run: missed, or excluded by the calendar."""
    left_out = _left_out(schedule, timer, missed, fires)
    return (missed.skipped, *left_out) if missed and missed.skipped else tuple(left_out)


def _left_out(schedule: Schedule, timer: Timer, missed: _Missed | None, fires: list[datetime]) -> list[SkippedRange]:
    """The fires that the calendar excludes before the timer's fire and between later ones. A skipped range covers its
    own."""
    if schedule.calendar is None or timer.fired_through is None or timer.next_fire_at is None:
        return []
    first_at = timer.next_fire_at
    ranges = [calendar_range(schedule, timer.fired_through, first_at)]
    after = missed.skipped.to_at if missed and missed.skipped else first_at
    for fire_at in fires:
        ranges.append(calendar_range(schedule, after, fire_at))
        after = max(after, fire_at)
    return [found for found in ranges if found is not None]


@bounded
def cut(skipped: SkippedRange, schedule: Schedule, filled: list[datetime]) -> list[SkippedRange]:
    """The parts of a skipped range that remain when some of its fires (`filled`, ascending) ran later.

    `schedule` is the one that the range was recorded by. Fires that its calendar excludes stay recorded as such.
    """
    edges = [skipped.from_at - _MICROSECOND, *filled, skipped.to_at + _MICROSECOND]
    parts: list[SkippedRange] = []
    for after, before in pairwise(edges):
        parts += ranges_between(schedule, after, before, skipped.reason)
    uncounted = [n for n, part in enumerate(parts) if part.count is None and part.reason == skipped.reason]
    if skipped.count is not None and len(uncounted) == 1:
        # The one uncounted part is the total minus the counted parts, however large it is.
        known = sum(part.count or 0 for part in parts if part.reason == skipped.reason)
        [n] = uncounted
        parts[n] = replace(parts[n], count=max(skipped.count - known - len(filled), 0))
    return parts


@bounded
def fires_from(
    schedule: Schedule, from_at: datetime, to_at: datetime, *, newest_first: bool, at_most: int
) -> list[datetime]:
    """The first `at_most` fires of a range (both ends included), counted from either end; ascending."""
    if newest_first:
        return newest_fires(schedule, from_at - _MICROSECOND, to_at + _MICROSECOND, at_most)
    return fires_between(schedule, from_at - _MICROSECOND, to_at, at_most=at_most)


@bounded
def fires_between(schedule: Schedule, after: datetime, until: datetime, *, at_most: int) -> list[datetime]:
    """The first `at_most` fires after `after`, up to and including `until`."""
    fires: list[datetime] = []
    fire_at = next_fire(schedule, after)
    while fire_at is not None and fire_at <= until and len(fires) < at_most:
        fires.append(fire_at)
        fire_at = next_fire(schedule, fire_at)
    return fires


def fired_through_after_take_back(
    schedule: Schedule, fired_through: datetime | None, first_taken_at: datetime | None, bound_at: datetime
) -> datetime:
    """The new `fired_through` after a change settled every fire up to `bound_at` and took back the later ones.

    If the database's clock was set back, fires that ran or were recorded after `bound_at` must not run again.
    """
    if first_taken_at is None:
        return max(fired_through or bound_at, bound_at)
    first_open_at, look_again_at = next_or_look_again(schedule, bound_at)
    first_open_at = first_open_at or look_again_at
    if first_open_at is None or first_open_at >= first_taken_at:
        return bound_at
    return first_taken_at - _MICROSECOND
