"""The schedule of a job as data, and its next fire (S1 to S4, S8, S10).

A `Schedule` is one rule that says when, within `start_at` and `end_at`, both included, without what its
calendar leaves out. It is stored as JSON and decoded where fires are planned, so it is a struct and not a
class with behaviour; fields of a newer release are passed over, so that nodes of two releases can share a
database. New kinds of rule join the union `When`, and type checking then names each place that must know them.

`next_fire` is the nominal instant, the `fire_at` that makes an execution unique. Jitter delays the start
and not the fire; `max_fires` and misfires need memory of the past, which is the flow's.
"""

from datetime import UTC, datetime, timedelta
from typing import Final, assert_never

from msgspec import Struct

from ondot.model.misfire import Misfire
from ondot.model.schedule import cron, interval, once
from ondot.model.schedule.calendar import Calendar, exclusion_at
from ondot.model.schedule.cron import Cron
from ondot.model.schedule.dst import NEVER_AFTER, SEARCH_YEARS
from ondot.model.schedule.interval import Interval
from ondot.model.schedule.once import Once

When = Once | Cron | Interval

_MICROSECOND: Final = timedelta(microseconds=1)


class Schedule(Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True):
    when: When
    jitter_s: float = 0.0
    start_at: datetime | None = None
    end_at: datetime | None = None
    max_fires: int | None = None
    misfire: Misfire = Misfire()
    calendar: Calendar | None = None


def next_fire(schedule: Schedule, after: datetime) -> datetime | None:
    """The first fire strictly after `after`, within `start_at` and `end_at` and not left out; aware UTC in and out."""
    if after.tzinfo is not UTC:
        if after.tzinfo is None:
            raise ValueError("next_fire needs an aware instant; give `after` a time zone")
        after = after.astimezone(UTC)
    if schedule.start_at is not None and schedule.start_at > after:
        after = schedule.start_at.astimezone(UTC) - _MICROSECOND
    fire_at = _next_after(schedule.when, after)
    if schedule.calendar is not None and fire_at is not None:
        fire_at = _first_kept(schedule, schedule.calendar, fire_at)
    if fire_at is not None and schedule.end_at is not None and fire_at > schedule.end_at:
        return None
    return fire_at


def zone_of(when: When) -> str:
    """The zone whose dates a calendar means."""
    return when.timezone if isinstance(when, Cron) else "UTC"


def _first_kept(schedule: Schedule, calendar: Calendar, first_at: datetime) -> datetime | None:
    """The first fire from `first_at` on that the calendar keeps, or any later than `end_at`."""
    zone = zone_of(schedule.when)
    last_year = min(first_at.year + SEARCH_YEARS, NEVER_AFTER.year - 1)
    fire_at: datetime | None = first_at
    while fire_at is not None and (schedule.end_at is None or fire_at <= schedule.end_at):
        if fire_at.year > last_year:
            return None
        exclusion = exclusion_at(calendar, zone, fire_at)
        if exclusion is None:
            return fire_at
        fire_at = _next_after(schedule.when, exclusion.until_at - _MICROSECOND)
    return fire_at


def _next_after(when: When, after: datetime) -> datetime | None:
    match when:
        case Cron():
            return cron.next_after(when, after)
        case Interval():
            return interval.next_after(when, after)
        case Once():
            return once.next_after(when, after)
    assert_never(when)
