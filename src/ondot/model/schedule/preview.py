"""The coming fires of a schedule, with what the clocks and the calendar do to them (S9, S10).

A fire is remarked as `shifted` if a slot inside a gap was moved to it, as `repeated` if its wall time is
shown for the second time, and otherwise as `jittered` if the job may start later than the fire by its
jitter. `skipped` lists what does not fire up to the last fire: wall times that the zone's clock never shows
(`gap`), and fires that the calendar leaves out (`holiday`, `date`, `weekend`, `blackout`). `fire_at` is the
fire itself, without jitter.
"""

import heapq
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal

from msgspec import structs

from ondot.model.schedule.calendar import exclusion_at
from ondot.model.schedule.cron import Cron, effective_dst
from ondot.model.schedule.dst import NEVER_AFTER, SECOND, span_at, spans_between, zone_info
from ondot.model.schedule.expression import expression
from ondot.model.schedule.rule import Schedule, next_fire, zone_of
from ondot.model.schedule.words import in_words

if TYPE_CHECKING:
    from collections.abc import Iterator

Remark = Literal["shifted", "repeated", "jittered"]

# How far ahead to tell what is skipped of a schedule that has no more fires.
_OUTLOOK: Final = timedelta(days=2 * 366)
_NEVER: Final = NEVER_AFTER.replace(tzinfo=UTC)


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


def preview(schedule: Schedule, after: datetime, n: int) -> Preview:
    """The next `n` fires after an instant, and at most `n` skipped ones among them."""
    instants = list(islice(_fires(schedule, after), max(n, 0)))
    fires = tuple(_fire(schedule, fire_at) for fire_at in instants)
    begin_at = max(after, schedule.start_at or after)
    is_cut = len(instants) in {n, schedule.max_fires}
    until_at = instants[-1] if instants and is_cut else schedule.end_at or _outlook(begin_at)
    skipped = heapq.merge(
        _swallowed(schedule, begin_at, until_at),
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
    while fire_at is not None and fired != schedule.max_fires:
        yield fire_at
        fired += 1
        fire_at = next_fire(schedule, fire_at)


def _fire(schedule: Schedule, fire_at: datetime) -> Fire:
    remark = None
    if isinstance(schedule.when, Cron):
        remark = _remark(schedule.when, fire_at.replace(tzinfo=None))
    if remark is None and schedule.jitter_s > 0:
        remark = "jittered"
    return Fire(fire_at=fire_at, local=_local(schedule, fire_at), remark=remark)


def _local(schedule: Schedule, fire_at: datetime) -> str:
    return fire_at.astimezone(zone_info(zone_of(schedule.when))).isoformat()


def _remark(cron: Cron, fire_at: datetime) -> Remark | None:
    span = span_at(cron.timezone, fire_at)
    if fire_at + span.offset < span.second_until:
        return "repeated"
    before = span_at(cron.timezone, fire_at - SECOND)
    if before.end_at == fire_at and effective_dst(cron).gap == "shift":
        swallowed = expression(cron.expression).slot_after(fire_at + before.offset - SECOND)
        if swallowed is not None and swallowed < before.gap_until:
            return "shifted"
    return None


def _swallowed(schedule: Schedule, after: datetime, until: datetime) -> "Iterator[tuple[datetime, Skipped]]":
    """The slots inside gaps, each with the instant at which its gap is."""
    cron = schedule.when
    if not isinstance(cron, Cron) or effective_dst(cron).gap == "shift":
        return
    slot_after = expression(cron.expression).slot_after
    after_at, until_at = (instant.astimezone(UTC).replace(tzinfo=None) for instant in (after, until))
    for span in spans_between(cron.timezone, after_at, until_at):
        if span.end_at > until_at:
            return
        wall = slot_after(span.end_at + span.offset - SECOND)
        while wall is not None and wall < span.gap_until:
            yield span.end_at.replace(tzinfo=UTC), Skipped(local=wall.isoformat(), reason="gap")
            wall = slot_after(wall)


def _left_out(schedule: Schedule, after: datetime, until: datetime) -> "Iterator[tuple[datetime, Skipped]]":
    """The fires that the calendar leaves out: a walk over those kept, at most n, and those left out, which are cut."""
    if schedule.calendar is None:
        return
    unrestricted = structs.replace(schedule, calendar=None)
    fire_at = next_fire(unrestricted, after)
    while fire_at is not None and fire_at <= until:
        exclusion = exclusion_at(schedule.calendar, zone_of(schedule.when), fire_at)
        if exclusion is not None:
            yield fire_at, Skipped(local=_local(schedule, fire_at), reason=exclusion.reason)
        fire_at = next_fire(unrestricted, fire_at)
