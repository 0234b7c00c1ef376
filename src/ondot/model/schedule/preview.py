"""The next fires of a schedule, and how clock changes, the calendar and rules affect them (S9, S10, S12).

A fire has the remark `shifted` if it was moved from a skipped hour or a day off, `repeated` if its wall time occurs for
the second time, and otherwise `jittered` if the job may start later by its jitter. A fire of several rules has a remark
only if every one of them gives it one. `skipped` lists the slots up to the last fire that do not fire: wall times that
the clock skips (`gap`), fires that an exclude rule matches (`excluded`), and those that the calendar excludes
(`holiday`, `date`, `weekend`, `blackout`). `fire_at` is the fire itself, without jitter, and `local` the time in the
zone of `when`. The preview ends with the year 2200.
"""

import heapq
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal

from msgspec import structs

from ondot.model.schedule.calendar import Calendar, exclusion_at
from ondot.model.schedule.dst import NEVER_AFTER, SECOND, span_at, spans_between, zone_info
from ondot.model.schedule.exclude import MICROSECOND, excluded_until
from ondot.model.schedule.looks import Spent, bounded
from ondot.model.schedule.once import Once
from ondot.model.schedule.rule import Schedule, given_by, given_up, next_fire, rules_of
from ondot.model.schedule.when import When, slots_of, zone_of
from ondot.model.schedule.words import in_words

if TYPE_CHECKING:
    from collections.abc import Iterator

Remark = Literal["shifted", "repeated", "jittered"]

# How far ahead skipped slots are listed for a schedule without further fires.
_OUTLOOK: Final = timedelta(days=2 * 366)
_NEVER: Final = NEVER_AFTER.replace(tzinfo=UTC)
LAST_YEAR: Final = 2200  # the same limit as for instants in a schedule


@dataclass(frozen=True, slots=True)
class Fire:
    fire_at: datetime
    local: str
    remark: Remark | None


@dataclass(frozen=True, slots=True)
class Skipped:
    local: str
    reason: str


@dataclass(frozen=True, slots=True)
class Preview:
    in_words: str
    fires: tuple[Fire, ...]
    skipped: tuple[Skipped, ...]


@bounded
def preview(schedule: Schedule, after: datetime, n: int) -> Preview:
    """The next `n` fires after an instant, and at most `n` skipped ones. Raises GivenUp like any search."""
    try:
        return _preview(schedule, after, n)
    except Spent:
        raise given_up(schedule, after) from None


def _preview(schedule: Schedule, after: datetime, n: int) -> Preview:
    instants = list(islice(_fires(schedule, after), max(n, 0)))
    fires = tuple(_fire(schedule, fire_at) for fire_at in instants)
    begin_at = max(after, schedule.start_at or after)
    is_cut = len(instants) in {n, schedule.max_fires}
    until_at = instants[-1] if instants and is_cut else schedule.end_at or _outlook(begin_at)
    skipped = heapq.merge(
        *(_find_in_gaps(rule, schedule.calendar, begin_at, until_at) for rule in rules_of(schedule)),
        _left_out(schedule, after, until_at),
        key=lambda pair: pair[0],
    )
    return Preview(
        in_words=in_words(schedule),
        fires=fires,
        skipped=tuple(entry for _, entry in islice(skipped, max(n, 0))),
    )


def _outlook(begin_at: datetime) -> datetime:
    return _NEVER if begin_at > _NEVER - _OUTLOOK else begin_at + _OUTLOOK


def _fires(schedule: Schedule, after: datetime) -> "Iterator[datetime]":
    fire_at = next_fire(schedule, after)
    fired = 0
    while fire_at is not None and fire_at.year <= LAST_YEAR and fired != schedule.max_fires:
        yield fire_at
        fired += 1
        fire_at = next_fire(schedule, fire_at)


def _fire(schedule: Schedule, fire_at: datetime) -> Fire:
    just_before = fire_at - MICROSECOND
    givers = [rule for rule in rules_of(schedule) if given_by(schedule, rule, just_before) == fire_at]
    remarks = [_remark(rule, schedule.calendar, fire_at.replace(tzinfo=None)) for rule in givers]
    remark = remarks[0] if remarks and None not in remarks else None
    if (remark is None and schedule.jitter_s > 0) or schedule.spread_s > 0:
        remark = "jittered"
    return Fire(fire_at=fire_at, local=_local(schedule, fire_at), remark=remark)


def _local(schedule: Schedule, fire_at: datetime) -> str:
    when = schedule.when
    return fire_at.astimezone(zone_info(when.timezone if isinstance(when, Once) else zone_of(when))).isoformat()


def _remark(rule: When, calendar: Calendar | None, fire_at: datetime) -> Remark | None:
    if isinstance(rule, Once):
        return _remark_of_once(rule, fire_at)
    slots = slots_of(rule, calendar)
    unmoved = slots_of(rule)
    if slots is None or unmoved is None:
        return None
    span = span_at(slots.zone, fire_at)
    wall = fire_at + span.offset
    if wall < span.second_until:
        return "repeated"
    before = span_at(slots.zone, fire_at - SECOND)
    if before.end_at == fire_at and slots.dst.gap == "shift":
        swallowed = slots.slot_after(fire_at + before.offset - SECOND)
        if swallowed is not None and swallowed < before.gap_until:
            return "shifted"
    return None if unmoved.slot_after(wall - SECOND) == wall else "shifted"


def _remark_of_once(once: Once, fire_at: datetime) -> Remark | None:
    span = span_at(once.timezone, fire_at)
    wall = fire_at + span.offset
    if wall < span.second_until:
        return "repeated"
    return None if once.wall in {None, wall} else "shifted"


def _find_in_gaps(
    rule: When, calendar: Calendar | None, after: datetime, until: datetime
) -> "Iterator[tuple[datetime, Skipped]]":
    """The slots in skipped hours, each with the instant of its clock change."""
    slots = slots_of(rule, calendar)
    if slots is None or slots.dst.gap == "shift":
        return
    after_at, until_at = (instant.astimezone(UTC).replace(tzinfo=None) for instant in (after, until))
    for span in spans_between(slots.zone, after_at, until_at):
        if span.end_at > until_at:
            return
        wall = slots.slot_after(span.end_at + span.offset - SECOND)
        while wall is not None and wall < span.gap_until:
            yield span.end_at.replace(tzinfo=UTC), Skipped(local=wall.isoformat(), reason="gap")
            wall = slots.slot_after(wall)


def _left_out(schedule: Schedule, after: datetime, until: datetime) -> "Iterator[tuple[datetime, Skipped]]":
    """The excluded fires, found by walking over all fires; the caller takes the first few."""
    calendar = schedule.calendar
    if calendar is None and not schedule.exclude:
        return
    moving = None if calendar is None or calendar.moves is None else structs.replace(calendar, blackouts=())
    unrestricted = structs.replace(schedule, calendar=moving, exclude=())
    fire_at = next_fire(unrestricted, after)
    while fire_at is not None and fire_at <= until:
        if (reason := _reason(schedule, fire_at)) is not None:
            yield fire_at, Skipped(local=_local(schedule, fire_at), reason=reason)
        fire_at = next_fire(unrestricted, fire_at)


def _reason(schedule: Schedule, fire_at: datetime) -> str | None:
    if excluded_until(schedule.exclude, rules_of(schedule), fire_at) is not None:
        return "excluded"
    if schedule.calendar is None:
        return None
    exclusion = exclusion_at(schedule.calendar, zone_of(schedule.when), fire_at)
    return None if exclusion is None else exclusion.reason
