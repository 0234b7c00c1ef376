"""Is a schedule one that can be kept? (S2, S4, S8, S10)

Every fault is found in one go, and its message says what to do. Pointers are those of the schedule's long
form on the wire ("/cron", "/every"), where people wrote it, and not of the stored struct. Whether an
instant lies in the past is not asked here: that needs a clock. A calendar is tried from the schedule's
start on; without one from `after`, which callers that know the time give, or from its first black-out.
"""

from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Final, assert_never

from msgspec import structs

from ondot.model import misfire
from ondot.model.errors import Fault, InvalidSchedule
from ondot.model.schedule import calendar
from ondot.model.schedule.calendar import Calendar, Reason, exclusion_at
from ondot.model.schedule.cron import Cron
from ondot.model.schedule.dst import NEVER_AFTER, zone_info
from ondot.model.schedule.expression import expression
from ondot.model.schedule.interval import LARGEST_S, SMALLEST_S, Interval
from ondot.model.schedule.once import Once
from ondot.model.schedule.rule import Schedule, When, next_fire

LONGEST_JITTER_S: Final = 86_400

# Where the search for a first fire begins if the schedule itself names no start.
_SOME_INSTANT: Final = datetime(2020, 1, 1, tzinfo=UTC)
_EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

# A calendar may leave out this much of a schedule, from the first fire it would have, and no more.
_LEFT_OUT_AT_MOST: Final = timedelta(days=5 * 366)


def check(schedule: Schedule, after: datetime | None = None) -> None:
    """Raises InvalidSchedule, with all that is wrong."""
    faults = [*_of_when(schedule.when), *_of_bounds(schedule), *misfire.faults(schedule.misfire)]
    if schedule.calendar is not None:
        faults.extend(calendar.faults(schedule.calendar))
    if not faults:
        faults = _of_first_fire(structs.replace(schedule, calendar=None))
    if not faults and schedule.calendar is not None:
        faults = _of_what_is_left(schedule, schedule.calendar, after)
    if faults:
        raise InvalidSchedule(" ".join(fault.message for fault in faults), faults=tuple(faults))


def _of_when(when: When) -> list[Fault]:
    match when:
        case Cron():
            return _of_cron(when)
        case Interval():
            return _of_interval(when)
        case Once():
            return _of_instant("/at", when.at)
    assert_never(when)


def _of_cron(cron: Cron) -> list[Fault]:
    faults: list[Fault] = []
    for read, text in ((expression, cron.expression), (zone_info, cron.timezone)):
        try:
            read(text)
        except InvalidSchedule as refusal:
            faults.extend(refusal.faults)
    return faults


def _of_interval(interval: Interval) -> list[Fault]:
    faults = []
    if not isfinite(interval.every_s) or interval.every_s > LARGEST_S:
        faults.append(Fault("/every", 'The longest interval is 10 years; take a shorter one, for example "15m".'))
    elif interval.every_s < SMALLEST_S:
        faults.append(Fault("/every", 'The shortest interval is 1 second; take a longer one, for example "15m".'))
    return [*faults, *_of_instant("/anchor_at", interval.anchor_at)]


def _of_bounds(schedule: Schedule) -> list[Fault]:
    faults = []
    for pointer, instant in (("/start_at", schedule.start_at), ("/end_at", schedule.end_at)):
        if instant is not None:
            faults.extend(_of_instant(pointer, instant))
    if schedule.max_fires is not None and schedule.max_fires < 1:
        faults.append(Fault("/max_fires", "Give at least 1, or leave max_fires out for no limit."))
    if not 0 <= schedule.jitter_s <= LONGEST_JITTER_S:
        faults.append(Fault("/jitter", 'Give a jitter between 0 and one day, for example "30s".'))
    return faults


def _of_first_fire(schedule: Schedule) -> list[Fault]:
    start_at, end_at, when = schedule.start_at, schedule.end_at, schedule.when
    if start_at is not None and end_at is not None and end_at < start_at:
        return [Fault("/end_at", f"It ends before it starts; give an end_at after {_utc(start_at)}.")]
    if isinstance(when, Once):
        outside = (start_at is not None and when.at < start_at) or (end_at is not None and when.at > end_at)
        return [Fault("/at", "The instant lies outside start_at and end_at; leave these out.")] if outside else []
    if isinstance(when, Cron) and next_fire(Schedule(when=when), start_at or _SOME_INSTANT) is None:
        message = "It never fires: the clocks leave out each of its times. Take another time, or dst.gap shift."
        return [Fault("/cron", message)]
    begins_at = when.anchor_at if isinstance(when, Interval) else start_at
    if begins_at is not None and end_at is not None and next_fire(schedule, begins_at - _MICROSECOND) is None:
        return [Fault("/end_at", f"It has no fire before {_utc(end_at)}; give a later end_at.")]
    return []


def _of_what_is_left(schedule: Schedule, excluding: Calendar, after: datetime | None) -> list[Fault]:
    when = schedule.when
    if isinstance(when, Once):
        exclusion = exclusion_at(excluding, "UTC", when.at.astimezone(UTC))
        return [] if exclusion is None else [Fault("/at", _why_not_once(exclusion.reason, excluding, when.at))]
    some_instant = min((window.from_at for window in excluding.blackouts), default=_SOME_INSTANT)
    begins_at = (schedule.start_at or after or some_instant).astimezone(UTC) - _MICROSECOND
    first_at = next_fire(structs.replace(schedule, calendar=None), begins_at)
    if first_at is None or first_at.year >= NEVER_AFTER.year - 5:
        return []  # it ended before; that is no fault of the calendar
    last_at = first_at + _LEFT_OUT_AT_MOST
    end_at = last_at if schedule.end_at is None else min(last_at, schedule.end_at)
    if next_fire(structs.replace(schedule, end_at=end_at), begins_at) is not None:
        return []
    message = f"The calendar leaves out each fire from {_utc(first_at)} to {_utc(end_at)}; exclude less."
    return [Fault("/calendar", message)]


def _why_not_once(reason: Reason, excluding: Calendar, at: datetime) -> str:
    day = f"{at.astimezone(UTC):%Y-%m-%d}"
    match reason:
        case "holiday":
            why = f"{day} (UTC) is a holiday of {excluding.exclude_holidays}"
        case "date":
            why = f"{day} (UTC) is one of exclude_dates"
        case "weekend":
            why = f"{day} (UTC) is no business day"
        case "blackout":
            why = f"{_utc(at)} lies in a black-out"
    return f"The calendar leaves out its only fire: {why}. Give another instant, or leave the calendar out."


def _of_instant(pointer: str, instant: datetime) -> list[Fault]:
    if instant.utcoffset() is None:
        advice = 'The instant needs its offset from UTC, for example "2026-11-15T12:00:00Z".'
        return [Fault(pointer, advice)]
    try:
        in_range = instant.astimezone(UTC) >= _EARLIEST
    except OverflowError:
        in_range = False
    return [] if in_range else [Fault(pointer, "Give an instant from the year 1970 to the year 9999.")]


def _utc(instant: datetime) -> str:
    return f"{instant.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
