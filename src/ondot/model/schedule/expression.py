"""Cron expressions: parsed once, then asked for their wall-clock slots (S2).

Five fields (minute, hour, day of month, month, day of week), or six with seconds first. A field may have `*`,
numbers, names, lists, ranges and steps; day of month also `L` (last day), `LW` (last weekday), `15W` (the
weekday nearest to the 15th in the same month) and `?`; day of week also `5#2` (second Friday), `5L` (last
Friday) and `?`. `?` is `*`. Macros are `@yearly @annually @monthly @weekly @daily @midnight @hourly`.

Two rules are Vixie cron's. **Days**: if both day fields are restricted, a day matches when either does; a
field that starts with `*` is not restricted, and then both must match. **Straight through**: an expression
whose minute or hour field starts with `*` (so `*/15 * * * *`, `0 * * * *`, `0 */2 * * *`, `*/5 2 * * *`)
follows real time: it fires whenever the zone's clock shows a slot, twice in a repeated hour and not in a
skipped hour. All others name fixed times of day, and the job's `dst` policy applies to them. `0-23` is a
range and not a wildcard. `H` is parsed here for no particular job; see `spread`.

cronsim parses the fields. The search is our own: it goes straight to the next value of each field, and to the
next day by the table of the month in `days`. Parsed fields are cached one by one, so expressions that share
fields, such as those that H spreads, cost little more to parse than to look up.
"""

import re
from bisect import bisect_left, bisect_right
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from typing import Final, NamedTuple, NoReturn

from cronsim import CronSim, CronSimError

from ondot.model.errors import Fault, InvalidSchedule
from ondot.model.schedule.days import days_of, nearest_weekdays, plain_days
from ondot.model.schedule.dst import NEVER_AFTER, NEVER_BEFORE, SEARCH_YEARS
from ondot.model.schedule.spread import is_spread, resolve

MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
LONGEST: Final = 255


class _Field(NamedTuple):
    name: str
    allowed: str
    example: str


_FIELDS: Final = (
    _Field("second", "0 to 59", "0 or */10"),
    _Field("minute", "0 to 59", "0,30 or */15"),
    _Field("hour", "0 to 23", "9 or 9-17"),
    _Field("day-of-month", "1 to 31, L, LW or 15W", "1,15 or L"),
    _Field("month", "1 to 12 or JAN to DEC", "1-6 or JAN,JUL"),
    _Field("day-of-week", "0 to 7 (0 and 7 are Sunday), SUN to SAT, 5#2 or 5L", "1-5 or MON-FRI"),
)
_SECOND, _MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY = range(6)
_WEEKDAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_ONE_VALUE: Final = re.compile(r"\b(\w+)-\1/0*[1-9]\d*(?=,|$)")
_YEAR: Final = re.compile(r"(?:19|20|21)\d\d(?!\d)")
_NO_YEAR: Final = "A year field does not exist: use start_at and end_at."
_BACKWARDS: Final = re.compile(r"(\d{1,2})-(\d{1,2})")


class Times(NamedTuple):
    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]


class Expression:
    """A parsed expression, immutable."""

    def __init__(self, text: str) -> None:
        fields = _split(text)
        self.fields = tuple(fields)
        self.text = " ".join(fields)
        self.is_straight = fields[_MINUTE].startswith("*") or fields[_HOUR].startswith("*")
        self.days = " ".join(fields[_DAY:])
        self.is_daily = all(field in {"*", "?"} for field in fields[_DAY:])
        seconds, minutes, hours, months = (_values(text, fields, index) for index in (_SECOND, _MINUTE, _HOUR, _MONTH))
        # Each table answers "the first value from i on" with one lookup, also for i one past the field.
        self._second_from = _table(seconds, 60)
        self._minute_from = _table(minutes, 60)
        self._hour_from = _table(hours, 24)
        self._month_from = _table(months, 12)
        self._first = (min(hours), min(minutes), min(seconds))
        self.times = Times(seconds, minutes, hours)
        _require_days(text, fields)
        self._days_in = days_of(fields[_DAY], fields[_WEEKDAY]).in_month

    def slot_after(self, wall: datetime) -> datetime | None:
        """The first slot strictly after a wall time, or None if there is none in 50 years."""
        year, month, day = wall.year, wall.month, wall.day
        if self._month_from[month] == month:
            days = self._days_in(year, month)
            if day in days and (later := self._time_after(wall.hour, wall.minute, wall.second)):
                return datetime(year, month, day, *later)  # noqa: DTZ001  slots are wall time
            if (index := bisect_right(days, day)) < len(days):
                return datetime(year, month, days[index], *self._first)  # noqa: DTZ001
        last_year = min(year + SEARCH_YEARS, NEVER_AFTER.year)
        while year <= last_year:
            following = self._month_from[month + 1]
            if following is None:
                year, month = year + 1, 0
                continue
            month = following
            if days := self._days_in(year, month):
                return datetime(year, month, days[0], *self._first)  # noqa: DTZ001
        return None

    def is_slot(self, wall: datetime) -> bool:
        seconds, minutes, hours = self.times
        return (
            wall.second in seconds
            and wall.minute in minutes
            and wall.hour in hours
            and not wall.microsecond
            and self._month_from[wall.month] == wall.month
            and wall.day in self._days_in(wall.year, wall.month)
        )

    def fires_on(self, day: date) -> bool:
        """Whether a date has slots."""
        return self._month_from[day.month] == day.month and day.day in self._days_in(day.year, day.month)

    def covered_until(self, slot: datetime, times: Times) -> datetime | None:
        """The end of the day, hour or minute around a slot, if every one of `times` in it is a slot too."""
        seconds, minutes, hours = self.times
        if not times.seconds <= seconds:
            return None
        if not times.minutes <= minutes:
            return slot.replace(second=0) + timedelta(minutes=1)
        if not times.hours <= hours:
            return slot.replace(minute=0, second=0) + timedelta(hours=1)
        return datetime.combine(slot, time.min) + timedelta(days=1)

    def _time_after(self, hour: int, minute: int, second: int) -> tuple[int, int, int] | None:
        first_minute, first_second = self._first[1:]
        if self._hour_from[hour] == hour:
            if self._minute_from[minute] == minute and (later := self._second_from[second + 1]) is not None:
                return hour, minute, later
            if (later := self._minute_from[minute + 1]) is not None:
                return hour, later, first_second
        if (later := self._hour_from[hour + 1]) is not None:
            return later, first_minute, first_second
        return None

    def slots_between(self, after: datetime, until: datetime) -> int:
        """The number of slots in (after, until]: matching days times the slots of a day, and both ends by rank."""
        if until <= after:
            return 0
        seconds, minutes, hours = (sorted(values) for values in self.times)
        a_day = len(hours) * len(minutes) * len(seconds)

        def of_month(wall: datetime) -> int:
            """The slots of its month up to and including a wall time."""
            days = self._days_in(wall.year, wall.month) if self._month_from[wall.month] == wall.month else ()
            count = bisect_left(days, wall.day) * a_day
            if wall.day in days:
                count += bisect_left(hours, wall.hour) * len(minutes) * len(seconds)
                if wall.hour in hours:
                    count += bisect_left(minutes, wall.minute) * len(seconds)
                    count += bisect_right(seconds, wall.second) if wall.minute in minutes else 0
            return count

        count = of_month(until) - of_month(after)
        for months in range(after.year * 12 + after.month - 1, until.year * 12 + until.month - 1):
            year, month = months // 12, months % 12 + 1
            if self._month_from[month] == month:
                count += len(self._days_in(year, month)) * a_day
        return count


@lru_cache(maxsize=8192)
def expression(text: str) -> Expression:
    """The parsed expression; an error names the wrong field, what it allows, and an example."""
    parsed = Expression(resolve(text, 0))
    if parsed.slot_after(NEVER_BEFORE.replace(year=2000)) is None:
        days, months, weekdays = parsed.fields[_DAY:] if is_spread(text) else text.split()[-3:]
        also = "" if weekdays in {"*", "?"} else f" that is a day-of-week {weekdays}"
        _refuse(
            text,
            f"it never fires: month {months} has no day {days}{also}. Use a day it has, or L for the last",
        )
    return parsed


def _split(text: str) -> list[str]:
    """Six upper-case fields as cronsim parses them, except for `W`."""
    if len(text) > LONGEST:
        _refuse(text, f"it is longer than {LONGEST} characters. Split it into several jobs")
    fields = text.split()
    if fields and fields[0].startswith("@"):
        macro = fields[0].lower()
        if macro == "@every":
            given = " ".join(fields[1:]) or "90s"
            _refuse(text, f'@every is an interval, not a cron expression. Use "every": "{given}" instead')
        if macro not in MACROS or len(fields) > 1:
            known = ", ".join((*MACROS, "@every 90s"))
            _refuse(text, f"the macros are {known}. Use one of them alone, or five fields")
        fields = MACROS[macro].split()
    if len(fields) not in {5, 6}:
        more = f" {_NO_YEAR}" if len(fields) == 7 else ""
        _refuse(
            text,
            "it needs five fields (minute hour day-of-month month day-of-week), or six with seconds first, "
            f'for example "0 9 * * 1-5"; got {len(fields)}.{more}',
        )
    if len(fields) == 6 and _YEAR.match(fields[-1]):
        _refuse(text, f"{fields[-1][:20]} is not a day-of-week. {_NO_YEAR}")
    fields = [field.upper() for field in fields]
    if len(fields) == 5:
        fields.insert(0, "0")
    for index in (_DAY, _WEEKDAY):
        if fields[index] == "?":
            fields[index] = "*"
    # Names become numbers, so that FRIL and FRI-SUN are parsed like 5L and 5-7.
    fields[_WEEKDAY] = re.sub(r"(?<!SUN)(?<!\b0)-SUN\b", "-7", fields[_WEEKDAY])
    for number, name in enumerate(_WEEKDAYS):
        fields[_WEEKDAY] = re.sub(rf"\b{name}(?=L?\b)", str(number), fields[_WEEKDAY])
    # cronsim parses a range of one value with a step as an open one: 5-5/2 is 5, and not 5,7,9 and so on.
    return [_ONE_VALUE.sub(r"\1", field) for field in fields]


def _values(text: str, fields: list[str], index: int) -> frozenset[int]:
    """The values of one field, parsed alone so that an error can name the field."""
    values = _parse_field(fields[index], index)
    if values is None:
        _refuse_field(text, index, fields[index])
    return values


def allowed_values(field: str, index: int) -> frozenset[int]:
    """The values of one field of `Expression.fields` that has plain values only."""
    values = _parse_field(field, index)
    assert values is not None, "the field was parsed before"
    return values


@lru_cache(maxsize=2048)
def _parse_field(field: str, index: int) -> frozenset[int] | None:
    """Cached: fields repeat far more often than expressions do, above all those that H spreads."""
    alone = ["*"] * 6
    alone[index] = field
    try:
        sim = CronSim(" ".join(alone), NEVER_BEFORE)
    except CronSimError:
        return None
    values = (sim.seconds, sim.minutes, sim.hours, sim.days, sim.months, sim.weekdays)[index]
    return frozenset(value for value in values if isinstance(value, int))


def _require_days(text: str, fields: list[str]) -> None:
    plain = plain_days(fields[_DAY])
    if not all(1 <= day <= 31 for day in nearest_weekdays(fields[_DAY])) or "L/" in plain or "W/" in plain:
        _refuse_field(text, _DAY, fields[_DAY])
    if plain:
        _values(text, [*fields[:_DAY], plain, *fields[_MONTH:]], _DAY)
    _values(text, fields, _WEEKDAY)


@lru_cache(maxsize=1024)
def _table(values: frozenset[int], size: int) -> tuple[int | None, ...]:
    return tuple(min((value for value in values if value >= i), default=None) for i in range(size + 2))


def _refuse_field(text: str, index: int, field: str) -> NoReturn:
    name, allowed, example = _FIELDS[index]
    if "?" in field:
        _refuse(text, f'"?" is allowed alone, in one of the two day fields. Write * in the {name} field')
    backwards = next((m for m in _BACKWARDS.finditer(field) if int(m[1]) > int(m[2])), None)
    hint = f" A range cannot run backwards: split {backwards[0]} into two." if backwards else ""
    written = text.split()
    shown = written[index - 6] if len(written) in {6, 5} and index >= 6 - len(written) else field
    _refuse(text, f"the {name} field {shown!r} must be {allowed}, for example {example}.{hint}")


def _refuse(text: str, reason: str) -> NoReturn:
    message = f'The cron expression "{text[:80]}" is not valid: {reason.rstrip(".")}.'
    raise InvalidSchedule(message, faults=(Fault("/cron", message),), cron=text[:LONGEST])
