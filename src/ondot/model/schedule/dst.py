"""From wall time to instants, through every change of a zone's offset (S4).

A zone's offset changes divide its time into spans of constant offset. Inside a span, wall time and UTC differ by a
constant. Only the changes need a decision, and the policy makes it:

- **gap**: clocks go forward, and wall times are skipped. `shift` fires once, at the first instant after the gap,
however
  many slots are in it; `skip` does not fire.
- **fold**: clocks go back, and wall times repeat. `first`, `last` or `both` of the two instants fire.

`STRAIGHT` is the rule of schedules that follow real time: they fire whenever the zone's clock shows a slot, which is
the same as gap `skip` and fold `both`. `expression.py` documents which schedules do so.

The search walks forward span by span and never looks back, so instants strictly increase and none repeats, wherever it
starts: inside a skipped hour, inside a repeated hour, or in a zone that skips a whole day. Callers that list wall-clock
slots (cron, RRULE, moved business days) pass them in as a function.
"""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from importlib.resources import files
from typing import Final, Literal, NamedTuple
from zoneinfo import ZoneInfo

import tzdata  # type: ignore[import-untyped]
from msgspec import Struct

from ondot.model.errors import Fault, InvalidSchedule

# Naive datetimes in this package are wall times or, where a name ends in `_at`, instants in UTC without
# their zone: arithmetic on them is exact and several times faster than on aware ones.
NEVER_BEFORE: Final = datetime(1900, 1, 1, tzinfo=UTC).replace(tzinfo=None)
NEVER_AFTER: Final = datetime(9900, 1, 1, tzinfo=UTC).replace(tzinfo=None)
SECOND: Final = timedelta(seconds=1)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH: Final = _EPOCH.replace(tzinfo=None)

# Every calendar rule repeats within 40 years (29 February on a given weekday, across the year 2100):
# a rule without a fire in 50 years has none at all.
SEARCH_YEARS: Final = 50

# Two offset changes of one zone are at least 95 hours apart (all zones of tzdata 2025b and 2026f since 1880),
# so looking at the offset once a day finds each of them.
_LOOK: Final = timedelta(days=1)
# Longer than any fold (24 hours), so that a span knows the fold before it even if a year starts in between.
_MARGIN: Final = timedelta(days=3)

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*")
_NOT_FOR_JOBS: Final = ("posix", "right/", "localtime", "Factory")

SlotAfter = Callable[[datetime], datetime | None]


class Dst(Struct, frozen=True, kw_only=True, omit_defaults=True):
    gap: Literal["shift", "skip"] = "shift"
    fold: Literal["first", "last", "both"] = "first"


STRAIGHT: Final = Dst(gap="skip", fold="both")


class Span(NamedTuple):
    """A period with one offset, and which of its wall times are special."""

    begin_at: datetime
    end_at: datetime
    offset: timedelta
    second_until: datetime  # wall times before it occur for the second time
    first_from: datetime  # wall times from it on will occur again
    gap_until: datetime  # wall times from the span's end up to it are skipped


def next_instant(slot_after: SlotAfter, zone: str, dst: Dst, after_at: datetime) -> datetime | None:
    """The first instant strictly after `after_at` at which a slot fires by the policy; naive UTC in and out."""
    at = max(after_at, NEVER_BEFORE)
    if zone == "UTC":
        return slot_after(at)
    last_year = min(at.year + SEARCH_YEARS, NEVER_AFTER.year)
    span = span_at(zone, at)
    wall = slot_after(at + span.offset)
    while wall is not None and wall.year <= last_year:
        fire_at = wall - span.offset
        if fire_at < span.end_at:
            if wall < span.second_until and dst.fold == "first":
                wall = slot_after(span.second_until - SECOND)
                continue
            if wall < span.first_from or dst.fold != "last":
                return fire_at
        elif wall < span.gap_until and dst.gap == "shift":
            return span.end_at
        following = span_at(zone, span.end_at)
        begins = following.begin_at + following.offset
        if wall < begins or following.offset < span.offset:
            wall = slot_after(begins - SECOND)
        # There is no slot between the start of this span and `wall`, and none in a fold on the way. So jump: the next
        # 29 February may be years away.
        if wall is not None and wall - _MARGIN - following.offset > following.end_at:
            following = span_at(zone, wall - _MARGIN - following.offset)
        span = following
    return None


def naive(at: datetime) -> datetime:
    """An aware UTC instant without its zone. By arithmetic, since `replace` takes a third of the time of a search."""
    return _NAIVE_EPOCH + (at - _EPOCH)


def aware(at: datetime) -> datetime:
    """The same the other way."""
    return _EPOCH + (at - _NAIVE_EPOCH)


def span_at(zone: str, at: datetime) -> Span:
    for span in _spans(zone, at.year):
        if at < span.end_at:
            return span
    raise AssertionError("the spans of a year reach beyond its end")


def spans_between(zone: str, begin_at: datetime, end_at: datetime) -> Iterator[Span]:
    at = begin_at
    while at < end_at:
        span = span_at(zone, at)
        yield span
        at = span.end_at


@lru_cache(maxsize=4096)
def _spans(zone: str, year: int) -> tuple[Span, ...]:
    """The spans that touch a year, in order, including changes just outside it."""
    tz = zone_info(zone)
    new_year = NEVER_BEFORE.replace(year=year)
    at, end_at = new_year - _MARGIN, new_year.replace(year=year + 1) + _MARGIN
    changes = [(at, _offset(tz, at))]
    while at < end_at:
        then, at = at, min(at + _LOOK, end_at)
        if _offset(tz, at) != changes[-1][1]:
            changed_at = _change(tz, then, at)
            changes.append((changed_at, _offset(tz, changed_at)))
    spans = []
    for i, (begin_at, offset) in enumerate(changes):
        before = changes[i - 1][1] if i else offset
        until_at, after = changes[i + 1] if i + 1 < len(changes) else (end_at, offset)
        spans.append(
            Span(
                begin_at=begin_at,
                end_at=until_at,
                offset=offset,
                second_until=begin_at + before if before > offset else NEVER_BEFORE,
                first_from=until_at + after if after < offset else NEVER_AFTER,
                gap_until=until_at + after if after > offset else NEVER_BEFORE,
            )
        )
    # The last span ends at the margin and not at an offset change; a search that reaches its end asks the next year.
    return tuple(span for span in spans if span.end_at > new_year)


def _offset(tz: ZoneInfo, at: datetime) -> timedelta:
    offset = tz.fromutc(at.replace(tzinfo=tz)).utcoffset()
    assert offset is not None
    return offset


def _change(tz: ZoneInfo, low_at: datetime, high_at: datetime) -> datetime:
    """The one offset change in (low_at, high_at], to the second."""
    old = _offset(tz, low_at)
    low, high = 0, int((high_at - low_at).total_seconds())
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(tz, low_at + middle * SECOND) == old:
            low = middle
        else:
            high = middle
    return low_at + high * SECOND


def tzdata_version() -> str:
    """The release of the IANA database in the tzdata package, such as "2025b"."""
    version: str = tzdata.IANA_VERSION
    return version


@lru_cache(maxsize=1024)
def zone_info(name: str) -> ZoneInfo:
    """The zone of that name. Rejects names that differ between machines, and zones with leap seconds.

    From the tzdata package and not from the host's files, which Python would prefer: so all nodes, the command line and
    tests agree, and an old host does not bring old rules.
    """
    if _NAME.fullmatch(name) and not name.startswith(_NOT_FOR_JOBS):
        try:
            with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
                return ZoneInfo.from_file(file, key=name)
        except (ValueError, OSError):
            pass
    names = _suggestions(name)
    advice = f"did you mean {' or '.join(names)}?" if names else "use a name such as Europe/Berlin or UTC."
    message = f"There is no time zone {name[:60]!r}; {advice}"
    raise InvalidSchedule(message, faults=(Fault("/timezone", message),), timezone=name[:60])


@lru_cache(maxsize=1)
def zone_names() -> tuple[str, ...]:
    """The names of all zones, in order."""
    return tuple(sorted(files("tzdata").joinpath("zones").read_text(encoding="utf-8").split()))


def _suggestions(name: str) -> list[str]:
    if name.isupper() and len(name) <= 5:
        return []  # an abbreviation: CST is three zones, and similar names are none of them
    wanted = name[:60].strip().replace(" ", "_").casefold()
    keys: dict[str, str] = {}
    for key in zone_names():
        if not key.startswith(_NOT_FOR_JOBS):
            keys[key.casefold()] = key
            keys.setdefault(key.casefold().rpartition("/")[2], key)  # "Berlin" alone is what people type
    if wanted in keys:
        return [keys[wanted]]
    found = [keys[match] for match in get_close_matches(wanted, keys, n=3, cutoff=0.75)]
    return list(dict.fromkeys(found))
