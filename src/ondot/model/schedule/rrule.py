"""Schedules by iCalendar recurrence rules (S10), mapped to instants as cron is (S4).

A rule steps through **periods** (FREQ, every INTERVAL-th counted from DTSTART), and each period lists slots of wall
time. Each part that names days (BYMONTH, BYWEEKNO, BYYEARDAY, BYMONTHDAY, BYDAY) is a set of days of the year, and a
day must be in all the given sets; the parts that name times do the same by hour, minute and second. That is the table
of RFC 5545: a part finer than FREQ adds slots, a coarser one removes periods. Parts that are not given come from
DTSTART. BYSETPOS then selects among the slots of one period. dateutil does exactly the same: DTSTART itself is due only
if the rule lists it, and with BYSETPOS the first week of FREQ=WEEKLY starts with DTSTART.

**Ends.** UNTIL is included. With `Z` it is compared as the wall time that the zone's clock shows at that instant.
COUNT is converted to its last slot once, when the rule is first asked; slots that EXDATE excludes count. A COUNT not
used up within 100 years has no effect.

**Straight through.** Rules without an hour of the day (FREQ=HOURLY, MINUTELY or SECONDLY without BYHOUR) follow real
time, like a cron with `*` hours. All others name times of the day, and the job's `dst` policy applies to them.

The search never walks from DTSTART. It jumps in turn to the next period by INTERVAL, the next day that the parts allow
and the next time of day that they allow, until none of the three moves it. A period is a number (years, months, weeks,
or clock units since the year 1) and a slot is a count of seconds, so each jump is one line of arithmetic.
"""

from bisect import bisect_left, bisect_right
from calendar import monthrange
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import islice
from math import gcd, prod
from typing import Final

from msgspec import Struct

from ondot.model.errors import Fault, InvalidSchedule
from ondot.model.schedule.dst import (
    NEVER_AFTER,
    SEARCH_YEARS,
    SECOND,
    STRAIGHT,
    Dst,
    aware,
    naive,
    next_instant,
    span_at,
)
from ondot.model.schedule.looks import open_looks, open_or_endless
from ondot.model.schedule.rrule_days import Days
from ondot.model.schedule.rrule_text import Frequency, Moment, Recurrence, Rule, begins_after, begins_of, read

__all__ = [
    "Expansion",
    "Recurrence",
    "Rrule",
    "begins_after",
    "begins_of",
    "effective_dst",
    "expansion",
    "next_after",
    "read",
    "require_slot",
]

_DAY_S: Final = 86_400
_DAY: Final = timedelta(days=1)
_DAY_ONE: Final = datetime(1, 1, 1, tzinfo=UTC).replace(tzinfo=None)
_UNIT_S: Final = {Frequency.HOURLY: 3600, Frequency.MINUTELY: 60, Frequency.SECONDLY: 1}
_SEARCH_S: Final = SEARCH_YEARS * 366 * _DAY_S
_NEVER: Final = -1
# Up to this many times are stored as a list, more are computed: BYHOUR, BYMINUTE and BYSECOND can name 86,400.
_LISTED: Final = 96


class Rrule(
    Struct,
    tag_field="kind",
    tag="rrule",
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    cache_hash=True,
):
    """`begins` is DTSTART as wall time, stored so that the rule stays the same; `is_anchored`: the text has it."""

    text: str
    begins: datetime
    timezone: str = "UTC"
    dst: Dst = Dst()
    is_anchored: bool = False


def next_after(rrule: Rrule, after: datetime) -> datetime | None:
    """The first fire strictly after an aware UTC instant."""
    looks = open_looks()
    if looks is None:
        return _next_after(rrule, after)[0]
    before = looks.periods
    fire_at, periods = _next_after(rrule, after)
    if looks.periods == before:
        looks.spend_periods(periods)  # a cached result costs what it cost the first time
    return fire_at


@lru_cache(maxsize=8192)
def _next_after(rrule: Rrule, after: datetime) -> tuple[datetime | None, int]:
    """The fire, and how many periods were looked into to find it."""
    after_at = naive(after)
    if after_at >= NEVER_AFTER:
        return None, 0
    with open_or_endless() as looks:
        slot_after, before = expansion(rrule).slot_after, looks.periods
        fire_at = next_instant(slot_after, rrule.timezone, effective_dst(rrule), after_at)
    return None if fire_at is None else aware(fire_at), looks.periods - before


def effective_dst(rrule: Rrule) -> Dst:
    """The job's policy, or `STRAIGHT` for a recurrence that follows real time."""
    return STRAIGHT if read(rrule.text).is_straight else rrule.dst


def require_slot(rrule: Rrule) -> None:
    """Rejects a recurrence without any time within 50 years of its start."""
    with open_or_endless() as looks:
        before = looks.periods
        periods = expansion(rrule).periods
        if looks.periods == before:
            looks.spend_periods(periods)  # as above
    if expansion(rrule).slot_after(rrule.begins - SECOND) is None:
        message = (
            f'The recurrence rule "{rrule.text[:80]}" never fires: no time from {rrule.begins} on matches all of its '
            "parts. Remove a BY part, or an INTERVAL that steps over them, or set a later UNTIL."
        )
        raise InvalidSchedule(message, faults=(Fault("/rrule", message),), rrule=rrule.text)


def expansion(rrule: Rrule) -> "Expansion":
    """The slots of a recurrence; jobs that differ only in their `dst` share them."""
    return _expansion(rrule.text, rrule.begins, rrule.timezone)


@lru_cache(maxsize=2048)
def _expansion(text: str, begins: datetime, zone: str) -> "Expansion":
    return Expansion(read(text), begins, zone)


class Expansion:
    """The wall-clock slots of a recurrence: those of its rules and RDATEs, without its EXDATEs."""

    def __init__(self, recurrence: Recurrence, begins: datetime, zone: str) -> None:
        with open_or_endless() as looks:
            before = looks.periods
            self._rules = [_Slots(rule, begins, zone) for rule in recurrence.rules]
            self.periods = looks.periods - before  # looked into to find where a COUNT ends
        self._dates = sorted(_wall(moment, zone) for moment in recurrence.dates)
        self._excluded = {_wall(moment, zone) for moment in recurrence.excluded if not moment.is_date}
        self._excluded_days = {moment.time.date() for moment in recurrence.excluded if moment.is_date}
        self._is_one_rule = len(self._rules) == 1 and not recurrence.dates and not recurrence.excluded

    def slot_after(self, wall: datetime) -> datetime | None:
        """The first slot strictly after a wall time, or None if there is none in 50 years."""
        if self._is_one_rule:
            return self._rules[0].slot_after(wall)
        while True:
            slots = [slot for rule in self._rules if (slot := rule.slot_after(wall)) is not None]
            slots += islice(self._dates, index := bisect_right(self._dates, wall), index + 1)
            slot = min(slots, default=None)
            if slot is None:
                return None
            if slot.date() in self._excluded_days:
                wall = slot.replace(hour=23, minute=59, second=59)
            elif slot in self._excluded:
                wall = slot
            else:
                return slot


class _Slots:
    """One rule with its start and zone. Immutable except for the table of years in `Days`."""

    def __init__(self, rule: Rule, begins: datetime, zone: str) -> None:
        self._frequency, self._interval, self._week_start = rule.frequency, rule.interval, rule.week_start
        self._positions = rule.positions
        self._is_by_calendar = rule.frequency < Frequency.DAILY
        self._days = Days(rule, begins)
        self._unit_s = _UNIT_S.get(rule.frequency, _DAY_S)
        self._units_a_day = _DAY_S // self._unit_s
        # Clock fields coarser than the period remove periods, finer ones add slots.
        split = max(0, rule.frequency - Frequency.DAILY)
        coarse = [rule.hours or range(24), rule.minutes or range(60), rule.seconds or range(60)][:split]
        fine = [rule.hours or (begins.hour,), rule.minutes or (begins.minute,), rule.seconds or (begins.second,)]
        self._units, self._offsets = _times(coarse), _times(fine[split:])
        if self._positions and not self._is_by_calendar:
            # All periods by the clock have the same slots, so they are selected once.
            self._offsets, self._positions = self._select([0]), ()
        self._begin = _seconds(begins)
        self._first = self._number(self._begin)
        never = not self._offsets or self._is_out_of_step()
        self._last = _NEVER if never else self._end(rule, zone)

    def slot_after(self, wall: datetime) -> datetime | None:
        start = max(_seconds(wall) + 1, self._begin)
        if start > self._last:
            return None
        slot = next(self._slots(start), None)
        return None if slot is None or slot > self._last else _wall_of(slot)

    def _slots(self, start: int) -> Iterator[int]:
        """All slots from a second on, without the end of the rule, over 50 years."""
        offsets = self._offsets
        for bases in self._periods(start):
            if self._positions:
                yield from (slot for slot in self._select(bases) if slot >= start)
                continue
            for base in bases if bases[0] >= start else bases[bisect_left(bases, start - offsets[-1]) :]:
                begin = 0 if base >= start else bisect_left(offsets, start - base)
                for index in range(begin, len(offsets)):
                    yield base + offsets[index]

    def _select(self, bases: list[int]) -> list[int]:
        """The slots of a period that BYSETPOS selects, in order; slots are counted, not listed."""
        length = len(bases) * len(self._offsets)
        indices = {n - 1 if n > 0 else length + n for n in self._positions if abs(n) <= length}
        whole_and_rest = (divmod(index, len(self._offsets)) for index in sorted(indices))
        return [bases[whole] + self._offsets[rest] for whole, rest in whole_and_rest]

    def _periods(self, start: int) -> Iterator[list[int]]:
        """The periods with slots, from the one around a second on; for each, the seconds its slots are counted from."""
        number, last = self._number(start), self._number(start + _SEARCH_S)
        return self._by_calendar(number, last) if self._is_by_calendar else self._by_clock(number, last)

    def _by_calendar(self, number: int, last: int) -> Iterator[list[int]]:
        """Years, months and weeks: their slots are counted from each matching day."""
        looks = open_looks()
        while (number := number + (self._first - number) % self._interval) <= last:
            if looks is not None:
                looks.spend_periods(1)
            begin, end = self._window(number)
            day = self._days.first_from(begin)
            if day is None:
                return
            if day > end:
                number = self._number(day * _DAY_S)
            else:
                yield [day * _DAY_S for day in self._days.between(begin, end)]
                number += 1

    def _by_clock(self, number: int, last: int) -> Iterator[list[int]]:
        """Days and less: their slots are counted from the start of the period."""
        units, a_day, taken, looks = self._units, self._units_a_day, None, open_looks()
        while (number := number + (self._first - number) % self._interval) <= last:
            if looks is not None:
                looks.spend_periods(1)
            day, unit = divmod(number, a_day)
            if day != taken:
                taken = self._days.first_from(day)
                if taken is None:
                    return
                if taken > day:
                    number = taken * a_day
                    continue
            index = bisect_left(units, unit)
            allowed = units[index] if index < len(units) else a_day
            if allowed > unit:
                number += allowed - unit
            else:
                yield [number * self._unit_s]
                number += 1

    def _number(self, second: int) -> int:
        """The number of the period around a second."""
        match self._frequency:
            case Frequency.YEARLY:
                return date.fromordinal(second // _DAY_S).year
            case Frequency.MONTHLY:
                day = date.fromordinal(second // _DAY_S)
                return day.year * 12 + day.month - 1
            case Frequency.WEEKLY:
                return (second // _DAY_S - 1 - self._week_start) // 7
            case _:
                return second // self._unit_s

    def _window(self, number: int) -> tuple[int, int]:
        """The first and the last day of a period."""
        match self._frequency:
            case Frequency.YEARLY:
                return date(number, 1, 1).toordinal(), date(number, 12, 31).toordinal()
            case Frequency.MONTHLY:
                year, month = number // 12, number % 12 + 1
                return (first := date(year, month, 1).toordinal()), first + monthrange(year, month)[1] - 1
            case Frequency.WEEKLY:
                first = number * 7 + 1 + self._week_start
                return (max(first, self._begin // _DAY_S) if self._positions else first), first + 6
            case _:
                raise AssertionError("a period by the clock is within one day")

    def _is_out_of_step(self) -> bool:
        """Whether INTERVAL steps over every allowed time of day on every day: a search would take years of looking."""
        step = gcd(self._interval, self._units_a_day)
        return step > 1 and not any((self._units[i] - self._first) % step == 0 for i in range(len(self._units)))

    def _end(self, rule: Rule, zone: str) -> int:
        if rule.until is not None:
            if rule.until.is_date:
                return _seconds(rule.until.time + _DAY - SECOND)
            return _seconds(_wall(rule.until, zone))
        if rule.count is not None:
            return self._last_of(rule.count)
        return _seconds(NEVER_AFTER)

    def _last_of(self, count: int) -> int:
        slot, left = self._begin - 1, count
        while slot < self._begin + _SEARCH_S and (slots := list(islice(self._slots(slot + 1), left))):
            slot, left = slots[-1], left - len(slots)
            if not left:
                return slot
        return _seconds(NEVER_AFTER) if left < count else _NEVER


class _Dial:
    """The times of day from lists of hours, minutes and seconds, in order, computed when accessed."""

    def __init__(self, fields: Sequence[Sequence[int]]) -> None:
        self._fields = tuple(reversed(fields))
        self._length = prod(map(len, fields))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        time, scale = 0, 1
        for field in self._fields:
            index, rest = divmod(index, len(field))
            time, scale = time + field[rest] * scale, scale * 60
        return time


def _times(fields: Sequence[Sequence[int]]) -> Sequence[int] | _Dial:
    """The times of clock fields, in units of the last field; one time, 0, if there are no fields."""
    if all(isinstance(field, range) for field in fields):
        return range(prod(map(len, fields)))
    dial = _Dial(fields)
    return tuple(dial[index] for index in range(len(dial))) if len(dial) <= _LISTED else dial


def _wall(moment: Moment, zone: str) -> datetime:
    return moment.time + span_at(zone, moment.time).offset if moment.is_utc else moment.time


def _seconds(wall: datetime) -> int:
    return ((wall.toordinal() * 24 + wall.hour) * 60 + wall.minute) * 60 + wall.second


def _wall_of(seconds: int) -> datetime:
    return _DAY_ONE + timedelta(days=seconds // _DAY_S - 1, seconds=seconds % _DAY_S)
