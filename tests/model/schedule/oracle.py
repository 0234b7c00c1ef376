"""What a schedule should do, found the slow way.

The oracle walks real time step by step, reads the zone's clock at each step, and notes which wall times
were shown once, twice or never. It parses nothing: tests make each field as a pair of its text and the
values it means. It shares no code with `ondot.model.schedule`.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

Matches = Callable[[datetime], bool]


def fires(
    matches: Matches,
    zone: str,
    *,
    gap: str,
    fold: str,
    begin_at: datetime,
    end_at: datetime,
    step: timedelta,
    margin: timedelta,
) -> list[datetime]:
    """All fires in (begin_at, end_at]; `margin` is how far around them folds may reach."""
    tz = ZoneInfo(zone)
    shown: dict[datetime, list[datetime]] = {}
    fired: set[datetime] = set()
    at, before = begin_at - margin, None
    while at <= end_at + margin:
        wall = at.astimezone(tz).replace(tzinfo=None)
        shown.setdefault(wall, []).append(at)
        if before is not None and gap == "shift":
            left_out = before + step
            while left_out < wall:
                if matches(left_out):
                    fired.add(at)
                left_out += step
        before, at = wall, at + step
    for wall, instants in shown.items():
        if matches(wall):
            fired.update({"first": instants[:1], "last": instants[-1:], "both": instants}[fold])
    return sorted(at for at in fired if begin_at < at <= end_at)


@cache
def offset_changes(zone: str, year: int) -> list[datetime]:
    """The instants of a year, to the minute, at which the zone's offset changes."""
    tz = ZoneInfo(zone)
    found = []
    at, hour, minute = datetime(year, 1, 1, tzinfo=UTC), timedelta(hours=1), timedelta(minutes=1)
    offset = at.astimezone(tz).utcoffset()
    while at.year == year:
        if (at + hour).astimezone(tz).utcoffset() != offset:
            change = at + minute
            while change.astimezone(tz).utcoffset() == offset:
                change += minute
            found.append(change)
            offset = change.astimezone(tz).utcoffset()
        at += hour
    return found
