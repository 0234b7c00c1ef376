"""Whether a schedule is valid (S2, S4, S8, S10, S12).

All errors are found at once, and each message states what to do. Pointers are those of the schedule's long form
("/cron", "/include/0/every"), as people write it, not of the stored struct. Whether an instant is in the past is not
checked here: that needs a clock. The check that calendar and exclude rules leave a fire starts at the schedule's start,
or at `after` if that is later; without either, at its first blackout. Callers that know the time pass `after`.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from math import isfinite
from typing import Final, assert_never

from msgspec import structs

from ondot.model import misfire
from ondot.model.errors import Fault, InvalidSchedule
from ondot.model.schedule import calendar
from ondot.model.schedule.calendar import Calendar, Reason, exclusion_at
from ondot.model.schedule.cron import Cron
from ondot.model.schedule.dst import NEVER_AFTER, zone_info
from ondot.model.schedule.event import OnEvent
from ondot.model.schedule.expression import expression
from ondot.model.schedule.interval import LARGEST_S, SMALLEST_S, Interval
from ondot.model.schedule.looks import TooCostly, allowed
from ondot.model.schedule.once import Once
from ondot.model.schedule.rrule import Rrule, read, require_slot
from ondot.model.schedule.rrule_text import LARGEST_COUNT
from ondot.model.schedule.rule import Schedule, given_up, is_quick, next_fire, rules_of
from ondot.model.schedule.spread import is_spread, resolve_by
from ondot.model.schedule.when import When

LONGEST_JITTER_S: Final = 86_400
MOST_RULES: Final = 100  # of include, and of exclude: each is evaluated for every fire
LOOKS_TO_CHECK: Final = 10_000
"""The most that the check and the next fires may cost: 40 ms. Planning pays it again for each fire."""
FIRES_TRIED: Final = 10

_ALL_IN_GAPS: Final = "It never fires: all its times are in skipped hours. Use another time, or set dst.gap to shift."

# Where the search for a first fire starts if the schedule has no start.
_SOME_INSTANT: Final = datetime(2020, 1, 1, tzinfo=UTC)
_EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

# The longest time, from the first fire it would have, in which calendar and exclude rules may exclude every fire.
_LEFT_OUT_AT_MOST: Final = timedelta(days=5 * 366)


def check(schedule: Schedule, after: datetime | None = None) -> None:
    """Raises InvalidSchedule with all errors; also if the next fires after `after` take too long to compute."""
    fire_at = after
    try:
        with allowed(LOOKS_TO_CHECK, is_strict=True):
            _check(schedule, after)
            for _ in range(0 if is_quick(schedule) else FIRES_TRIED):
                fire_at = None if fire_at is None else next_fire(schedule, fire_at)
    except TooCostly:
        raise given_up(schedule, fire_at or _SOME_INSTANT) from None


def _check(schedule: Schedule, after: datetime | None) -> None:
    faults = [*_of_rules(schedule), *_of_bounds(schedule), *misfire.faults(schedule.misfire)]
    if schedule.calendar is not None:
        faults.extend(calendar.faults(schedule.calendar))
        faults.extend(_of_moves(schedule, schedule.calendar))
    if not faults:
        faults = _of_first_fire(structs.replace(schedule, calendar=None, exclude=()))
    if not faults:
        faults = _of_what_is_left(schedule, after)
    if faults:
        raise InvalidSchedule(" ".join(fault.message for fault in faults), faults=tuple(faults))


def _rules(schedule: Schedule) -> Iterator[tuple[str, When]]:
    """Each rule with the pointer to its object."""
    yield "", schedule.when
    for name, rules in (("include", schedule.include), ("exclude", schedule.exclude)):
        for index, rule in enumerate(rules):
            yield f"/{name}/{index}", rule


def _of_rules(schedule: Schedule) -> list[Fault]:
    faults = [
        Fault(f"/{name}", f"There are {len(rules)} rules; use at most {MOST_RULES}, or create several jobs.")
        for name, rules in (("include", schedule.include), ("exclude", schedule.exclude))
        if len(rules) > MOST_RULES
    ]
    counted = 0
    for pointer, rule in _rules(schedule):
        own = _of_when(rule)
        if not own and isinstance(rule, Rrule):
            counted += sum(part.count or 0 for part in read(rule.text).rules)
            if counted > LARGEST_COUNT:  # finding where a COUNT ends means walking through all of it
                message = f"The COUNTs of all rules may add up to {LARGEST_COUNT:,}; use UNTIL, or max_fires."
                own = [Fault("/rrule", message)]
        own = own or _of_fires(rule)
        faults.extend(Fault(pointer + fault.pointer, fault.message) for fault in own)
    return faults


def _of_when(when: When) -> list[Fault]:
    match when:
        case Cron():
            return [*_read(_expressions, when.expression), *_read(zone_info, when.timezone)]
        case Interval():
            return _of_interval(when)
        case Once():
            return [*_of_instant("/at", when.at), *_read(zone_info, when.timezone)]
        case Rrule():
            return [*_read(read, when.text), *_read(zone_info, when.timezone)]
        case OnEvent():
            return []
    assert_never(when)


def _read(read_text: Callable[[str], object], text: str) -> list[Fault]:
    try:
        read_text(text)
    except InvalidSchedule as refusal:
        return list(refusal.faults)
    return []


def _expressions(text: str) -> None:
    """Parse an expression; with H in its day fields, for every value that a job may get."""
    expression(text)
    if not is_spread(text) or not any(is_spread(field) for field in text.split()[-3:]):
        return
    for value in range(31):
        example = resolve_by(text, partial(_nearest, value))
        try:
            expression(example)
        except InvalidSchedule:
            message = (
                f'The cron expression "{text[:80]}" is not valid: some jobs would never fire, such as one that gets '
                f'"{example[:80]}". Spread over days that every month has, such as H(1-28).'
            )
            raise InvalidSchedule(message, faults=(Fault("/cron", message),), cron=text[:80]) from None


def _nearest(value: int, _field: int, _place: int, size: int) -> int:
    return min(value, size - 1)


def _of_fires(when: When) -> list[Fault]:
    """A rule that can be parsed but never fires."""
    match when:
        case Cron():
            if next_fire(Schedule(when=when), _SOME_INSTANT) is None:
                return [Fault("/cron", _ALL_IN_GAPS)]
        case Rrule():
            begins_at = when.begins.replace(tzinfo=UTC) - timedelta(days=2)  # before it starts, in any zone
            try:
                require_slot(when)
                if next_fire(Schedule(when=when), begins_at) is None:
                    return [Fault("/rrule", _ALL_IN_GAPS)]
            except InvalidSchedule as refusal:
                return list(refusal.faults)
        case Interval() | Once() | OnEvent():
            pass
        case _:
            assert_never(when)
    return []


def _of_moves(schedule: Schedule, moving: Calendar) -> list[Fault]:
    if moving.moves is None or not any(isinstance(rule, (Interval, Once)) for rule in rules_of(schedule)):
        return []
    message = (
        f"Only clock times can move to the {moving.moves} business day: use cron or rrule, "
        "or set business_days to true."
    )
    return [Fault("/calendar/business_days", message)]


def _of_interval(interval: Interval) -> list[Fault]:
    faults = []
    if not isfinite(interval.every_s) or interval.every_s > LARGEST_S:
        faults.append(Fault("/every", 'The longest interval is 10 years; use a shorter one, for example "15m".'))
    elif interval.every_s < SMALLEST_S:
        faults.append(Fault("/every", 'The shortest interval is 1 second; use a longer one, for example "15m".'))
    return [*faults, *_of_instant("/anchor_at", interval.anchor_at)]


def _of_bounds(schedule: Schedule) -> list[Fault]:
    faults = []
    for pointer, instant in (("/start_at", schedule.start_at), ("/end_at", schedule.end_at)):
        if instant is not None:
            faults.extend(_of_instant(pointer, instant))
    if schedule.max_fires is not None and schedule.max_fires < 1:
        faults.append(Fault("/max_fires", "Set at least 1, or leave max_fires out for no limit."))
    if not 0 <= schedule.jitter_s <= LONGEST_JITTER_S:
        faults.append(Fault("/jitter", 'Set a jitter between 0 and one day, for example "30s".'))
    faults.extend(_of_spread(schedule))
    return faults


def _of_spread(schedule: Schedule) -> list[Fault]:
    spread_s, offset_s = schedule.spread_s, schedule.offset_s
    if not 0 <= spread_s <= LONGEST_JITTER_S:
        return [Fault("/spread", 'Set a spread between 0 and one day, for example "10m".')]
    if offset_s is not None and not (0 <= offset_s <= spread_s and spread_s):
        return [Fault("/offset", "It is chosen within `spread`: leave it out, or set one from 0 to `spread`.")]
    if spread_s and schedule.jitter_s:
        return [Fault("/spread", "Use `spread` or `jitter`, not both: each delays the start.")]
    if spread_s and isinstance(schedule.when, Once):
        return [Fault("/spread", "It is for recurring schedules: use `cron`, `every` or `rrule`, or leave it out.")]
    return []


def _of_first_fire(schedule: Schedule) -> list[Fault]:
    start_at, end_at, when = schedule.start_at, schedule.end_at, schedule.when
    if start_at is not None and end_at is not None and end_at < start_at:
        return [Fault("/end_at", f"It ends before it starts; set end_at to after {_utc(start_at)}.")]
    if isinstance(when, Once):
        outside = (start_at is not None and when.at < start_at) or (end_at is not None and when.at > end_at)
        return [Fault("/at", "The instant is outside start_at and end_at; leave these out.")] if outside else []
    if isinstance(when, Rrule) and start_at is not None and next_fire(schedule, start_at - _MICROSECOND) is None:
        return [Fault("/rrule", "It ends before start_at; set a later UNTIL or DTSTART, or an earlier start_at.")]
    begins_at = when.anchor_at if isinstance(when, Interval) and not schedule.include else start_at
    if begins_at is not None and end_at is not None and next_fire(schedule, begins_at - _MICROSECOND) is None:
        return [Fault("/end_at", f"It has no fire before {_utc(end_at)}; set a later end_at.")]
    return []


def _of_what_is_left(schedule: Schedule, after: datetime | None) -> list[Fault]:
    when, excluding = schedule.when, schedule.calendar
    if isinstance(when, Once) and not schedule.include and excluding is not None:
        exclusion = exclusion_at(excluding, "UTC", when.at.astimezone(UTC))
        if exclusion is not None:
            return [Fault("/at", _why_not_once(exclusion.reason, excluding, when.at))]
    begins_at = _tried_from(schedule, after)
    unrestricted = structs.replace(schedule, calendar=None, exclude=())
    first_at = next_fire(unrestricted, begins_at)
    if first_at is None or first_at.year >= NEVER_AFTER.year - 5:
        return []  # it ended before; the calendar is not the cause
    last_at = first_at + _LEFT_OUT_AT_MOST
    end_at = last_at if schedule.end_at is None else min(last_at, schedule.end_at)
    span = f"each fire from {_utc(first_at)} to {_utc(end_at)}; exclude less."
    try:
        if next_fire(structs.replace(schedule, calendar=None, end_at=end_at), begins_at) is None:
            return [Fault("/exclude", f"The exclude rules exclude {span}")]
        if next_fire(structs.replace(schedule, end_at=end_at), begins_at) is None:
            return [Fault("/calendar", f"The calendar excludes {span}")]
    except InvalidSchedule as refusal:
        return list(refusal.faults)
    return []


def _tried_from(schedule: Schedule, after: datetime | None) -> datetime:
    windows = () if schedule.calendar is None else schedule.calendar.blackouts
    some_instant = min((window.from_at for window in windows), default=_SOME_INSTANT)
    given = [instant for instant in (schedule.start_at, after) if instant is not None]
    return max(given, default=some_instant).astimezone(UTC) - _MICROSECOND


def _why_not_once(reason: Reason, excluding: Calendar, at: datetime) -> str:
    day = f"{at.astimezone(UTC):%Y-%m-%d}"
    match reason:
        case "holiday":
            why = f"{day} (UTC) is a holiday of {excluding.exclude_holidays}"
        case "date":
            why = f"{day} (UTC) is one of exclude_dates"
        case "weekend":
            why = f"{day} (UTC) is not a business day"
        case "blackout":
            why = f"{_utc(at)} is in a blackout"
    return f"The calendar excludes its only fire: {why}. Use another instant, or leave the calendar out."


def _of_instant(pointer: str, instant: datetime) -> list[Fault]:
    if instant.utcoffset() is None:
        advice = 'The instant needs its offset from UTC, for example "2026-11-15T12:00:00Z".'
        return [Fault(pointer, advice)]
    try:
        in_range = instant.astimezone(UTC) >= _EARLIEST
    except OverflowError:
        in_range = False
    return [] if in_range else [Fault(pointer, "Use an instant from the year 1970 to the year 9999.")]


def _utc(instant: datetime) -> str:
    return f"{instant.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
