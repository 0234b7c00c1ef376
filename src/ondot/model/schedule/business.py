"""Slots on days off move to the next or the previous business day, at the same time of day (S10).

Slots of wall time come in and go out; `dst` decides afterwards how a clock change affects a moved slot. Moved slots are
not in the order of their sources (Friday 17:00 stays, Saturday 09:00 moves to Friday 09:00), so the search goes by
target: a business day has the slots of the day itself and of the days off next to it, each time of day once. After a
day's last slot the search continues at the target of the first slot beyond these sources, even if it is years away.
"""

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from typing import Final, Literal

from ondot.model.schedule.dst import NEVER_AFTER, NEVER_BEFORE, SlotAfter

IsOff = Callable[[date], bool]

_DAY: Final = timedelta(days=1)
_MICROSECOND: Final = timedelta(microseconds=1)


def move_slots(slot_after: SlotAfter, is_off: IsOff, moves: Literal["next", "previous"]) -> SlotAfter:
    """The same slots, with those on days off moved."""

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
    """The first and the last day whose slots a business day gets."""
    if moves == "next":
        return _business_day(target - _DAY, is_off, -_DAY) + _DAY, target
    return target, _business_day(target + _DAY, is_off, _DAY) - _DAY


def _target(day: date, is_off: IsOff, moves: Literal["next", "previous"]) -> date:
    return _business_day(day, is_off, _DAY if moves == "next" else -_DAY)


def _business_day(day: date, is_off: IsOff, step: timedelta) -> date:
    """The first business day from a day on. A calendar has only finitely many days off in a row."""
    while NEVER_BEFORE.year <= day.year < NEVER_AFTER.year and is_off(day):
        day += step
    return day


def _earliest(slot_after: SlotAfter, first: date, last: date, after: time | None) -> time | None:
    """The earliest time of day of a slot on these days, later than `after` if given."""
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
            day = slot.date()  # the days between have no slot late enough
    return earliest
