"""What planning does to one timer (S6, E11): which fires become executions, which are skipped, where it stands then.

Pure: flow.plan calls it for each timer that is due before the horizon, flow.submit for a job's first fire, flow.change
to settle what the old schedule still owes. A fire is missed when it was not planned by `fire_at + grace`; a short
failover therefore misses nothing. The misfire policy says what happens to missed fires: `skip` records them, `once`
runs the latest and records the others as coalesced, `all` runs those within `window`, the newest `limit` of them.
Missed fires are never listed one by one unless they run: an outage of any length costs a step the same.

`fired_through` is where all that came before has its end on record: an execution, or a place in a skipped range. The
fires that the calendar leaves out are on record too, up to there.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from msgspec import structs

from ondot.model.ids import JobId, TenantNo
from ondot.model.misfire import Misfire, MissedPolicy
from ondot.model.schedule import Schedule, next_fire
from ondot.model.schedule.counting import count_fires, last_fire, newest_fires
from ondot.model.schedule.rule import left_out

COUNTED_AT_MOST: Final = 10_000
"""Fires that are counted one by one, where arithmetic cannot: beyond it a range says that it does not know."""

_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Timer:
    """Where a job stands. `next_fire_at` None: no further fire, or paused (`infinity` in the database)."""

    job_id: JobId
    tenant_no: TenantNo
    partition_no: int
    version: int
    job_version: int
    next_fire_at: datetime | None
    fired_through: datetime | None = None
    fires_left: int | None = None


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


@dataclass(frozen=True, slots=True)
class Step:
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
    fire_at = timer.next_fire_at
    missed = None
    if fire_at is not None and fire_at < late_before:
        missed = _settle(schedule, policy, fire_at, late_before, now, "paused" if resumes else None)
        fire_at = next_fire(schedule, late_before - _MICROSECOND)
    run = missed.run[: timer.fires_left] if missed else []
    room = limit if timer.fires_left is None else min(limit, timer.fires_left - len(run))

    fires: list[datetime] = []
    while fire_at is not None and fire_at <= horizon_at and len(fires) < room:
        fires.append(fire_at)
        fire_at = next_fire(schedule, fire_at)

    fires_left = None
    if timer.fires_left is not None:
        fires_left = timer.fires_left - len(run) - len(fires)
        if fires_left == 0:
            fire_at = None
    settled = [
        *([missed.last_at] if missed else []),
        *fires[-1:],
        *([timer.fired_through] if timer.fired_through else []),
    ]
    return Step(
        fires=tuple(fires),
        catch_up=run[0] if len(run) == 1 else None,
        owed=OwedRange(run[0], run[-1], len(run)) if len(run) > 1 else None,
        skipped=(
            *([missed.skipped] if missed and missed.skipped else []),
            *_left_out(schedule, timer, missed.skipped if missed else None, [*run, *fires]),
        ),
        next_fire_at=fire_at,
        fired_through=max(settled, default=None),
        fires_left=fires_left,
    )


def _settle(
    schedule: Schedule, policy: Misfire, first_at: datetime, late_before: datetime, now: datetime, because: str | None
) -> _Missed:
    """Split the fires from `first_at` on, before `late_before`, into those that run and the range of the others."""
    before_first = first_at - _MICROSECOND
    last_at = last_fire(schedule, before_first, late_before) or first_at
    run: list[datetime] = []
    match policy.policy:
        case "skip":
            reason = "misfire"
        case "once":
            run, reason = [last_at], "coalesced"
        case "all":
            oldest_at = max(before_first, now - timedelta(seconds=policy.window_s) - _MICROSECOND)
            run, reason = newest_fires(schedule, oldest_at, late_before, policy.limit), "misfire"
    skipped_to = last_fire(schedule, before_first, run[0]) if run else last_at
    skipped = skipped_range(schedule, first_at, skipped_to, because or reason) if skipped_to else None
    return _Missed(run, skipped, last_at)


def skipped_range(schedule: Schedule, first_at: datetime, last_at: datetime, reason: str) -> SkippedRange:
    count = count_fires(schedule, first_at - _MICROSECOND, last_at, COUNTED_AT_MOST)
    return SkippedRange(first_at, last_at, reason, count)


def calendar_range(schedule: Schedule, after: datetime, before: datetime) -> SkippedRange | None:
    """What the calendar leaves out between two fires, or between a fire and now, both excluded."""
    if schedule.calendar is None or after >= before:
        return None
    days_off = left_out(schedule, after, before - _MICROSECOND, COUNTED_AT_MOST)
    if not days_off:
        return None
    if len(days_off) < COUNTED_AT_MOST:
        return SkippedRange(days_off[0], days_off[-1], "calendar", len(days_off))
    return SkippedRange(days_off[0], before - _MICROSECOND, "calendar", None)


def settled_range(schedule: Schedule, after: datetime, now: datetime, *, paused: bool) -> SkippedRange | None:
    """What a change finds unrecorded up to now, with nothing left to plan: the fires of a pause, or days left out."""
    if not paused:
        return calendar_range(schedule, after, now + _MICROSECOND)
    first_at = next_fire(schedule, after)
    if first_at is None or first_at > now:
        return None
    last_at = last_fire(schedule, first_at - _MICROSECOND, now + _MICROSECOND) or first_at
    return skipped_range(schedule, first_at, last_at, "paused")


def _left_out(
    schedule: Schedule, timer: Timer, skipped: SkippedRange | None, fires: list[datetime]
) -> list[SkippedRange]:
    """What the calendar leaves out before the timer's fire and between those after it; a skipped range says it all."""
    if schedule.calendar is None or timer.fired_through is None or timer.next_fire_at is None:
        return []
    first_at = timer.next_fire_at
    ranges = [calendar_range(schedule, timer.fired_through, first_at)]
    after = skipped.to_at if skipped else first_at
    for fire_at in fires:
        ranges.append(calendar_range(schedule, after, fire_at))
        after = max(after, fire_at)
    return [found for found in ranges if found is not None]


def cut(skipped: SkippedRange, schedule: Schedule, filled: list[datetime]) -> list[SkippedRange]:
    """What is left of a skipped range when some of its fires, ascending and next to each other, were run after all."""
    first_at, last_at = filled[0], filled[-1]
    left = right = None
    left_count = count_fires(schedule, skipped.from_at - _MICROSECOND, first_at - _MICROSECOND, COUNTED_AT_MOST)
    if skipped.from_at < first_at and left_count != 0:
        left = replace(skipped, to_at=first_at - _MICROSECOND, count=left_count)
    right_count = None
    if skipped.count is not None and left_count is not None:
        right_count = max(skipped.count - left_count - len(filled), 0)
    if skipped.to_at > last_at and right_count != 0:
        right = replace(skipped, from_at=last_at + _MICROSECOND, count=right_count)
    return [part for part in (left, right) if part is not None]


def fires_from(
    schedule: Schedule, from_at: datetime, to_at: datetime, *, newest_first: bool, at_most: int
) -> list[datetime]:
    """The first `at_most` fires of a range, both ends included, from its one end or the other; ascending."""
    if newest_first:
        return newest_fires(schedule, from_at - _MICROSECOND, to_at + _MICROSECOND, at_most)
    return fires_between(schedule, from_at - _MICROSECOND, to_at, at_most=at_most)


def fires_between(schedule: Schedule, after: datetime, until: datetime, *, at_most: int) -> list[datetime]:
    """The fires after `after` up to and with `until`, the first `at_most` of them."""
    fires: list[datetime] = []
    fire_at = next_fire(schedule, after)
    while fire_at is not None and fire_at <= until and len(fires) < at_most:
        fires.append(fire_at)
        fire_at = next_fire(schedule, fire_at)
    return fires


def fired_through_after_take_back(
    schedule: Schedule, fired_through: datetime | None, first_taken_at: datetime | None, now: datetime
) -> datetime:
    """Where `fired_through` stands once a change has settled all up to `now` and taken back what came after.

    Unless the database's clock was set back: what ran beyond `now` then must not run again.
    """
    if first_taken_at is None:
        return max(fired_through or now, now)
    first_open_at = next_fire(schedule, now)
    if first_open_at is None or first_open_at >= first_taken_at:
        return now
    return first_taken_at - _MICROSECOND
