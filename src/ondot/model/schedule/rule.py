"""The schedule of a job as data, and its next fire (S1 to S4, S8, S10, S12).

A `Schedule` is a rule that says when, with the fires of its `include` rules, without those at which one of its
`exclude` rules fires, within `start_at` and `end_at`, both included, without what its calendar leaves out. It is stored
as JSON and decoded where fires are planned, so it is a struct and not a class with behaviour; fields of a newer release
are passed over, so that nodes of two releases can share a database.

`next_fire` is the nominal instant, the `fire_at` that makes an execution unique. Jitter delays the start
and not the fire; `max_fires` and misfires need memory of the past, which is the flow's.
"""

from datetime import UTC, datetime
from typing import Final, NoReturn
from uuid import UUID

from msgspec import Struct, structs

from ondot.model.errors import Fault, InvalidSchedule
from ondot.model.misfire import Misfire
from ondot.model.schedule.calendar import Calendar, exclusion_at
from ondot.model.schedule.cron import Cron
from ondot.model.schedule.dst import NEVER_AFTER, SEARCH_YEARS
from ondot.model.schedule.exclude import MICROSECOND, excluded_until
from ondot.model.schedule.spread import is_spread, spread_of
from ondot.model.schedule.when import When, next_after, next_moved, zone_of

# A search that leaves out fires one by one is given up after so many looks at a rule: rules that take away each other's
# every fire are a mistake, and a walk of this length takes about half a second.
LONGEST_WALK: Final = 50_000


class GivenUp(InvalidSchedule):
    """The search for the next fire: the exclude rules leave out all of a long walk, up to `reached_at`."""

    def __init__(self, message: str, faults: tuple[Fault, ...], reached_at: datetime) -> None:
        super().__init__(message, faults)
        self.reached_at = reached_at


class Schedule(Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True):
    when: When
    include: tuple[When, ...] = ()
    exclude: tuple[When, ...] = ()
    jitter_s: float = 0.0
    start_at: datetime | None = None
    end_at: datetime | None = None
    max_fires: int | None = None
    misfire: Misfire = Misfire()
    calendar: Calendar | None = None


def next_fire(schedule: Schedule, after: datetime) -> datetime | None:
    """The first fire strictly after `after`, within `start_at` and `end_at` and not left out; aware UTC in and out.

    Raises GivenUp if the exclude rules leave out more than it is ready to walk through.
    """
    if after.tzinfo is not UTC or schedule.start_at is not None:
        after = _from(schedule, after)
    if schedule.calendar is not None or schedule.include or schedule.exclude:
        fire_at = _next_kept(schedule, schedule.calendar, after, schedule.end_at)
    else:
        fire_at = next_after(schedule.when, after)
    if fire_at is not None and schedule.end_at is not None and fire_at > schedule.end_at:
        return None
    return fire_at


def unrestricted(schedule: Schedule) -> Schedule:
    """The schedule with what its calendar leaves out; what the calendar moves stays moved."""
    calendar = schedule.calendar
    if calendar is None:
        return schedule
    kept = structs.replace(calendar, blackouts=()) if calendar.moves is not None else None
    return structs.replace(schedule, calendar=kept)


def rules_of(schedule: Schedule) -> tuple[When, ...]:
    """The rules that give it fires."""
    return (schedule.when, *schedule.include)


def given_by(schedule: Schedule, rule: When, after: datetime) -> datetime | None:
    """The first instant after another that one of its rules gives it, moved to a business day if its calendar moves."""
    if schedule.calendar is not None and schedule.calendar.moves is not None:
        return next_moved(rule, schedule.calendar, after)
    return next_after(rule, after)


def for_job(schedule: Schedule, job_id: UUID) -> Schedule:
    """The schedule with the job's seed wherever an H stands."""

    def seeded(rule: When) -> When:
        if isinstance(rule, Cron) and is_spread(rule.expression):
            return structs.replace(rule, spread=spread_of(job_id))
        return rule

    rules = (schedule.when, *schedule.include, *schedule.exclude)
    if not any(isinstance(rule, Cron) and is_spread(rule.expression) for rule in rules):
        return schedule
    return structs.replace(
        schedule,
        when=seeded(schedule.when),
        include=tuple(map(seeded, schedule.include)),
        exclude=tuple(map(seeded, schedule.exclude)),
    )


def _from(schedule: Schedule, after: datetime) -> datetime:
    if after.tzinfo is not UTC:
        if after.tzinfo is None:
            raise ValueError("next_fire needs an aware instant; give `after` a time zone")
        after = after.astimezone(UTC)
    if schedule.start_at is not None and schedule.start_at > after:
        return schedule.start_at.astimezone(UTC) - MICROSECOND
    return after


def _next_kept(
    schedule: Schedule, calendar: Calendar | None, after: datetime, end_at: datetime | None
) -> datetime | None:
    """The first fire after `after` that neither the calendar nor a rule leaves out, or any later than `end_at`."""
    zone = zone_of(schedule.when)
    fire_at = _next_of_any(schedule, after)
    last_year = min((after if fire_at is None else fire_at).year + SEARCH_YEARS, NEVER_AFTER.year - 1)
    walked = 0
    while fire_at is not None and (end_at is None or fire_at <= end_at):
        if fire_at.year > last_year:
            return None
        exclusion = None if calendar is None else exclusion_at(calendar, zone, fire_at)
        if exclusion is not None:
            until_at = exclusion.until_at
        elif (excluded_at := excluded_until(schedule.exclude, rules_of(schedule), fire_at)) is not None:
            until_at = excluded_at
            walked += 1
            if walked * (1 + len(schedule.include) + len(schedule.exclude)) > LONGEST_WALK:
                _refuse(walked - 1, fire_at)
        else:
            return fire_at
        fire_at = _next_of_any(schedule, until_at - MICROSECOND)
    return fire_at


def _next_of_any(schedule: Schedule, after: datetime) -> datetime | None:
    first_at = given_by(schedule, schedule.when, after)
    for rule in schedule.include:
        fire_at = given_by(schedule, rule, after)
        if fire_at is not None and (first_at is None or fire_at < first_at):
            first_at = fire_at
    return first_at


def _refuse(walked: int, fire_at: datetime) -> NoReturn:
    message = (
        f"The exclude rules leave out {walked:,} fires in a row, up to {fire_at:%Y-%m-%d %H:%M:%S} UTC; "
        "exclude less, or say when it fires by another rule."
    )
    raise GivenUp(message, faults=(Fault("/exclude", message),), reached_at=fire_at)
