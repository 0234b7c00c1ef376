"""What people expect of a job (O11): start and end in time, success by a wall time, success every so often. Pure.

    start_within    its first attempt starts this long after it was due
    end_within      it has succeeded this long after it was due
    end_by          it has succeeded by this time of day in the job's zone: the first such time after the fire
    success_every   no two successes are further apart

Whatever the reason: an execution that failed, waits, is held back, was skipped or never planned has not succeeded.
`start_within` and `end_within` do not count fires of a paused job; `end_by` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from math import ceil
from typing import Final, Literal
from zoneinfo import ZoneInfo

from msgspec import Struct

from ondot.model.schedule import Cron, Once, Rrule, Schedule
from ondot.model.schedule.dst import zone_info
from ondot.model.schedule.words import duration

Which = Literal["start_within", "end_within", "end_by", "success_every"]
WHICH: Final[tuple[Which, ...]] = ("start_within", "end_within", "end_by", "success_every")
LEAST_RUNS: Final = 5
"""Below this many successes nothing is predicted."""
RUNS_READ: Final = 50


class Expect(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`end_by`: "HH:MM"."""

    start_within_s: float | None = None
    end_within_s: float | None = None
    end_by: str | None = None
    success_every_s: float | None = None

    def value(self, which: Which) -> float | str | None:
        value: float | str | None = getattr(self, which if which == "end_by" else f"{which}_s")
        return value

    @property
    def given(self) -> list[Which]:
        return [which for which in WHICH if self.value(which) is not None]


def parse_wall_time(text: str) -> time:
    """Raises ValueError."""
    hours, colon, minutes = text.partition(":")
    if not (colon and hours.isascii() and minutes.isascii() and hours.isdigit() and minutes.isdigit()):
        raise ValueError('a time of day, for example "06:00"')
    if len(hours) > 2 or len(minutes) != 2 or int(hours) > 23 or int(minutes) > 59:
        raise ValueError('a time of day from "00:00" to "23:59"')
    return time(int(hours), int(minutes))


def zone_of(schedule: Schedule | None) -> str:
    """The zone in which `end_by` is meant: that of the schedule, or UTC."""
    when = None if schedule is None else schedule.when
    return when.timezone if isinstance(when, Cron | Rrule | Once) else "UTC"


def deadline_after(fire_at: datetime, end_by: str, zone: str) -> datetime:
    """The first instant after a fire at which the clocks of the zone show this time.

    In the skipped hour it is the first instant after that hour; in the repeated hour it is the second pass, because
    until then the time is not over.
    """
    at, local = parse_wall_time(end_by), zone_info(zone)
    day = fire_at.astimezone(local).date()
    for _ in range(3):
        deadline = _instant_of(datetime.combine(day, at), local)
        if deadline > fire_at:
            return deadline
        day += timedelta(days=1)
    raise AssertionError("one of three days has a later instant of every time of day")


def _instant_of(wall: datetime, zone: ZoneInfo) -> datetime:
    late = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    early = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if late.astimezone(zone).replace(tzinfo=None) == wall:
        return late
    # A time that the clocks skip: both readings lie around the gap, and the change itself is between them.
    low, high = sorted((late, early))
    while high - low > timedelta(seconds=1):
        middle = low + (high - low) / 2
        if middle.astimezone(zone).replace(tzinfo=None) < wall:
            low = middle
        else:
            high = middle
    return high.replace(microsecond=0)


def due_at(which: Which, expect: Expect, fire_at: datetime, ready_at: datetime, zone: str) -> datetime:
    """When a fire must have started or succeeded. `ready_at`: when it may start, after its jitter."""
    match which:
        case "start_within":
            assert expect.start_within_s is not None
            return ready_at + timedelta(seconds=expect.start_within_s)
        case "end_within":
            assert expect.end_within_s is not None
            return ready_at + timedelta(seconds=expect.end_within_s)
        case _:
            assert expect.end_by is not None
            return deadline_after(fire_at, expect.end_by, zone)


@dataclass(frozen=True, slots=True)
class Fired:
    """A fire and what became of it. `ready_at`: when its first attempt might start, after its jitter; `next_at`: when
    the next one may, if it waits for that. `reason`: why it has no execution, or why that waits."""

    fire_at: datetime
    ready_at: datetime
    state: str
    """Of its execution; "MISSED": it has none."""
    started_at: datetime | None = None
    """Of its first attempt."""
    last_started_at: datetime | None = None
    ended_at: datetime | None = None
    reason: str | None = None
    next_at: datetime | None = None


def is_met(which: Which, fired: Fired, due: datetime) -> bool:
    """Whether it came good in time."""
    if which == "start_within":
        return fired.started_at is not None and fired.started_at <= due
    return fired.state == "SUCCEEDED" and fired.ended_at is not None and fired.ended_at <= due


def came_good(which: Which, fired: Fired) -> bool:
    """Whether it came good after all, in time or not."""
    return fired.started_at is not None if which == "start_within" else fired.state == "SUCCEEDED"


def p90(durations_s: Sequence[float]) -> float | None:
    """Nine of ten runs took no longer; of fewer than ten, all but the longest. None: too few runs to say."""
    if len(durations_s) < LEAST_RUNS:
        return None
    ordered = sorted(durations_s)
    return ordered[min(ceil(len(ordered) * 0.9), len(ordered) - 1) - 1]


def predict_end(fired: Fired, took_s: float, now: datetime) -> datetime:
    """When it will probably have succeeded: it runs as long as nine of ten runs did, from its start or from now."""
    started = fired.last_started_at if fired.state == "RUNNING" else None
    return max((started or max(now, fired.next_at or fired.ready_at)) + timedelta(seconds=took_s), now)


LOOK_AGAIN: Final = timedelta(seconds=15)
"""While a fire may still miss, and while a miss is open."""
LOOK_ANYWAY: Final = timedelta(days=1)
"""If nothing is known that could happen: every change of the job brings a look of its own."""
BY_EVENT: Final = timedelta(minutes=1)
"""A job that events start has no next fire to wait for."""
_ENDED: Final = frozenset({"FAILED", "CANCELLED", "SKIPPED", "MISSED"})


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a look found. `missed`: fires that missed it; `will_miss`: the one that probably will, and its end.

    `is_good`: the last settled fire met it. `after_at`: fires up to here are settled. `look_at`: the next look.
    """

    missed: tuple[Fired, ...]
    will_miss: Fired | None
    ends_at: datetime | None
    is_good: bool
    after_at: datetime
    look_at: datetime
    due_at: datetime | None = None
    """Of the last fire that missed, or of the one that will."""


def judge(
    which: Which,
    expect: Expect,
    fires: Sequence[Fired],
    *,
    zone: str,
    now: datetime,
    after_at: datetime,
    next_fire: tuple[datetime, datetime] | None,
    by_event: bool = False,
    took_s: float | None = None,
) -> Verdict:
    """The fires since `after_at`, oldest first, against what is expected. `next_fire`: it, and when it may start.

    `took_s`: how long nine of ten runs take; None: too few are known.
    """
    missed: list[Fired] = []
    is_good, due = False, None
    for fired in fires:
        fire_due = due_at(which, expect, fired.fire_at, fired.ready_at, zone)
        if is_met(which, fired, fire_due):
            is_good = True
        elif fire_due <= now:
            missed.append(fired)
            is_good, due = False, fire_due
        else:
            will, ends_at = _predict(which, fired, fire_due, took_s, now)
            look_at = _next_look(which, fired.fire_at, fire_due, took_s, now)
            return Verdict(
                tuple(missed), fired if will else None, ends_at, is_good, after_at, look_at, fire_due if will else due
            )
        after_at = max(after_at, fired.fire_at)
    look_at = now + (BY_EVENT if by_event else LOOK_ANYWAY)
    if next_fire is not None:
        fire_at, ready_at = next_fire
        look_at = min(look_at, _next_look(which, fire_at, due_at(which, expect, fire_at, ready_at, zone), took_s, now))
    return Verdict(tuple(missed), None, None, is_good, after_at, look_at, due)


def _predict(
    which: Which, fired: Fired, due: datetime, took_s: float | None, now: datetime
) -> tuple[bool, datetime | None]:
    """Whether a fire that is not due yet will miss, and when it will probably end (None: never by itself)."""
    if which == "start_within":
        return False, None
    if fired.state in _ENDED:
        return True, None
    if took_s is None:
        return False, None
    ends_at = predict_end(fired, took_s, now)
    return ends_at > due, ends_at


def _next_look(which: Which, fire_at: datetime, due: datetime, took_s: float | None, now: datetime) -> datetime:
    """At the last instant at which a start would still be in time; from then on often; at the latest when it is due.

    A run that starts before that instant ends in time by all that is known, and one that starts later does not: so one
    look there is enough.
    """
    latest_start = due if which == "start_within" or took_s is None else due - timedelta(seconds=took_s)
    wanted = max(latest_start, fire_at)
    return min(wanted if wanted > now else now + LOOK_AGAIN, max(due, now + timedelta(seconds=1)))


def in_words(which: Which, expect: Expect, zone: str) -> str:
    """What is expected, as the end of a sentence: "has succeeded by 06:00 Europe/Berlin"."""
    match which:
        case "start_within":
            return f"has started {duration(expect.start_within_s or 0)} after it was due"
        case "end_within":
            return f"has succeeded {duration(expect.end_within_s or 0)} after it was due"
        case "end_by":
            return f"has succeeded by {expect.end_by} {zone}"
        case "success_every":
            return f"succeeds every {duration(expect.success_every_s or 0)}"


def not_met_in_words(which: Which, expect: Expect, zone: str, *, predicted: bool) -> str:
    words = in_words(which, expect, zone)
    if which == "success_every":
        return f"has not succeeded for {duration(expect.success_every_s or 0)}"
    return words.replace("has succeeded", "will not succeed" if predicted else "has not succeeded").replace(
        "has started", "has not started"
    )
