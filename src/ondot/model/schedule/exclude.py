"""What the `exclude` rules of a schedule leave out (S12).

A fire is left out if one of these rules fires at exactly that instant. A rule that says "all of August" by wildcards
leaves out 2.6 million fires of a job that runs each second, so what it covers is gone over at once: where a rule
follows real time, and takes every second, minute or hour at which there could be fires, none can be left before the
minute, the hour or the day ends. Everything else is walked, fire by fire.
"""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, assert_never

from ondot.model.schedule.cron import Cron, parsed_of
from ondot.model.schedule.dst import span_at
from ondot.model.schedule.expression import Expression, Times
from ondot.model.schedule.interval import Interval
from ondot.model.schedule.once import Once
from ondot.model.schedule.rrule import Rrule
from ondot.model.schedule.when import When, next_after

MICROSECOND: Final = timedelta(microseconds=1)

_EACH_SECOND: Final = Times(frozenset(range(60)), frozenset(range(60)), frozenset(range(24)))
_EACH_MINUTE: Final = _EACH_SECOND._replace(seconds=frozenset({0}))


def excluded_until(exclude: tuple[When, ...], rules: tuple[When, ...], fire_at: datetime) -> datetime | None:
    """Where to look again after a fire of `rules` that is left out, or None if it is not; aware UTC."""
    until_at: datetime | None = None
    for rule in exclude:
        if isinstance(rule, Cron) and (parsed := parsed_of(rule)).is_straight:
            covered_at = _covered_until(rule, parsed, rules, fire_at)
        else:
            covered_at = fire_at + MICROSECOND if next_after(rule, fire_at - MICROSECOND) == fire_at else None
        if covered_at is not None:
            until_at = covered_at if until_at is None else max(until_at, covered_at)
    return until_at


def _covered_until(rule: Cron, parsed: Expression, rules: tuple[When, ...], fire_at: datetime) -> datetime | None:
    """For a rule that fires whenever its zone's clock shows one of its slots."""
    at = fire_at.replace(tzinfo=None)
    span = span_at(rule.timezone, at)
    if not parsed.is_slot(at + span.offset):
        return None
    times = _times(rules, rule.timezone)
    wall = None if times is None else parsed.covered_until(at + span.offset, times)
    if wall is None:
        return fire_at + MICROSECOND
    return min(wall - span.offset, span.end_at).replace(tzinfo=UTC)


@lru_cache(maxsize=1024)
def _times(rules: tuple[When, ...], zone: str) -> Times | None:
    """What a zone's clock may show at fires of these rules, or None if that is not in whole seconds."""
    each = [_times_of(rule, zone) for rule in rules]
    known = [times for times in each if times is not None]
    if len(known) < len(each):
        return None
    return Times(*(frozenset().union(*values) for values in zip(*known, strict=True)))


def _times_of(rule: When, zone: str) -> Times | None:
    match rule:
        case Cron():
            times = parsed_of(rule).times
            # Zones differ by whole minutes: what is on the minute in one is so in all, and no more is known.
            return times if rule.timezone == zone else _EACH_MINUTE if times.seconds == {0} else _EACH_SECOND
        case Rrule():
            return _EACH_SECOND
        case Once():
            return _times_of_steps(rule.at, 60)
        case Interval():
            return _times_of_steps(rule.anchor_at, rule.every_s)
    assert_never(rule)


def _times_of_steps(anchor_at: datetime, every_s: float) -> Times | None:
    if anchor_at.microsecond or every_s % 1:
        return None
    return _EACH_SECOND if anchor_at.astimezone(UTC).second or every_s % 60 else _EACH_MINUTE
