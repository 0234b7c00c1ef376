"""Days and windows on which a schedule does not fire (S10).

A fire is excluded if its local date is a holiday, a listed date or, where only business days count, a day of the
weekend; or if the instant is in a blackout. The first of these, in that order, is the reason. Each exclusion knows when
it ends, so a search jumps there: a schedule that fires every second within a blackout of years costs one step. Where
fires move to the next or previous business day (`business`), days exclude no fire; only blackouts do.

Holidays and weekends are those of the `holidays` package: Friday and Saturday in Egypt, and a Saturday that China
declares a working day is one. It is imported with the first calendar that names a country (70 ms), and asked once for
each region and year. Beyond the years that it covers (2035 for India, 2100 for most) no day is a holiday.
"""

import re
from bisect import bisect_right
from datetime import UTC, date, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, NoReturn
from warnings import catch_warnings, simplefilter

from msgspec import Struct

from ondot.model.errors import Fault, InvalidSchedule
from ondot.model.schedule.dst import aware, naive, span_at

if TYPE_CHECKING:
    from holidays import HolidayBase

Reason = Literal["holiday", "date", "weekend", "blackout"]

_DAY: Final = timedelta(days=1)
_SATURDAY: Final = 5


class Blackout(Struct, frozen=True, kw_only=True):
    """From `from_at` (included) to `to_at` (excluded)."""

    from_at: datetime
    to_at: datetime


class Calendar(Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True):
    """`exclude_holidays` is a country or a region of it ("DE", "DE-BY"); `exclude_dates` are local ("2026-12-24")."""

    exclude_holidays: str | None = None
    exclude_dates: tuple[str, ...] = ()
    business_days: bool | Literal["next", "previous"] = False
    blackouts: tuple[Blackout, ...] = ()

    @property
    def moves(self) -> Literal["next", "previous"] | None:
        """Where a slot on a day off moves, if it is not excluded."""
        return None if isinstance(self.business_days, bool) else self.business_days


class Exclusion(NamedTuple):
    reason: Reason
    until_at: datetime  # where to look again; another exclusion may start there


class _Sorted(NamedTuple):
    """A calendar prepared for lookups: adjoining blackouts are merged."""

    dates: frozenset[str]
    begins_at: tuple[datetime, ...]
    ends_at: tuple[datetime, ...]


class _DaysOff(NamedTuple):
    holidays: frozenset[date]
    weekends: frozenset[date]


def exclusion_at(calendar: Calendar, zone: str, fire_at: datetime) -> Exclusion | None:
    """What excludes a fire at an aware UTC instant, if anything does."""
    if calendar.moves is None:
        at = naive(fire_at)
        day = _day_at(zone, at)
        reason = _reason_of_day(calendar, day)
        if reason is not None:
            return Exclusion(reason, aware(_day_ends(zone, at, day)))
    if calendar.blackouts:
        prepared = _sort(calendar)
        index = bisect_right(prepared.begins_at, fire_at) - 1
        if index >= 0 and fire_at < prepared.ends_at[index]:
            return Exclusion("blackout", prepared.ends_at[index])
    return None


def is_off(calendar: Calendar, day: date) -> bool:
    """Whether a local date is a holiday, a listed date or, where only business days count, on the weekend."""
    return _reason_of_day(calendar, day) is not None


def faults(calendar: Calendar) -> list[Fault]:
    """What is wrong with a calendar; pointers are relative to the schedule's long form."""
    found: list[Fault] = []
    if calendar.exclude_holidays is not None:
        try:
            _region(calendar.exclude_holidays)
        except InvalidSchedule as refusal:
            found.extend(refusal.faults)
    for index, text in enumerate(calendar.exclude_dates):
        if not _is_date(text):
            message = f'{text[:40]!r} is not a date; write year, month and day, for example "2026-12-24".'
            found.append(Fault(f"/calendar/exclude_dates/{index}", message))
    for index, blackout in enumerate(calendar.blackouts):
        pointer = f"/calendar/blackouts/{index}"
        zoneless = [name for name in ("from_at", "to_at") if getattr(blackout, name).utcoffset() is None]
        advice = 'The instant needs its offset from UTC, for example "2026-12-24T00:00:00Z".'
        found.extend(Fault(f"{pointer}/{name}", advice) for name in zoneless)
        if not zoneless and blackout.to_at <= blackout.from_at:
            message = f"The blackout ends before it starts; set to_at to after {blackout.from_at.isoformat()}."
            found.append(Fault(f"{pointer}/to_at", message))
    return found


def _reason_of_day(calendar: Calendar, day: date) -> Reason | None:
    off = None if calendar.exclude_holidays is None else _days_off(calendar.exclude_holidays, day.year)
    if off is not None and day in off.holidays:
        return "holiday"
    if calendar.exclude_dates and day.isoformat() in _sort(calendar).dates:
        return "date"
    if calendar.business_days and (day.weekday() >= _SATURDAY if off is None else day in off.weekends):
        return "weekend"
    return None


def _day_at(zone: str, at: datetime) -> date:
    return at.date() if zone == "UTC" else (at + span_at(zone, at).offset).date()


def _day_ends(zone: str, at: datetime, day: date) -> datetime:
    """The first instant after `at` at which the zone's clock shows another date; naive UTC in and out.

    This need not be midnight: clocks have skipped whole days, and have gone back across midnight.
    """
    midnight = datetime(day.year, day.month, day.day) + _DAY  # noqa: DTZ001  wall time
    if zone == "UTC":
        return midnight
    span = span_at(zone, at)
    while midnight - span.offset >= span.end_at:
        following = span_at(zone, span.end_at)
        if (span.end_at + following.offset).date() != day:
            return span.end_at
        span = following
    return midnight - span.offset


@lru_cache(maxsize=128)  # 200 kB for a thousand dates and a thousand blackouts
def _sort(calendar: Calendar) -> _Sorted:
    begins_at: list[datetime] = []
    ends_at: list[datetime] = []
    for from_at, to_at in sorted((window.from_at.astimezone(UTC), window.to_at) for window in calendar.blackouts):
        if ends_at and from_at <= ends_at[-1]:
            ends_at[-1] = max(ends_at[-1], to_at.astimezone(UTC))
        else:
            begins_at.append(from_at)
            ends_at.append(to_at.astimezone(UTC))
    return _Sorted(frozenset(calendar.exclude_dates), tuple(begins_at), tuple(ends_at))


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text  # rejects 20261224 and 2026-W52-4
    except ValueError:
        return False


@lru_cache(maxsize=1024)
def _days_off(region: str, year: int) -> _DaysOff:
    known = _region(region, year)
    new_year = date(year, 1, 1)
    days = [new_year + _DAY * n for n in range(366)]
    holidays = frozenset(day for day in days if day in known)
    # Not a working day and not a holiday: the weekend, without the days that a country moved work to.
    weekends = frozenset(day for day in days if day not in holidays and not known.is_working_day(day))
    return _DaysOff(holidays, weekends)


def _region(text: str, year: int | None = None) -> "HolidayBase":
    """The holidays of a country or one of its regions, in one year or in none."""
    from holidays import country_holidays
    from holidays.registry import COUNTRIES

    country, dash, subdivision = text.partition("-")
    if not any(country == names[1] for names in COUNTRIES.values()):
        _refuse(text, _countries_like(text))
    if dash and subdivision not in country_holidays(country).subdivisions:
        _refuse(text, _regions_like(country, subdivision))
    with catch_warnings():
        simplefilter("ignore")  # warnings about years that it does not cover
        return country_holidays(country, subdiv=subdivision or None, years=year, expand=False)


def _countries_like(text: str) -> list[str]:
    from holidays.registry import COUNTRIES

    codes = {spelling.casefold(): names[1] for names in COUNTRIES.values() for spelling in names}
    codes |= {module.replace("_", " "): names[1] for module, names in COUNTRIES.items()}
    wanted = text[:60].strip().casefold()
    if wanted in codes:
        return [codes[wanted]]
    country, *region = re.split(r"[^a-z]+", wanted, maxsplit=1)  # "de/by" and "de_by"
    if region and country in codes:
        return _regions_like(codes[country], region[0])
    return [codes[match] for match in get_close_matches(wanted, codes, n=3, cutoff=0.75)]


def _regions_like(country: str, text: str) -> list[str]:
    from holidays import country_holidays

    known = country_holidays(country)
    spellings = {code.casefold(): code for code in known.subdivisions}
    for code, names in known.get_subdivision_aliases().items():
        spellings |= {name.casefold(): code for name in names}
    wanted = text[:60].strip().casefold()
    matches = [wanted] if wanted in spellings else get_close_matches(wanted, spellings, n=3, cutoff=0.75)
    return [f"{country}-{spellings[match]}" for match in matches] or [
        country,
        *(f"{country}-{code}" for code in known.subdivisions[:2]),
    ]


def _refuse(text: str, suggestions: list[str]) -> NoReturn:
    names = " or ".join(dict.fromkeys(suggestions))
    advice = f"did you mean {names}?" if names else 'use a country such as "DE", or a region of it such as "DE-BY".'
    message = f"The holidays of {text[:60]!r} are not known; {advice}"
    raise InvalidSchedule(message, faults=(Fault("/calendar/exclude_holidays", message),), region=text[:60])
