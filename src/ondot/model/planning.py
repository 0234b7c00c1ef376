"""What planning does to one timer (S6, E11): which fires become executions, which are skipped, where it stands then.

Pure: flow.plan calls it for each timer that is due before the horizon, flow.submit for a job's first fire, flow.settle
for what the old schedule still owes. A fire is missed when it was not planned by `fire_at + grace`; a short
failover therefore misses nothing. The misfire policy says what happens to missed fires: `skip` records them, `once`
runs the latest and records the others as coalesced, `all` runs those within `window`, the newest `limit` of them.
Missed fires are never listed one by one unless they run: an outage of any length costs a step the same.

`fired_through` is where all that came before has its end on record: an execution, or a place in a skipped range. The
fires that the calendar leaves out are on record too, up to there.
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
"""Fires that are counted one by one, where arithmetic cannot: beyond it a range says that it does not know."""

EXECUTION_AHEAD: Final = timedelta(days=1)
"""No execution of a fire is made sooner than this before it. Plans look at most half an hour ahead (three horizons),
the rest is for clocks that differ."""

_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Timer:
    """Where a job stands. `next_fire_at` None: no further fire, or paused (`infinity` in the database).

    `guard_until`: fires up to this instant may have ended ahead of their time, so a plan looks for them in history.
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
        """Whether the guard reaches the next fire: from there on all fires are later."""
        return self.guard_until is not None and self.next_fire_at is not None and self.guard_until >= self.next_fire_at


def first_execution_id(fire_at: datetime) -> UUID:
    """No execution of a recurring job's fire has a smaller id: where a search of history by day may begin (P3).

    A one-time job that gave up its place has an execution that is as old as the job: search from the job's id.
    """
    return first_id_at(max(fire_at - EXECUTION_AHEAD, EPOCH))


@dataclass(frozen=True, slots=True)
class SkippedRange:
    """Fires from `from_at` to `to_at`, both included, that will not run, and why. `count` None: not counted."""

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
    """One advance of a timer. A single missed fire that runs after all is `catch_up`, several are `owed`."""

    fires: tuple[datetime, ...]
    catch_up: datetime | None
    owed: OwedRange | None
    skipped: tuple[SkippedRange, ...]
    next_fire_at: datetime | None
    fired_through: datetime | None
    fires_left: int | None


@dataclass(frozen=True, slots=True)
class _Missed:
    """What becomes of missed fires: `run` are those that run, ascending."""

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
    """Plan at most `limit` fires of one timer up to the horizon, and settle those that were missed.

    `resumes`: the job was paused, all up to now was missed, and this is what is to become of it.
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
        skipped=_skipped(schedule, timer, missed, [*run, *fires]) if missed or schedule.calendar else (),
        next_fire_at=next_fire_at,
        fired_through=max(settled, default=None),
        fires_left=fires_left,
    )


class _Upcoming:
    """The next fire of a schedule; or, where its exclude rules leave out more than one looks through at once, none,
    and an instant from which to look again."""

    def __init__(self, schedule: Schedule, next_fire_at: datetime | None) -> None:
        self._schedule = schedule
        self.fire_at = next_fire_at
        self.look_again_at: datetime | None = None
        if schedule.exclude and next_fire_at is not None:
            self.go_on(next_fire_at - _MICROSECOND)  # a timer may stand where to look again, and not at a fire

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
    """Split the fires from `first_at` on, before `late_before`, into those that run and the range of the others."""
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
        # More is excluded on the way than one looks through at once: what cannot be told apart is on record as a whole.
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
    if after >= before:
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
    """What the calendar leaves out between two instants, both excluded, between which it keeps nothing."""
    return None if schedule.calendar is None else range_between(unrestricted(schedule), after, before, "calendar")


def settled_range(schedule: Schedule, after: datetime, now: datetime, *, paused: bool) -> SkippedRange | None:
    """What a change finds unrecorded up to now, with nothing left to plan: the fires of a pause, or days left out."""
    if paused:
        return range_between(schedule, after, now + _MICROSECOND, "paused")
    return calendar_range(schedule, after, now + _MICROSECOND)


def _skipped(
    schedule: Schedule, timer: Timer, missed: _Missed | None, fires: list[datetime]
) -> tuple[SkippedRange, ...]:
    """What goes on record as not run: missed, or left out by the calendar."""
    left_out = _left_out(schedule, timer, missed, fires)
    return (missed.skipped, *left_out) if missed and missed.skipped else tuple(left_out)


def _left_out(schedule: Schedule, timer: Timer, missed: _Missed | None, fires: list[datetime]) -> list[SkippedRange]:
    """What the calendar leaves out before the timer's fire and between those after it; a skipped range says it all."""
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
    """What is left of a skipped range when some of its instants, ascending, were run after all.

    By the schedule that the range was recorded by. What its calendar leaves out between them stays on record as that.
    """
    edges = [skipped.from_at - _MICROSECOND, *filled, skipped.to_at + _MICROSECOND]
    parts: list[SkippedRange] = []
    for after, before in pairwise(edges):
        part = range_between(schedule, after, before, skipped.reason) or calendar_range(schedule, after, before)
        if part is not None:
            parts.append(part)
    uncounted = [n for n, part in enumerate(parts) if part.count is None]
    if skipped.count is not None and len(uncounted) == 1:
        # Counted ones take away from the whole, however large the part that nobody walked through.
        known = sum(part.count or 0 for part in parts if part.reason == skipped.reason)
        [n] = uncounted
        parts[n] = replace(parts[n], count=max(skipped.count - known - len(filled), 0))
    return parts


@bounded
def fires_from(
    schedule: Schedule, from_at: datetime, to_at: datetime, *, newest_first: bool, at_most: int
) -> list[datetime]:
    """The first `at_most` fires of a range, both ends included, from its one end or the other; ascending."""
    if newest_first:
        return newest_fires(schedule, from_at - _MICROSECOND, to_at + _MICROSECOND, at_most)
    return fires_between(schedule, from_at - _MICROSECOND, to_at, at_most=at_most)


@bounded
def fires_between(schedule: Schedule, after: datetime, until: datetime, *, at_most: int) -> list[datetime]:
    """The fires after `after` up to and with `until`, the first `at_most` of them."""
    fires: list[datetime] = []
    fire_at = next_fire(schedule, after)
    while fire_at is not None and fire_at <= until and len(fires) < at_most:
        fires.append(fire_at)
        fire_at = next_fire(schedule, fire_at)
    return fires


def fired_through_after_take_back(
    schedule: Schedule, fired_through: datetime | None, first_taken_at: datetime | None, bound_at: datetime
) -> datetime:
    """Where `fired_through` stands once a change has settled all up to `bound_at` and taken back what came after.

    Unless the database's clock was set back: what ran or was recorded beyond it must not run again.
    """
    if first_taken_at is None:
        return max(fired_through or bound_at, bound_at)
    first_open_at, look_again_at = next_or_look_again(schedule, bound_at)
    first_open_at = first_open_at or look_again_at
    if first_open_at is None or first_open_at >= first_taken_at:
        return bound_at
    return first_taken_at - _MICROSECOND
