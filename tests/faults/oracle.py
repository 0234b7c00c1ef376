"""When jobs must have fired, computed from the requests to the API alone: no code of ondot, only the calendar.

`instants` reads a schedule as docs/reference/schedules.md describes it, second by second and minute by minute: slow,
and too plain to be wrong in the way that ondot could be. `expect` follows one job through its journal. Between an
operation and its acknowledgement the job is in two worlds: before and after the change. A fire in both is a `must`, in
one a `may`, in none a phantom. An operation that stayed unclear leaves the job in two worlds for good.
"""

import re
from calendar import month_abbr
from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Literal
from zoneinfo import ZoneInfo

from tests.faults.journal import Operation

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
EDGE = timedelta(milliseconds=100)
"""How far a node's estimate of the database's clock may be off: a new job counts from it."""
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
PERIODS = {"SECONDLY": SECOND, "MINUTELY": MINUTE, "HOURLY": 60 * MINUTE}
WEEKDAYS = {"SUN": 0, "MON": 1, "TUE": 2, "WED": 3, "THU": 4, "FRI": 5, "SAT": 6}
MONTHS = {name.upper(): number for number, name in enumerate(month_abbr) if number}
NAMES = WEEKDAYS | MONTHS

Schedule = dict[str, Any]


# One schedule --------------------------------------------------------------------------------------------------------


def seconds_of(written: float | str) -> float:
    """A duration as users write it: 90, "90s", "1h30m"."""
    if isinstance(written, int | float):
        return float(written)
    parts = re.findall(r"([0-9.]+)(ms|[smhd])", written)
    return sum(float(number) * UNITS[unit] for number, unit in parts)


def instant_of(written: str) -> datetime:
    return datetime.fromisoformat(written).astimezone(UTC)


def instants(schedule: Schedule, after: datetime, until: datetime) -> list[datetime]:
    """The instants of a schedule after `after`, up to and with `until`; ignores `max_fires`."""
    if "start_at" in schedule:
        after = max(after, instant_of(schedule["start_at"]) - timedelta(microseconds=1))
    if "end_at" in schedule:
        until = min(until, instant_of(schedule["end_at"]))
    if "at" in schedule:
        found: Iterator[datetime] = iter([instant_of(schedule["at"])])
    elif "every" in schedule:
        anchor_at = instant_of(schedule.get("anchor_at") or schedule["start_at"])
        found = _evenly(anchor_at, timedelta(seconds=seconds_of(schedule["every"])), after, until)
    elif "rrule" in schedule:
        found = _evenly(*_recurrence(schedule["rrule"]), after, until)
    else:
        found = _cron(schedule, after, until)
    return sorted({instant for instant in found if after < instant <= until})


def _evenly(anchor_at: datetime, every: timedelta, after: datetime, until: datetime) -> Iterator[datetime]:
    number = max(0, (after - anchor_at) // every)
    while (instant := anchor_at + number * every) <= until:
        yield instant
        number += 1


def _recurrence(text: str) -> tuple[datetime, timedelta]:
    """The recurrences that a workload uses: a DTSTART in UTC, and a distance in seconds, minutes or hours."""
    found = re.fullmatch(r"DTSTART:(\d{8}T\d{6})Z\nRRULE:FREQ=(\w+);INTERVAL=(\d+)", text)
    if found is None:
        raise ValueError(f"the oracle does not know the recurrence {text!r}")
    begins, frequency, interval = found.groups()
    return datetime.strptime(begins, "%Y%m%dT%H%M%S").replace(tzinfo=UTC), PERIODS[frequency] * int(interval)


def _cron(schedule: Schedule, after: datetime, until: datetime) -> Iterator[datetime]:
    words = schedule["cron"].split()
    if len(words) == 5:
        words.insert(0, "0")
    second, minute, hour, day, month, weekday = words
    zone = ZoneInfo(schedule.get("timezone", "UTC"))
    seconds = sorted(_values(second, 0, 59))
    cron = _Fields(
        _values(minute, 0, 59), _values(hour, 0, 23), _values(day, 1, 31), _values(month, 1, 12),
        {value % 7 for value in _values(weekday, 0, 7)},
        either_day=not day.startswith("*") and not weekday.startswith("*"),
    )  # fmt: skip
    if minute.startswith("*") or hour.startswith("*"):
        minutes = _shown(cron, zone, after, until)
    else:
        minutes = _named(cron, zone, after, until, schedule.get("dst", {}))
    for begins, is_whole in minutes:
        for number in seconds if is_whole else [0]:
            yield begins + number * SECOND


@dataclass(frozen=True, slots=True)
class _Fields:
    minutes: Collection[int]
    hours: Collection[int]
    days: Collection[int]
    months: Collection[int]
    weekdays: Collection[int]
    either_day: bool

    def match(self, wall: datetime) -> bool:
        in_month, in_week = wall.day in self.days, wall.isoweekday() % 7 in self.weekdays
        is_day = in_month or in_week if self.either_day else in_month and in_week
        return is_day and wall.minute in self.minutes and wall.hour in self.hours and wall.month in self.months


def _shown(cron: _Fields, zone: tzinfo, after: datetime, until: datetime) -> Iterator[tuple[datetime, bool]]:
    """Real time: every minute at which the local clock shows a time of the expression."""
    instant = after.replace(second=0, microsecond=0)
    while instant <= until:
        if cron.match(instant.astimezone(zone)):
            yield instant, True
        instant += MINUTE


def _named(
    cron: _Fields, zone: tzinfo, after: datetime, until: datetime, dst: dict[str, str]
) -> Iterator[tuple[datetime, bool]]:
    """Fixed times of the day, with the policies for the skipped and the repeated hour."""
    wall = (after.astimezone(zone) - timedelta(days=1)).replace(second=0, microsecond=0, tzinfo=None)
    last = until.astimezone(zone).replace(tzinfo=None) + timedelta(days=1)
    while wall <= last:
        if cron.match(wall):
            first, again = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
            if first.astimezone(zone).replace(tzinfo=None) != wall:
                if dst.get("gap", "shift") == "shift":
                    yield _end_of_gap(again, first, zone), False
            elif first == again:
                yield first, True
            else:
                policy = dst.get("fold", "first")
                yield from [(first, True)] if policy != "last" else []
                yield from [(again, True)] if policy != "first" else []
        wall += MINUTE


def _end_of_gap(before: datetime, behind: datetime, zone: tzinfo) -> datetime:
    """The instant between two at which the local clock jumps."""
    offset = before.astimezone(zone).utcoffset()
    instant = before
    while instant < behind and instant.astimezone(zone).utcoffset() == offset:
        instant += SECOND
    return instant


def _values(field_: str, least: int, most: int) -> set[int]:
    values: set[int] = set()
    for term in field_.upper().split(","):
        span, _, step = term.partition("/")
        if span == "*":
            first, last = least, most
        else:
            first_word, _, last_word = span.partition("-")
            first = _number(first_word)
            last = _number(last_word) if last_word else most if step else first
            if last < first and last_word in WEEKDAYS:
                last += 7
        values |= set(range(first, last + 1, int(step or 1)))
    return values


def _number(word: str) -> int:
    return NAMES[word] if word in NAMES else int(word)


# One job -------------------------------------------------------------------------------------------------------------

Standing = Literal["none", "active", "paused", "deleted"]


@dataclass(frozen=True, slots=True)
class World:
    """One possible situation of a job: its state, and which of its schedules is in force."""

    standing: Standing
    schedule_no: int = -1


@dataclass(frozen=True, slots=True)
class Span:
    """A time (both ends included) in which the job is in one of these worlds."""

    from_at: datetime
    to_at: datetime
    worlds: frozenset[World]


@dataclass(frozen=True, slots=True)
class ClockStep:
    """The database's clock was off by `by` in this time."""

    from_at: datetime
    to_at: datetime
    by: timedelta


@dataclass(slots=True)
class Expected:
    """Instants by what must have become of them; fires at any other instant are wrong."""

    must: list[datetime] = field(default_factory=list)
    may: list[datetime] = field(default_factory=list)
    paused: list[datetime] = field(default_factory=list)
    """Fires in a pause that has ended: recorded as skipped, unless the resume asked for them."""
    silent: list[datetime] = field(default_factory=list)
    """Fires in a pause that has not ended: they have no record."""


def spans(operations: Sequence[Operation], until: datetime, steps: Sequence[ClockStep] = ()) -> list[Span]:
    """The worlds of a job, from its first request on; `operations` are its whole journal."""
    found: list[Span] = []
    worlds = frozenset({World("none")})
    schedule_no = -1
    reached_at = datetime.min.replace(tzinfo=UTC)
    for operation in operations:
        if operation.outcome == "refused" or operation.op not in {*CHANGES, "create", "upsert", "update"}:
            continue
        if operation.op in {"create", "upsert", "update"}:
            schedule_no += 1
        asked_at, acked_at = _window(operation, until, steps)
        changed = frozenset(_changed(world, operation.op, schedule_no) for world in worlds)
        found.append(Span(reached_at, asked_at, worlds))
        found.append(Span(asked_at, acked_at if operation.is_acked else asked_at, worlds | changed))
        # Unclear: it may take effect at any time from now on, whatever else is requested meanwhile.
        worlds = changed if operation.is_acked else worlds | changed
        reached_at = acked_at if operation.is_acked else asked_at
    found.append(Span(reached_at, until, worlds))
    return found


CHANGES: dict[str, Standing] = {"pause": "paused", "resume": "active", "delete": "deleted"}


def _changed(world: World, op: str, schedule_no: int) -> World:
    if op == "create":
        return World("active", schedule_no)
    if world.standing in {"none", "deleted"}:
        return world
    if op in CHANGES:
        return World(CHANGES[op], world.schedule_no)
    return World(world.standing, schedule_no)


def _window(operation: Operation, until: datetime, steps: Sequence[ClockStep]) -> tuple[datetime, datetime]:
    """When it may have taken effect, by the database's clock."""
    asked_at = datetime.fromtimestamp(operation.asked_s, UTC) - EDGE
    acked_at = until if operation.acked_s is None else datetime.fromtimestamp(operation.acked_s, UTC) + EDGE
    off = [step.by for step in steps if step.from_at <= acked_at and asked_at <= step.to_at]
    return asked_at + min([timedelta(0), *off]), min(acked_at + max([timedelta(0), *off]), max(until, asked_at))


def expect(
    operations: Sequence[Operation],
    until: datetime,
    *,
    uncounted: Container[datetime] = (),
    steps: Sequence[ClockStep] = (),
) -> Expected:
    """What must have become of the fires of a recurring job. `uncounted` are fires recorded as skipped: they do not
    count against `max_fires`."""
    life = spans(operations, until, steps)
    schedules = [
        (operation.body or {})["schedule"]
        for operation in operations
        if operation.op in {"create", "upsert", "update"} and operation.outcome != "refused"
    ]
    first_at = life[0].to_at - EDGE
    by_schedule = [frozenset(instants(schedule, first_at, until)) for schedule in schedules]
    expected = Expected()
    left = _Left(schedules)
    for instant in sorted(frozenset[datetime]().union(*by_schedule)):
        worlds = frozenset[World]().union(*(span.worlds for span in life if span.from_at <= instant <= span.to_at))
        fires = [_fires_in(world, instant, by_schedule) for world in worlds]
        if all(verdict == "active" for verdict in fires):
            left.sort_in(instant, expected, uncounted, is_sure=True)
        elif "active" in fires:
            left.sort_in(instant, expected, uncounted, is_sure=False)
        elif all(verdict == "paused" for verdict in fires):
            (expected.paused if _ended_after(life, instant) else expected.silent).append(instant)
        elif "paused" in fires:
            expected.may.append(instant)
    return expected


def _fires_in(world: World, instant: datetime, by_schedule: Sequence[Collection[datetime]]) -> str:
    if world.standing in {"none", "deleted"} or instant not in by_schedule[world.schedule_no]:
        return "not"
    return world.standing


def _ended_after(life: Sequence[Span], instant: datetime) -> bool:
    """Whether the pause around an instant surely ended at some time after it."""
    return any(span.from_at > instant and all(world.standing != "paused" for world in span.worlds) for span in life)


@dataclass(slots=True)
class _Left:
    """Counts fires against `max_fires`: in the world without any fire that only may be, and in the world with all."""

    schedules: Sequence[Schedule]
    least: int = 0
    most: int = 0

    def sort_in(self, instant: datetime, expected: Expected, uncounted: Container[datetime], *, is_sure: bool) -> None:
        limits = [schedule["max_fires"] for schedule in self.schedules if schedule.get("max_fires")]
        limit = min(limits) if limits else None
        if limit is not None and self.least >= limit:
            return
        must = is_sure and (limit is None or self.most < limit)
        (expected.must if must else expected.may).append(instant)
        if instant not in uncounted:
            self.least += is_sure
            self.most += 1


@dataclass(frozen=True, slots=True)
class ExpectedOnce:
    """Of a one-time job: whether it must have fired, and when it may have (both ends included)."""

    must: bool
    windows: Sequence[tuple[datetime, datetime]]


def expect_once(operations: Sequence[Operation], until: datetime, steps: Sequence[ClockStep] = ()) -> ExpectedOnce:
    """A pause only delays it. An acknowledged change found it not started: then only the new fire is left."""
    worlds = spans(operations, until, steps)[-1].worlds
    windows = [
        _once_between(operation, until, steps)
        for operation in operations
        if operation.op in {"create", "update"} and operation.outcome != "refused"
    ]
    possible = [windows[world.schedule_no] for world in worlds if world.schedule_no >= 0]
    return ExpectedOnce(all(world.standing == "active" for world in worlds), possible)


def _once_between(operation: Operation, until: datetime, steps: Sequence[ClockStep]) -> tuple[datetime, datetime]:
    schedule = (operation.body or {}).get("schedule") or {}
    if "at" in schedule:
        return instant_of(schedule["at"]), instant_of(schedule["at"])
    asked_at, acked_at = _window(operation, until, steps)
    delay = timedelta(seconds=seconds_of(schedule.get("in", 0)))
    return asked_at + delay, acked_at + delay
