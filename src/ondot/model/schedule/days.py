"""The days of a month that match the two day fields of a cron expression (S2).

As in Vixie cron: if both fields are restricted, a day matches when either does; a field that starts with `*` is not
restricted, and then both must match. The result depends only on the shape of the month (its first weekday and its
length: 28 shapes), so each shape is computed once, and expressions with the same two fields share the results.
"""

import re
from calendar import monthrange
from datetime import date
from functools import lru_cache
from typing import Final

from cronsim import CronSim

from ondot.model.schedule.dst import NEVER_BEFORE

_NEAREST: Final = re.compile(r"(\d{1,2})W")


class Days:
    """Immutable except for the table of shapes, which fills itself with the same values in any order."""

    def __init__(self, day_field: str, weekday_field: str) -> None:
        plain = plain_days(day_field)
        self._nearest = nearest_weekdays(day_field)
        self._is_listed = bool(plain)
        self._both_must_match = day_field.startswith("*") or weekday_field.startswith("*")
        self._days = CronSim(f"* * * {plain or '*'} * *", NEVER_BEFORE)
        self._weekdays = CronSim(f"* * * * * {weekday_field}", NEVER_BEFORE)
        self._by_shape: dict[tuple[int, int], tuple[int, ...]] = {}

    def in_month(self, year: int, month: int) -> tuple[int, ...]:
        shape = _shape(year, month)
        days = self._by_shape.get(shape)
        if days is None:
            days = tuple(day for day in range(1, shape[1] + 1) if self._matches(date(year, month, day), shape))
            self._by_shape[shape] = days
        return days

    def _matches(self, day: date, shape: tuple[int, int]) -> bool:
        by_day = (self._is_listed and self._days.match_dom(day)) or day.day in {
            _nearest_weekday(wanted, shape) for wanted in self._nearest if wanted <= shape[1]
        }
        by_weekday = self._weekdays.match_dow(day)
        return (by_day and by_weekday) if self._both_must_match else (by_day or by_weekday)


_shape: Final = lru_cache(maxsize=4096)(monthrange)


@lru_cache(maxsize=2048)
def days_of(day_field: str, weekday_field: str) -> Days:
    """The days of two valid fields."""
    return Days(day_field, weekday_field)


def nearest_weekdays(field: str) -> tuple[int, ...]:
    """The days of the `15W` terms."""
    return tuple(int(match[1]) for term in field.split(",") if (match := _NEAREST.fullmatch(term)))


def plain_days(field: str) -> str:
    """The other terms, which cronsim parses."""
    return ",".join(term for term in field.split(",") if not _NEAREST.fullmatch(term))


def _nearest_weekday(day: int, shape: tuple[int, int]) -> int:
    """The weekday nearest to a day without leaving the month: Saturday goes back one, Sunday forward one."""
    first_weekday, length = shape
    weekday = (first_weekday + day - 1) % 7
    if weekday == 5:
        return day - 1 if day > 1 else 3
    if weekday == 6:
        return day + 1 if day < length else day - 2
    return day
