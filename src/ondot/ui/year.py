"""Twelve months of a schedule, day by day: where it fires, what its calendar leaves out, where the clocks change (S9).

Pure: a walk over days by `next_fire`, one step for each day that has a fire, however many it has. Days are those that
the zone's clock shows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Final, Literal

from msgspec import structs

from ondot.model.schedule import Calendar, Schedule, next_fire

MONTHS: Final = 12
DAY: Final = timedelta(days=1)
MICROSECOND: Final = timedelta(microseconds=1)
LAST_YEAR: Final = 9990

Mark = Literal["past", "free", "fires", "moved", "left-out"]


@dataclass(frozen=True, slots=True)
class Day:
    """`week` and `weekday` (Monday 0) are its place in the month's picture."""

    on: date
    week: int
    weekday: int
    mark: Mark
    change: str | None
    title: str


@dataclass(frozen=True, slots=True)
class Month:
    name: str
    summary: str
    days: tuple[Day, ...]


@dataclass(frozen=True, slots=True)
class Year:
    months: tuple[Month, ...]
    fires_on: int
    moved: int
    left_out: int
    changes: tuple[str, ...]


def year_of(schedule: Schedule, after: datetime, zone: tzinfo, reasons: dict[date, str]) -> Year:
    """The month of `after` and the eleven that follow; `reasons`: why fires are skipped on days, where known."""
    begins_on = after.astimezone(zone).date()
    first_on = begins_on.replace(day=1)
    ends_on = date(first_on.year + 1, first_on.month, 1)
    if ends_on.year > LAST_YEAR:
        return Year((), 0, 0, 0, ())
    changes = dict(_changes(zone, first_on, ends_on))
    fires_on = _days_with_fires(schedule, after, ends_on, zone)
    unrestricted = structs.replace(schedule, calendar=None)
    left_out = _days_with_fires(unrestricted, after, ends_on, zone) if schedule.calendar else set[date]()
    moved = _days_moved_from(schedule, after, ends_on, zone) - fires_on
    left_out = {
        on for on in left_out.union(reasons) if on not in fires_on and on not in moved and begins_on <= on < ends_on
    }

    def mark(on: date) -> Mark:
        if on < begins_on:
            return "past"
        if on in fires_on:
            return "fires"
        return "moved" if on in moved else "left-out" if on in left_out else "free"

    days = [first_on + DAY * n for n in range((ends_on - first_on).days)]
    months = []
    for number in range(MONTHS):
        year, month = divmod(first_on.month - 1 + number, 12)
        of_month = [on for on in days if (on.year, on.month) == (first_on.year + year, month + 1)]
        months.append(_month([_day(on, mark(on), changes.get(on), reasons.get(on)) for on in of_month]))
    told = tuple(f"{_written(on)}: {change}" for on, change in changes.items() if on >= begins_on)
    return Year(tuple(months), len(fires_on), len(moved), len(left_out), told)


def _days_moved_from(schedule: Schedule, after: datetime, ends_on: date, zone: tzinfo) -> set[date]:
    """Where it would fire if only black-outs left fires out; those that are days off have sent theirs elsewhere."""
    if schedule.calendar is None or schedule.calendar.moves is None:
        return set()
    standing = structs.replace(schedule, calendar=Calendar(blackouts=schedule.calendar.blackouts))
    return _days_with_fires(standing, after, ends_on, zone)


def _days_with_fires(schedule: Schedule, after: datetime, ends_on: date, zone: tzinfo) -> set[date]:
    found: set[date] = set()
    end_at = _midnight(ends_on, zone)
    fire_at = next_fire(schedule, after)
    while fire_at is not None and fire_at < end_at:
        on = fire_at.astimezone(zone).date()
        found.add(on)
        # A clock that goes back over midnight shows yesterday again: the walk must not follow it.
        fire_at = next_fire(schedule, max(_midnight(on + DAY, zone) - MICROSECOND, fire_at))
    return found


def _changes(zone: tzinfo, begins_on: date, ends_on: date) -> Iterator[tuple[date, str]]:
    """The days on which the zone's clock is moved, with how: "02:00 → 03:00"."""
    at, end_at = _midnight(begins_on, zone), _midnight(ends_on, zone)
    while at < end_at:
        following, before = min(at + DAY, end_at), _offset(at, zone)
        if _offset(following, zone) != before:
            change_at = _end_of(before, at, following, zone)
            shown, after = (change_at + before).replace(tzinfo=None), change_at.astimezone(zone)
            yield after.date(), f"the clock goes from {shown:%H:%M} to {after:%H:%M}"
        at = following


def _end_of(offset: timedelta, low: datetime, high: datetime, zone: tzinfo) -> datetime:
    """The first second in (low, high] at which the zone has another offset; at `high` it has."""
    while high - low > timedelta(seconds=1):
        middle = low + timedelta(seconds=int((high - low).total_seconds()) // 2)
        low, high = (middle, high) if _offset(middle, zone) == offset else (low, middle)
    return high


def _offset(at: datetime, zone: tzinfo) -> timedelta:
    offset = at.astimezone(zone).utcoffset()
    assert offset is not None
    return offset


def _midnight(on: date, zone: tzinfo) -> datetime:
    return datetime(on.year, on.month, on.day, tzinfo=zone).astimezone(UTC)


def _day(on: date, mark: Mark, change: str | None, reason: str | None) -> Day:
    words = {
        "past": "past",
        "free": "no fire",
        "fires": "fires",
        "moved": "its fire moves to a business day",
        "left-out": f"left out: {reason or 'by the calendar'}",
    }
    title = f"{_written(on)}: {words[mark]}" + (f"; {change}" if change else "")
    week = (on.replace(day=1).weekday() + on.day - 1) // 7
    return Day(on, week, on.weekday(), mark, change, title)


def _month(days: list[Day]) -> Month:
    name = f"{days[0].on:%B %Y}"
    fires_on = sum(day.mark == "fires" for day in days)
    told = [f"fires on {fires_on} {'day' if fires_on == 1 else 'days'}"]
    for mark, words in (("moved", "moved to a business day"), ("left-out", "left out")):
        if of_mark := [str(day.on.day) for day in days if day.mark == mark]:
            told.append(f"{words}: {', '.join(of_mark)}")
    told += [f"on the {day.on.day}. {day.change}" for day in days if day.change]
    return Month(name, f"{name}: {'; '.join(told)}", tuple(days))


def _written(on: date) -> str:
    return f"{on:%a} {on.day} {on:%b %Y}"
