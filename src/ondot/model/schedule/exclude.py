"""Fires that the `exclude` rules of a schedule exclude (S12).

A fire is excluded if one of these rules fires at exactly that instant. A rule for "all of August" by wildcards excludes
2.6 million fires of a job that runs each second, so a covered period is skipped at once: where a cron rule has every
second, minute or hour at which there could be fires, no fire is left before that minute, hour or day ends. Everything
else is walked fire by fire: RRULEs, intervals, and repeated hours.
"""

from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, assert_never

from ondot.model.schedule.cron import Cron, parsed_of
from ondot.model.schedule.dst import aware, naive, span_at
from ondot.model.schedule.event import OnEvent
from ondot.model.schedule.expression import Times
from ondot.model.schedule.interval import Interval
from ondot.model.schedule.looks import Looks, open_looks
from ondot.model.schedule.once import Once
from ondot.model.schedule.rrule import Rrule
from ondot.model.schedule.when import When, next_after

MICROSECOND: Final = timedelta(microseconds=1)
NEVER: Final = datetime.max.replace(tzinfo=UTC)

_EACH_SECOND: Final = Times(frozenset(range(60)), frozenset(range(60)), frozenset(range(24)))
_EACH_MINUTE: Final = _EACH_SECOND._replace(seconds=frozenset({0}))


def excluded_until(exclude: tuple[When, ...], rules: tuple[When, ...], fire_at: datetime) -> datetime | None:
    """Where to look again after an excluded fire of `rules`; None if it is not excluded; aware UTC."""
    until_at: datetime | None = None
    if not exclude:
        return None
    looks = open_looks()
    queue = _Queue(exclude) if looks is None else looks.kept(exclude, _Queue)
    for rule in queue.firing_at(fire_at, looks):
        covered_at = _covered_until(rule, rules, fire_at) if isinstance(rule, Cron) else None
        until_at = max(until_at or fire_at, covered_at or fire_at + MICROSECOND)
    return until_at


class _Queue:
    """Rules in the order in which they fire next: walking forward, only rules that have fired are evaluated again."""

    def __init__(self, rules: tuple[When, ...]) -> None:
        self._rules = rules
        self._next_ats: list[tuple[datetime, int]] = []
        self._asked_at = NEVER

    def firing_at(self, fire_at: datetime, looks: Looks | None) -> list[When]:
        """The rules that fire at exactly this instant."""

        def next_at(index: int) -> datetime:
            rule, just_before = self._rules[index], fire_at - MICROSECOND
            if looks is None:
                return next_after(rule, just_before) or NEVER
            looks.spend(1)  # also for a cached answer: keeping many rules in order takes as long
            return looks.look(rule, just_before, partial(next_after, rule, just_before), 0) or NEVER

        queue = self._next_ats
        if fire_at < self._asked_at:
            queue = self._next_ats = [(next_at(index), index) for index in range(len(self._rules))]
            heapify(queue)
        while queue[0][0] < fire_at:
            index = queue[0][1]
            heapreplace(queue, (next_at(index), index))
        self._asked_at = fire_at
        firing: list[tuple[datetime, int]] = []
        while queue and queue[0][0] == fire_at:
            firing.append(heappop(queue))
        for entry in firing:
            heappush(queue, entry)
        return [self._rules[index] for _, index in firing]


def _covered_until(rule: Cron, rules: tuple[When, ...], fire_at: datetime) -> datetime | None:
    """The end of the period around a fire that the rule covers, if that is more than this fire."""
    parsed = parsed_of(rule)
    at = naive(fire_at)
    span = span_at(rule.timezone, at)
    wall = at + span.offset
    # In wall times that occur once, a rule fires at each of its slots, whatever its policy.
    if not parsed.is_slot(wall) or not span.second_until <= wall < span.first_from:
        return None
    times = _times(rules, rule.timezone)
    covered = None if times is None else parsed.covered_until(wall, times)
    if covered is None:
        return None
    return aware(min(covered, span.first_from, span.end_at + span.offset) - span.offset)


@lru_cache(maxsize=1024)
def _times(rules: tuple[When, ...], zone: str) -> Times | None:
    """The wall-clock times at which these rules may fire in a zone; None if they are not whole seconds."""
    each = [_times_of(rule, zone) for rule in rules]
    known = [times for times in each if times is not None]
    if len(known) < len(each):
        return None
    return Times(*(frozenset().union(*values) for values in zip(*known, strict=True)))


def _times_of(rule: When, zone: str) -> Times | None:
    match rule:
        case Cron():
            times = parsed_of(rule).times
            # Zones differ by whole minutes: a time on the minute in one zone is so in all; nothing else is known.
            return times if rule.timezone == zone else _EACH_MINUTE if times.seconds == {0} else _EACH_SECOND
        case Rrule():
            return _EACH_SECOND
        case Once():
            return _times_of_steps(rule.at, 60)
        case Interval():
            return _times_of_steps(rule.anchor_at, rule.every_s)
        case OnEvent():
            return _EACH_SECOND
    assert_never(rule)


def _times_of_steps(anchor_at: datetime, every_s: float) -> Times | None:
    if anchor_at.microsecond or every_s % 1:
        return None
    return _EACH_SECOND if anchor_at.astimezone(UTC).second or every_s % 60 else _EACH_MINUTE
