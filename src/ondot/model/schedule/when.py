"""The kinds of rule behind one set of functions (S1 to S3, S10).

`When` is the union of the rules; type checking names each place that must handle a new one. For any rule: the next
instant, and the zone whose dates it uses. For rules that list slots of wall time (cron, RRULE): the slots with their
zone and policy, so that moved business days and the preview can work on them.
"""

from datetime import datetime
from functools import lru_cache, partial
from typing import NamedTuple, assert_never

from ondot.model.schedule import cron, event, interval, once, rrule
from ondot.model.schedule.business import move_slots
from ondot.model.schedule.calendar import Calendar, is_off
from ondot.model.schedule.cron import Cron
from ondot.model.schedule.dst import NEVER_AFTER, Dst, SlotAfter, aware, naive, next_instant
from ondot.model.schedule.event import OnEvent
from ondot.model.schedule.interval import Interval
from ondot.model.schedule.once import Once
from ondot.model.schedule.rrule import Rrule

When = Once | Cron | Interval | Rrule | OnEvent


class Slots(NamedTuple):
    """The wall-clock slots of a rule, and how they become instants."""

    slot_after: SlotAfter
    zone: str
    dst: Dst


def next_after(when: When, after: datetime) -> datetime | None:
    """The first instant strictly after an aware UTC one."""
    match when:
        case Cron():
            return cron.next_after(when, after)
        case Interval():
            return interval.next_after(when, after)
        case Once():
            return once.next_after(when, after)
        case Rrule():
            return rrule.next_after(when, after)
        case OnEvent():
            return event.next_after(when, after)
    assert_never(when)


@lru_cache(maxsize=512)  # keyed by the calendar too, which may have 200 kB
def next_moved(when: When, calendar: Calendar, after: datetime) -> datetime | None:
    """The same, with slots on days off moved to a business day by the calendar."""
    slots = slots_of(when, calendar)
    after_at = naive(after)
    if slots is None or after_at >= NEVER_AFTER:
        return next_after(when, after)
    fire_at = next_instant(slots.slot_after, slots.zone, slots.dst, after_at)
    return None if fire_at is None else aware(fire_at)


def slots_of(when: When, calendar: Calendar | None = None) -> Slots | None:
    """The slots of a rule that has any, moved if the calendar moves them."""
    match when:
        case Cron():
            slots = Slots(cron.parsed_of(when).slot_after, when.timezone, cron.effective_dst(when))
        case Rrule():
            slots = Slots(rrule.expansion(when).slot_after, when.timezone, rrule.effective_dst(when))
        case Interval() | Once() | OnEvent():
            return None
        case _:
            assert_never(when)
    if calendar is None or calendar.moves is None:
        return slots
    return slots._replace(slot_after=move_slots(slots.slot_after, partial(is_off, calendar), calendar.moves))


def zone_of(when: When) -> str:
    """The zone whose dates the calendar refers to."""
    return when.timezone if isinstance(when, (Cron, Rrule)) else "UTC"
