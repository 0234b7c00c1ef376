"""The fires of a schedule in a range, listed fast, for a forecast of many schedules (S13).

Seconds since 1970, because a forecast adds them up and needs nothing of a date. A plain cron expression is listed by
matching days and times of day wherever its zone has one offset, which is many times faster than asking for one fire
after another; around a change of the offset, and for every other kind of rule, `next_fire` decides. The two agree in
every case, by test.
"""

from calendar import timegm
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Final

from ondot.model.schedule import interval
from ondot.model.schedule.cron import Cron, parsed_of
from ondot.model.schedule.dst import NEVER_AFTER, aware, naive, spans_between
from ondot.model.schedule.expression import Expression, Times, expression
from ondot.model.schedule.interval import Interval
from ondot.model.schedule.rule import GivenUp, Schedule, is_quick, next_fire

_AROUND: Final = timedelta(days=1)
"""Longer than any gap or fold."""
_DAY_S: Final = 86_400
_EPOCH: Final = date(1970, 1, 1)
_FEW: Final = 1_440
"""Times of a day that are kept in memory: one for each minute. There are few expressions with more."""
_MICROSECOND: Final = timedelta(microseconds=1)


def list_fires(schedule: Schedule, after: datetime, until: datetime, at_most: int) -> tuple[list[int], bool]:
    """The fires in (after, until], at most so many, and whether these are all. Aware UTC in.

    A search that is given up ends the list, too.
    """
    if schedule.start_at is not None:
        after = max(after, schedule.start_at - _MICROSECOND)
    if schedule.end_at is not None:
        until = min(until, schedule.end_at)
    fires: list[int] = []
    is_complete = True
    try:
        fires.extend(islice(_seconds(schedule, after, until), at_most + 1))
    except GivenUp:  # those before it are in the list
        is_complete = False
    return fires[:at_most], is_complete and len(fires) <= at_most


def _seconds(schedule: Schedule, after: datetime, until: datetime) -> Iterator[int]:
    rule = schedule.when
    if isinstance(rule, Interval) and is_quick(schedule) and rule.every_s == int(rule.every_s):
        yield from _of_interval(rule, after, until)
        return
    if not isinstance(rule, Cron) or not is_quick(schedule) or naive(until) >= NEVER_AFTER:
        yield from _one_by_one(schedule, after, until)
        return
    at = naive(after)
    until_at = naive(until)
    parsed = parsed_of(rule)
    if rule.timezone == "UTC":
        yield from _of_days(parsed, at, until_at, timedelta(0))
        return
    for span in spans_between(rule.timezone, at, until_at + _MICROSECOND):
        # From where the change before this span has no effect, to where the change after it has none yet.
        even_from = max(at, min(span.begin_at + _AROUND, until_at))
        even_until = min(until_at, max(span.end_at - _AROUND, even_from))
        if at < even_from:
            yield from _one_by_one(schedule, aware(at), aware(even_from))
        yield from _of_days(parsed, even_from, even_until, span.offset)
        at = min(until_at, span.end_at - _MICROSECOND)
        if even_until < at:
            yield from _one_by_one(schedule, aware(even_until), aware(at))


def _of_interval(rule: Interval, after: datetime, until: datetime) -> Iterator[int]:
    first_at = interval.next_after(rule, after)
    if first_at is not None and first_at <= until:
        yield from range(int(first_at.timestamp()), int(until.timestamp()) + 1, int(rule.every_s))


def _one_by_one(schedule: Schedule, after: datetime, until: datetime) -> Iterator[int]:
    fire_at = next_fire(schedule, after)
    while fire_at is not None and fire_at <= until:
        yield int(fire_at.timestamp())
        fire_at = next_fire(schedule, fire_at)


def _of_days(parsed: Expression, after: datetime, until: datetime, offset: timedelta) -> Iterator[int]:
    """Slots in (after, until], both UTC, where the zone has one offset throughout."""
    if after >= until:
        return
    times = times_of_day(parsed.times)
    # Seconds are whole: a slot is after `after` if it is later than its whole second.
    after_s, until_s, offset_s = timegm(after.timetuple()), timegm(until.timetuple()), int(offset.total_seconds())
    for midnight_s in _days(parsed.days, (after_s + offset_s) // _DAY_S, (until_s + offset_s) // _DAY_S):
        day_s = midnight_s - offset_s
        if after_s < day_s + times[0] and day_s + times[-1] <= until_s:
            for time_s in times:
                yield day_s + time_s
        else:
            for time_s in times:
                if after_s < day_s + time_s <= until_s:
                    yield day_s + time_s


@lru_cache(maxsize=256)
def _days(days: str, first: int, last: int) -> tuple[int, ...]:
    """The first seconds of matching dates, both given as days since 1970."""
    fires_on = expression(f"0 0 0 {days}").fires_on
    return tuple(day * _DAY_S for day in range(first, last + 1) if fires_on(_EPOCH + timedelta(days=day)))


def times_of_day(times: Times) -> tuple[int, ...]:
    """Every slot of a matching day, in seconds from its midnight, ascending."""
    count = len(times.hours) * len(times.minutes) * len(times.seconds)
    return _few_times(times) if count <= _FEW else _list_times(times)


def _list_times(times: Times) -> tuple[int, ...]:
    return tuple(
        3600 * hour + 60 * minute + second
        for hour in sorted(times.hours)
        for minute in sorted(times.minutes)
        for second in sorted(times.seconds)
    )


_few_times: Final = lru_cache(maxsize=4096)(_list_times)
