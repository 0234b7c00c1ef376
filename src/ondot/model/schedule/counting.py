"""How many fires a range has, which is the last, which are the newest (S6, S7).

After a long outage, or for a backfill of years, walking through every fire is too slow. This module calls only
`next_fire`, so it works for every kind of rule, and calls it rarely: the last fire is found by bisection, the newest
ones by looking back in windows that double. An interval, and a cron expression without calendar or lists, are counted
by arithmetic: between two offset changes of the zone, wall time and UTC differ by a constant, so the slots of wall time
are counted there, and at each change the policy decides which of them fire.

`start_at` and `end_at` apply as for `next_fire`; `max_fires` needs memory of the past, which the flow has.
"""

from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Final

from ondot.model.schedule.cron import Cron, effective_dst, parsed_of
from ondot.model.schedule.dst import NEVER_AFTER, NEVER_BEFORE, SEARCH_YEARS, spans_between
from ondot.model.schedule.interval import Interval
from ondot.model.schedule.looks import bounded
from ondot.model.schedule.rule import Schedule, next_fire

if TYPE_CHECKING:
    from collections.abc import Iterator

_MICROSECOND: Final = timedelta(microseconds=1)
_EARLIEST: Final = NEVER_BEFORE.replace(tzinfo=UTC)
# Closer to the last supported year the search for a next fire gives up, while arithmetic would not.
_COUNTED_UNTIL: Final = NEVER_AFTER.replace(year=NEVER_AFTER.year - SEARCH_YEARS, tzinfo=UTC)


@bounded
def last_fire(schedule: Schedule, after: datetime, before: datetime) -> datetime | None:
    """The last fire strictly between two instants."""
    if isinstance(schedule.when, Interval) and _is_plain(schedule):
        newest = _newest_of_interval(schedule, schedule.when, after, before, 1)
        return newest[0] if newest else None
    last_at = next_fire(schedule, after)
    if last_at is None or last_at >= before:
        return None
    # `last_at` is a fire, and there is none in (high_at, before).
    high_at = before.astimezone(UTC)
    while last_at < high_at:
        middle_at = last_at + (high_at - last_at) // 2
        fire_at = next_fire(schedule, middle_at)
        if fire_at is not None and fire_at < before:
            last_at = fire_at
        else:
            high_at = middle_at
    return last_at


@bounded
def newest_fires(schedule: Schedule, after: datetime, before: datetime, limit: int) -> list[datetime]:
    """The newest `limit` fires strictly between two instants, in the order of time."""
    if limit <= 0:
        return []
    if isinstance(schedule.when, Interval) and _is_plain(schedule):
        return _newest_of_interval(schedule, schedule.when, after, before, limit)
    newest: list[datetime] = []
    while len(newest) < limit and (last_at := last_fire(schedule, after, before)) is not None:
        older, before = _burst_before(schedule, after, last_at, limit - len(newest) - 1)
        newest = [*older, last_at, *newest]
    return newest


@bounded
def count_fires(schedule: Schedule, after: datetime, until: datetime, at_most: int) -> int | None:
    """The number of fires after one instant, up to and including another.

    Exact for a plain interval or cron expression. Others are counted one by one; None: more than `at_most`.
    """
    begin_at, end_at = after.astimezone(UTC), until.astimezone(UTC)
    if schedule.start_at is not None:
        begin_at = max(begin_at, schedule.start_at.astimezone(UTC) - _MICROSECOND)
    if schedule.end_at is not None:
        end_at = min(end_at, schedule.end_at.astimezone(UTC))
    if end_at <= begin_at:
        return 0
    if _is_plain(schedule):
        if isinstance(schedule.when, Interval):
            return _fired_until(schedule.when, end_at) - _fired_until(schedule.when, begin_at)
        if isinstance(schedule.when, Cron) and end_at < _COUNTED_UNTIL:
            return _count_of_cron(schedule.when, max(begin_at, _EARLIEST), max(end_at, _EARLIEST))
    counted = sum(1 for _ in islice(_fires(schedule, begin_at, end_at), at_most + 1))
    return counted if counted <= at_most else None


def _is_plain(schedule: Schedule) -> bool:
    """Whether the rule has nothing but bounds beside it; a field unknown here might exclude fires."""
    return schedule == Schedule(
        when=schedule.when,
        jitter_s=schedule.jitter_s,
        spread_s=schedule.spread_s,
        offset_s=schedule.offset_s,
        is_offset_given=schedule.is_offset_given,
        start_at=schedule.start_at,
        end_at=schedule.end_at,
        max_fires=schedule.max_fires,
        misfire=schedule.misfire,
    )


def _fires(schedule: Schedule, after: datetime, until: datetime) -> "Iterator[datetime]":
    fire_at = next_fire(schedule, after)
    while fire_at is not None and fire_at <= until:
        yield fire_at
        fire_at = next_fire(schedule, fire_at)


def _burst_before(
    schedule: Schedule, after: datetime, last_at: datetime, wanted: int
) -> tuple[list[datetime], datetime]:
    """Up to `wanted` fires before `last_at`, and the instant after which there are no others.

    The first window is as long as the last distance between fires, and windows double, so an even schedule is read at
    most twice. A window with far more fires than wanted (after a quiet night, the seconds of a whole day) is read again
    from its end.
    """
    found: list[datetime] = []
    before = last_at
    one_before = last_fire(schedule, after, last_at) if wanted else None
    if one_before is None:
        return found, after
    window = last_at - one_before
    while (missing := wanted - len(found)) and before - after > _MICROSECOND:
        begin_at = before - window if before - after > window else after + _MICROSECOND
        fires = list(islice(_fires(schedule, begin_at - _MICROSECOND, before - _MICROSECOND), 4 * missing + 16))
        if len(fires) == 4 * missing + 16:
            break
        found = [*fires[-missing:], *found]
        before, window = begin_at, 2 * window
    return found, before


def _newest_of_interval(
    schedule: Schedule, interval: Interval, after: datetime, before: datetime, limit: int
) -> list[datetime]:
    begin_at, end_at = after.astimezone(UTC), before.astimezone(UTC) - _MICROSECOND
    if schedule.start_at is not None:
        begin_at = max(begin_at, schedule.start_at.astimezone(UTC) - _MICROSECOND)
    if schedule.end_at is not None:
        end_at = min(end_at, schedule.end_at.astimezone(UTC))
    first, beyond = _fired_until(interval, begin_at), _fired_until(interval, end_at)
    anchor_at, every = interval.anchor_at.astimezone(UTC), _every(interval)
    return [anchor_at + k * every for k in range(max(first, beyond - limit), beyond)]


def _fired_until(interval: Interval, at: datetime) -> int:
    anchor_at = interval.anchor_at.astimezone(UTC)
    return 0 if at < anchor_at else (at - anchor_at) // _every(interval) + 1


def _every(interval: Interval) -> timedelta:
    return timedelta(microseconds=round(interval.every_s * 1_000_000))


def _count_of_cron(cron: Cron, after: datetime, until: datetime) -> int:
    """The fires in (after, until], span by span of constant offset."""
    parsed, dst = parsed_of(cron), effective_dst(cron)
    after_at, until_at = after.replace(tzinfo=None), until.replace(tzinfo=None)
    if cron.timezone == "UTC":
        return parsed.slots_between(after_at, until_at)
    counted = 0
    at = after_at
    for span in spans_between(cron.timezone, after_at, until_at + _MICROSECOND):
        ends_at = min(until_at, span.end_at - _MICROSECOND)
        first, last = at + span.offset, ends_at + span.offset
        if dst.fold == "first":
            first = max(first, span.second_until - _MICROSECOND)
        elif dst.fold == "last":
            last = min(last, span.first_from - _MICROSECOND)
        counted += parsed.slots_between(first, last)
        if dst.gap == "shift" and span.end_at <= until_at:
            # One fire for all slots in the gap, and none if a slot is due at its end anyway.
            left_out = span.end_at + span.offset - _MICROSECOND
            swallowed = parsed.slots_between(left_out, span.gap_until - _MICROSECOND)
            if swallowed and not parsed.slots_between(span.gap_until - _MICROSECOND, span.gap_until):
                counted += 1
        at = ends_at
    return counted
