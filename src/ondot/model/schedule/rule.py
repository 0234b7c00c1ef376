"""The schedule of a job as data, and its next fire (S1 to S4, S8, S10, S12).

A `Schedule` is a rule (`when`) plus the fires of its `include` rules, minus those of its `exclude` rules, within
`start_at` and `end_at` (both included), minus those that its calendar excludes. It is stored as JSON and decoded where
fires are planned, so it is a struct and not a class with behaviour. Fields of a newer release are ignored, so that
nodes of two releases can share a database.

`next_fire` is the nominal instant, the `fire_at` that makes an execution unique. Jitter delays the start, not the fire.
`max_fires` and misfires need memory of the past, which the flow has.
"""

from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from msgspec import Struct, structs

from ondot.model.errors import Fault, InvalidSchedule
from ondot.model.misfire import Misfire
from ondot.model.schedule.calendar import Calendar, exclusion_at
from ondot.model.schedule.cron import Cron
from ondot.model.schedule.dst import NEVER_AFTER, SEARCH_YEARS
from ondot.model.schedule.exclude import MICROSECOND, excluded_until
from ondot.model.schedule.jitter import jitter_offset
from ondot.model.schedule.looks import A_SEARCH, HOLIDAYS, Looks, Spent, allowed, open_looks
from ondot.model.schedule.rrule import Rrule
from ondot.model.schedule.spread import is_spread, spread_of
from ondot.model.schedule.when import When, next_after, next_moved, zone_of

_KNOWN_A_LOOK: Final = 8  # cached answers of rules that cost as much as one look
_A_MOVE: Final = 10  # looks that moving slots to a business day costs, besides one for each excluded date


class GivenUp(InvalidSchedule):
    """The search for the next fire used up its budget. There is no fire before `reached_at`, where the search can
    continue; it is always later than the instant at which the search started."""

    def __init__(self, message: str, faults: tuple[Fault, ...], reached_at: datetime) -> None:
        super().__init__(message, faults)
        self.reached_at = reached_at


class Schedule(Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True):
    when: When
    include: tuple[When, ...] = ()
    exclude: tuple[When, ...] = ()
    jitter_s: float = 0.0
    spread_s: float = 0.0
    offset_s: float | None = None  # within `spread_s`; chosen once, and then kept
    is_offset_given: bool = False  # whether the user chose it
    start_at: datetime | None = None
    end_at: datetime | None = None
    max_fires: int | None = None
    misfire: Misfire = Misfire()
    calendar: Calendar | None = None


def next_fire(schedule: Schedule, after: datetime) -> datetime | None:
    """The first fire strictly after `after`, within `start_at` and `end_at` and not excluded; aware UTC in and out.

    Raises GivenUp if it takes more looks than one search may, or than the caller's budget has left.
    """
    if after.tzinfo is not UTC or schedule.start_at is not None:
        after = _from(schedule, after)
    if is_quick(schedule):
        fire_at = next_after(schedule.when, after)
    elif (looks := open_looks()) is not None:
        fire_at = _next_kept(schedule, after, looks)
    else:
        with allowed(A_SEARCH) as looks:
            fire_at = _next_kept(schedule, after, looks)
    if fire_at is not None and schedule.end_at is not None and fire_at > schedule.end_at:
        return None
    return fire_at


def is_quick(schedule: Schedule) -> bool:
    """Whether its next fire takes one cheap look at one rule."""
    is_alone = schedule.calendar is None and not schedule.include and not schedule.exclude
    return is_alone and not isinstance(schedule.when, Rrule)


def unrestricted(schedule: Schedule) -> Schedule:
    """The schedule without its calendar's exclusions; slots that the calendar moves stay moved."""
    calendar = schedule.calendar
    if calendar is None:
        return schedule
    kept = structs.replace(calendar, blackouts=()) if calendar.moves is not None else None
    return structs.replace(schedule, calendar=kept)


def rules_of(schedule: Schedule) -> tuple[When, ...]:
    """The rules that produce its fires."""
    return (schedule.when, *schedule.include)


def given_by(schedule: Schedule, rule: When, after: datetime) -> datetime | None:
    """The first instant after another that one of its rules produces, moved to a business day if its calendar moves."""
    calendar, looks = schedule.calendar, open_looks()
    if calendar is not None and calendar.moves is not None:
        if looks is None:
            return next_moved(rule, calendar, after)
        many = _A_MOVE + len(calendar.exclude_dates)
        return looks.look((rule, calendar), after, lambda: next_moved(rule, calendar, after), many)
    return next_after(rule, after) if looks is None else looks.look(rule, after, lambda: next_after(rule, after))


def start_delay(schedule: Schedule, job_id: UUID) -> timedelta:
    """How long after each fire the job starts: by its jitter, or by the offset that was chosen for it (S5, S13)."""
    if schedule.spread_s:
        return timedelta(seconds=schedule.offset_s or 0.0)
    return jitter_offset(job_id, schedule.jitter_s)


def for_job(schedule: Schedule, job_id: UUID) -> Schedule:
    """The schedule with the job's seed in every rule that has an H."""

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
            raise ValueError("next_fire needs an aware instant: `after` has no time zone")
        after = after.astimezone(UTC)
    if schedule.start_at is not None and schedule.start_at > after:
        return schedule.start_at.astimezone(UTC) - MICROSECOND
    return after


def _next_kept(schedule: Schedule, after: datetime, looks: Looks) -> datetime | None:
    """The first fire after `after` that neither the calendar nor a rule excludes, or any fire later than `end_at`."""
    zone, calendar, end_at, rules = zone_of(schedule.when), schedule.calendar, schedule.end_at, rules_of(schedule)
    region = None if calendar is None else calendar.exclude_holidays
    reached_at, walked = after, 0
    looks.begin_search()
    try:
        fire_at = _next_of_any(schedule, after)
        looks.first_step_done()
        last_year = min((after if fire_at is None else fire_at).year + SEARCH_YEARS, NEVER_AFTER.year - 1)
        while fire_at is not None and (end_at is None or fire_at <= end_at):
            if fire_at.year > last_year:
                return None
            reached_at = fire_at
            if region is not None:
                looks.look((region, fire_at.year), fire_at, lambda: None, HOLIDAYS)
            exclusion = None if calendar is None else exclusion_at(calendar, zone, fire_at)
            until_at = exclusion.until_at if exclusion else excluded_until(schedule.exclude, rules, fire_at)
            if until_at is None:
                return fire_at
            walked += 1
            fire_at = _next_of_any(schedule, until_at - MICROSECOND)
    except Spent:
        raise given_up(schedule, reached_at, walked) from None
    return fire_at


def _next_of_any(schedule: Schedule, after: datetime) -> datetime | None:
    first_at = given_by(schedule, schedule.when, after)
    if len(schedule.include) >= _KNOWN_A_LOOK and (looks := open_looks()) is not None:
        looks.spend(len(schedule.include) // _KNOWN_A_LOOK)
    for rule in schedule.include:
        fire_at = given_by(schedule, rule, after)
        if fire_at is not None and (first_at is None or fire_at < first_at):
            first_at = fire_at
    return first_at


def given_up(schedule: Schedule, reached_at: datetime, walked: int = 0) -> GivenUp:
    """The error of a search that used up its looks."""
    if schedule.exclude or schedule.include:
        place, what = "exclude" if schedule.exclude else "include", "rules take"
        advice = "exclude less, use fewer rules, or use another kind of rule"
    elif schedule.calendar is not None:
        place, what, advice = "calendar", "calendar takes", "exclude less, or use another rule"
    else:
        place, what, advice = "rrule", "rule takes", "remove a BY part, or an INTERVAL that steps over most of them"
    excluded = f" after {walked:,} excluded fires in a row" if walked else ""
    message = (
        f"Its {what} too long to compute: the search for a fire stopped at {reached_at:%Y-%m-%d %H:%M:%S} UTC"
        f"{excluded}; {advice}."
    )
    return GivenUp(message, faults=(Fault(f"/{place}", message),), reached_at=reached_at)
