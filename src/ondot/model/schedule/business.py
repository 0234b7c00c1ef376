"""Slots on days off go to the next or the previous business day, at the same time of day (S10).

Here are slots of wall time in, and slots of wall time out: what a change of the clocks does to a moved slot is decided
after the move, by `dst`. Moved slots are not in the order of their sources (Friday 17:00 stays, Saturday 09:00 goes to
Friday 09:00), so the search goes by target: the slots of a business day are those of the day itself and of the run of
days off beside it, told by their time of day, each time once. After a day's last slot it goes to the target of the
first slot beyond these sources, over years without any if need be.
"""

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from typing import Final, Literal

from ondot.model.schedule.dst import NEVER_AFTER, NEVER_BEFORE, SlotAfter

IsOff = Callable[[date], bool]

_DAY: Final = timedelta(days=1)
_MICROSECOND: Final = timedelta(microseconds=1)


def moved(slot_after: SlotAfter, is_off: IsOff, moves: Literal["next", "previous"]) -> SlotAfter:
    """The same slots, those on days off moved."""

    def moved_slot_after(wall: datetime) -> datetime | None:
        wall = max(wall, NEVER_BEFORE)
        target: date | None = _business_day(wall.date(), is_off, _DAY)
        after = wall.time() if target == wall.date() else None
        while target is not None and target.year < NEVER_AFTER.year:
            first, last = _sources(target, is_off, moves)
            earliest = _earliest(slot_after, first, last, after)
            if earliest is not None:
                return datetime.combine(target, earliest)
            beyond = slot_after(datetime.combine(last + _DAY, time.min) - _MICROSECOND)
            target = None if beyond is None else _target(beyond.date(), is_off, moves)
            after = None
        return None

    return moved_slot_after


def _sources(target: date, is_off: IsOff, moves: Literal["next", "previous"]) -> tuple[date, date]:
    """The first and the last day whose slots a business day has."""
    if moves == "next":
        return _business_day(target - _DAY, is_off, -_DAY) + _DAY, target
    return target, _business_day(target + _DAY, is_off, _DAY) - _DAY


def _target(day: date, is_off: IsOff, moves: Literal["next", "previous"]) -> date:
    return _business_day(day, is_off, _DAY if moves == "next" else -_DAY)


def _business_day(day: date, is_off: IsOff, step: timedelta) -> date:
    """The first one from a day on; the days off of a calendar are finitely many in a row."""
    while NEVER_BEFORE.year <= day.year < NEVER_AFTER.year and is_off(day):
        day += step
    return day


def _earliest(slot_after: SlotAfter, first: date, last: date, after: time | None) -> time | None:
    """The earliest time of day, later than one if it is given, that a slot of these days has."""
    earliest: time | None = None
    day = first
    while day <= last:
        from_wall = datetime.combine(day, time.min) - _MICROSECOND if after is None else datetime.combine(day, after)
        slot = slot_after(from_wall)
        if slot is None:
            break
        if slot.date() == day:
            earliest = slot.time() if earliest is None else min(earliest, slot.time())
            day += _DAY
        else:
            day = slot.date()  # the days between have none that is late enough
    return earliest
