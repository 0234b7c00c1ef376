"""The days that match a recurrence rule (S10).

Each part that names days (BYMONTH, BYWEEKNO, BYYEARDAY, BYMONTHDAY, BYDAY) is a set of days of one year; a matching day
is in all of them. A year's days follow from its shape: the weekday on which it starts, and whether it or a neighbour,
whose weeks may reach into it, is a leap year. There are 28 shapes, so a rule computes at most 28 lists of days for all
years, and a question is answered by a lookup.

Days are proleptic ordinals, as `date.toordinal` counts them: day 1 is a Monday.
"""

from bisect import bisect_left, bisect_right
from calendar import isleap
from collections.abc import Iterator
from datetime import date, datetime

from ondot.model.schedule.dst import NEVER_AFTER, SEARCH_YEARS
from ondot.model.schedule.rrule_text import Frequency, Nth, Rule


class Days:
    """Immutable except for its tables, which fill themselves with the same values in any order."""

    def __init__(self, rule: Rule, begins: datetime) -> None:
        self._weeks, self._week_start, self._year_days = rule.weeks, rule.week_start, rule.year_days
        self._months, self._month_days, self._weekdays = rule.months, rule.month_days, rule.weekdays
        if not (rule.weeks or rule.year_days or rule.month_days or rule.weekdays):
            # A rule without days uses those of DTSTART: yearly its date, monthly its day, weekly its weekday.
            if rule.frequency == Frequency.YEARLY:
                self._months = rule.months or (begins.month,)
            if rule.frequency <= Frequency.MONTHLY:
                self._month_days = (begins.day,)
            if rule.frequency == Frequency.WEEKLY:
                self._weekdays = (Nth(0, begins.weekday()),)
        self._counts_in_year = rule.frequency == Frequency.YEARLY and not rule.months
        self._by_shape: dict[tuple[int, bool, bool, bool], tuple[int, ...]] = {}
        self._by_year: dict[int, tuple[int, tuple[int, ...]]] = {}

    def first_from(self, day: int) -> int | None:
        """The first matching day from a day on, or None if there is none in 50 years."""
        year = date.fromordinal(day).year
        new_year, distances = self._in(year)
        index = bisect_left(distances, day - new_year)
        if index < len(distances):
            return new_year + distances[index]
        for following in range(year + 1, min(year + SEARCH_YEARS, NEVER_AFTER.year) + 1):
            new_year, distances = self._in(following)
            if distances:
                return new_year + distances[0]
        return None

    def between(self, first: int, last: int) -> list[int]:
        """The matching days from one to another, both included."""
        days: list[int] = []
        for year in range(date.fromordinal(first).year, date.fromordinal(last).year + 1):
            new_year, distances = self._in(year)
            begin, end = bisect_left(distances, first - new_year), bisect_right(distances, last - new_year)
            days += [new_year + distance for distance in distances[begin:end]]
        return days

    def _in(self, year: int) -> tuple[int, tuple[int, ...]]:
        """New Year's Day, and the distance of each matching day of the year from it."""
        known = self._by_year.get(year)
        if known is None:
            new_year = date(year, 1, 1).toordinal()
            shape = (new_year % 7, isleap(year - 1), isleap(year), isleap(year + 1))
            if shape not in self._by_shape:
                self._by_shape[shape] = tuple(day - new_year for day in sorted(self._matching(year)))
            known = self._by_year[year] = (new_year, self._by_shape[shape])
        return known

    def _matching(self, year: int) -> set[int]:
        firsts = [date(year, month, 1).toordinal() for month in range(1, 13)]
        new_year, end = firsts[0], date(year, 12, 31).toordinal() + 1
        whole = range(new_year, end)
        months = [range(first, after) for first, after in zip(firsts, [*firsts[1:], end], strict=True)]
        days = set(whole)
        if self._months:
            days &= {day for month in self._months for day in months[month - 1]}
        if self._weeks:
            days &= {day for around in (year - 1, year, year + 1) for day in self._in_weeks(around)}
        if self._year_days:
            days &= {day for n in self._year_days for day in _nth(n, whole)}
        if self._month_days:
            days &= {day for n in self._month_days for month in months for day in _nth(n, month)}
        if self._weekdays:
            spans = [whole] if self._counts_in_year else months
            days &= {
                day for n, weekday in self._weekdays for span in spans for day in _nth(n, _weekdays(weekday, span))
            }
        return days

    def _in_weeks(self, year: int) -> Iterator[int]:
        begins = range(self._week_one(year), self._week_one(year + 1), 7)
        return (day for n in self._weeks for begin in _nth(n, begins) for day in range(begin, begin + 7))

    def _week_one(self, year: int) -> int:
        """The first day of the first week with four days in the year: the week of 4 January."""
        fourth = date(year, 1, 4).toordinal()
        return fourth - (fourth - 1 - self._week_start) % 7


def _weekdays(weekday: int, days: range) -> range:
    return range(days.start + (weekday + 1 - days.start) % 7, days.stop, 7)


def _nth(n: int, days: range) -> range:
    """The nth of some days, from their end if n is negative; empty if there are fewer, all for 0."""
    if n == 0:
        return days
    return days[n - 1 : n] if n > 0 else days[n : n + 1 or None]
