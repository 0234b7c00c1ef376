"""The coming fires of a schedule, with what the clocks do to them (S9).

A fire is remarked as `shifted` if a slot inside a gap was moved to it, as `repeated` if its wall time is
shown for the second time, and otherwise as `jittered` if the job may start later than the fire by its
jitter. `skipped` lists the wall times up to the last fire that do not fire since the zone's clock never
shows them. `fire_at` is the fire itself, without jitter.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal

from ondot.model.schedule.cron import Cron, effective_dst
from ondot.model.schedule.dst import SECOND, span_at, spans_between, zone_info
from ondot.model.schedule.expression import expression
from ondot.model.schedule.rule import Schedule, next_fire
from ondot.model.schedule.words import in_words

if TYPE_CHECKING:
    from collections.abc import Iterator

Remark = Literal["shifted", "repeated", "jittered"]

# How far ahead to tell what is skipped of a schedule that has no more fires.
_OUTLOOK: Final = timedelta(days=2 * 366)


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
    skipped: tuple[Skipped, ...] = ()
    if isinstance(schedule.when, Cron):
        begin_at = max(after, schedule.start_at or after)
        until_at = instants[-1] if instants and len(instants) == n else schedule.end_at or begin_at + _OUTLOOK
        skipped = tuple(islice(_skipped(schedule.when, begin_at, until_at), max(n, 0)))
    return Preview(in_words=in_words(schedule), fires=fires, skipped=skipped)


def _fires(schedule: Schedule, after: datetime) -> "Iterator[datetime]":
    fire_at = next_fire(schedule, after)
    fired = 0
    while fire_at is not None and fired != schedule.max_fires:
        yield fire_at
        fired += 1
        fire_at = next_fire(schedule, fire_at)


def _fire(schedule: Schedule, fire_at: datetime) -> Fire:
    zone, remark = "UTC", None
    if isinstance(schedule.when, Cron):
        zone, remark = schedule.when.timezone, _remark(schedule.when, fire_at.replace(tzinfo=None))
    if remark is None and schedule.jitter_s > 0:
        remark = "jittered"
    return Fire(fire_at=fire_at, local=fire_at.astimezone(zone_info(zone)).isoformat(), remark=remark)


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


def _skipped(cron: Cron, after: datetime, until: datetime) -> "Iterator[Skipped]":
    if effective_dst(cron).gap == "shift":
        return
    slot_after = expression(cron.expression).slot_after
    after_at, until_at = (instant.astimezone(UTC).replace(tzinfo=None) for instant in (after, until))
    for span in spans_between(cron.timezone, after_at, until_at):
        if span.end_at > until_at:
            return
        wall = slot_after(span.end_at + span.offset - SECOND)
        while wall is not None and wall < span.gap_until:
            yield Skipped(local=wall.isoformat(), reason="gap")
            wall = slot_after(wall)
