"""Twelve months of a schedule, day by day: where it fires, what its calendar excludes, where the clocks change (S9).

Pure: a walk by `next_fire`, one step for each day with a fire, however many fires the day has. Days are local to the
schedule's zone.
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

Mark = Literal["past", "free", "fires", "moved", "excluded"]


@dataclass(frozen=True, slots=True)
class Day:
    """`week` and `weekday` (Monday is 0) are its place in the picture of the month."""

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
    excluded: int
    changes: tuple[str, ...]


def build_year(schedule: Schedule, after: datetime, zone: tzinfo, reasons: dict[date, str]) -> Year:
    """The month of `after` and the next eleven; `reasons`: why fires are skipped on a day, if known."""
    start_on = after.astimezone(zone).date()
    first_on = start_on.replace(day=1)
    ends_on = date(first_on.year + 1, first_on.month, 1)
    if ends_on.year > LAST_YEAR:
        return Year((), 0, 0, 0, ())
    changes = dict(_changes(zone, first_on, ends_on))
    fires_on = _days_with_fires(schedule, after, ends_on, zone)
    unrestricted = structs.replace(schedule, calendar=None)
    excluded = _days_with_fires(unrestricted, after, ends_on, zone) if schedule.calendar else set[date]()
    moved = _days_moved_from(schedule, after, ends_on, zone) - fires_on
    excluded = {
        on for on in excluded.union(reasons) if on not in fires_on and on not in moved and start_on <= on < ends_on
    }

    def mark(on: date) -> Mark:
        if on < start_on:
            return "past"
        if on in fires_on:
            return "fires"
        return "moved" if on in moved else "excluded" if on in excluded else "free"

    days = [first_on + DAY * n for n in range((ends_on - first_on).days)]
    months = []
    for number in range(MONTHS):
        year, month = divmod(first_on.month - 1 + number, 12)
        of_month = [on for on in days if (on.year, on.month) == (first_on.year + year, month + 1)]
        months.append(_month([_day(on, mark(on), changes.get(on), reasons.get(on)) for on in of_month]))
    ahead = tuple(f"{_format_date(on)}: {change}" for on, change in changes.items() if on >= start_on)
    return Year(tuple(months), len(fires_on), len(moved), len(excluded), ahead)


def _days_moved_from(schedule: Schedule, after: datetime, ends_on: date, zone: tzinfo) -> set[date]:
    """The days of fires that move to a business day: the schedule without its calendar, except for blackouts."""
    if schedule.calendar is None or schedule.calendar.moves is None:
        return set()
    unmoved = structs.replace(schedule, calendar=Calendar(blackouts=schedule.calendar.blackouts))
    return _days_with_fires(unmoved, after, ends_on, zone)


def _days_with_fires(schedule: Schedule, after: datetime, ends_on: date, zone: tzinfo) -> set[date]:
    found: set[date] = set()
    end_at = _midnight(ends_on, zone)
    fire_at = next_fire(schedule, after)
    while fire_at is not None and fire_at < end_at:
        on = fire_at.astimezone(zone).date()
        found.add(on)
        # Clocks that go back over midnight repeat the end of yesterday: the walk must not go back.
        fire_at = next_fire(schedule, max(_midnight(on + DAY, zone) - MICROSECOND, fire_at))
    return found


def _changes(zone: tzinfo, start_on: date, ends_on: date) -> Iterator[tuple[date, str]]:
    """The days on which the clocks of the zone change, with the change in words."""
    at, end_at = _midnight(start_on, zone), _midnight(ends_on, zone)
    while at < end_at:
        following, before = min(at + DAY, end_at), _offset(at, zone)
        if _offset(following, zone) != before:
            change_at = _end_of(before, at, following, zone)
            local, after = (change_at + before).replace(tzinfo=None), change_at.astimezone(zone)
            yield after.date(), f"clocks go from {local:%H:%M} to {after:%H:%M}"
        at = following


def _end_of(offset: timedelta, low: datetime, high: datetime, zone: tzinfo) -> datetime:
    """The first second in (low, high] with another offset. At `high` the offset is another one."""
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
        "excluded": f"excluded: {reason or 'by the calendar'}",
    }
    title = f"{_format_date(on)}: {words[mark]}" + (f"; {change}" if change else "")
    week = (on.replace(day=1).weekday() + on.day - 1) // 7
    return Day(on, week, on.weekday(), mark, change, title)


def _month(days: list[Day]) -> Month:
    name = f"{days[0].on:%B %Y}"
    fires_on = sum(day.mark == "fires" for day in days)
    parts = [f"fires on {fires_on} {'day' if fires_on == 1 else 'days'}"]
    for mark, words in (("moved", "moved to a business day"), ("excluded", "excluded")):
        if of_mark := [str(day.on.day) for day in days if day.mark == mark]:
            parts.append(f"{words}: {', '.join(of_mark)}")
    parts += [f"{day.change} on {day.on.day} {day.on:%B}" for day in days if day.change]
    return Month(name, f"{name}: {'; '.join(parts)}", tuple(days))


def _format_date(on: date) -> str:
    return f"{on:%a} {on.day} {on:%b %Y}"
