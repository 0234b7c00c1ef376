"""Mapped steps (W7): one execution for each item of a list, made in a moving window.

The list is split into portions when the step starts, and the cursor says how far executions were made. Counts say
where the map is; each item has a row once it was made. All items run: `tolerate` decides only at the end whether the
step has succeeded. A step with `each` has the items of the step that it names: its item i runs if item i there has
succeeded, and is skipped otherwise.
"""

from collections.abc import Iterator, Sequence
from math import floor
from typing import Final, Literal

from msgspec import Struct

from ondot.model.workflow.spec import MAX_ITEMS, Tolerate

WINDOW: Final = 10_000
"""The most items of a step that wait or run at a time, so that a long list does not fill the queue."""
PORTION: Final = 1_000
"""Items that are stored, read and made at a time."""

MapEnd = Literal["SUCCEEDED", "FAILED", "BLOCKED"]


class NotMappable(ValueError):
    """The value under `over` cannot be mapped; the message is what the step fails with."""


class MapCounts(Struct, frozen=True, kw_only=True):
    """Where a mapped step is. `cursor`: items before it were made, or wait to be made again."""

    total: int
    cursor: int = 0
    waiting: int = 0
    """Items that have a row and may run: by `each`, or by a retry."""
    active: int = 0
    stuck: int = 0
    """Of the active ones, child runs that are BLOCKED."""
    succeeded: int = 0
    failed: int = 0


def read_list(step: str, value: object) -> list[object]:
    """The items; raises `NotMappable`."""
    if not isinstance(value, list):
        raise NotMappable(f"`map.over` of step '{step}' must be a list, got {_kind_of(value)}.")
    if len(value) > MAX_ITEMS:
        raise NotMappable(
            f"`map.over` of step '{step}' has {len(value):,} items, and a map has {MAX_ITEMS:,} at most. "
            "Split the list, for example into lists of 1,000 that one execution works through."
        )
    return value


def split(items: Sequence[object]) -> Iterator[tuple[int, Sequence[object]]]:
    """The portions of a list, each with the number of its first item."""
    return ((first, items[first : first + PORTION]) for first in range(0, len(items), PORTION))


def room(counts: MapCounts, concurrency: int | None) -> int:
    """How many items may be made now."""
    return max(min(WINDOW, concurrency or WINDOW) - counts.active, 0)


def is_stuck(counts: MapCounts, concurrency: int | None) -> bool:
    """Whether nothing moves without a person: what is active is BLOCKED, and no further item may be made."""
    is_all_made = counts.cursor == counts.total and counts.waiting == 0
    return 0 < counts.active == counts.stuck and (is_all_made or room(counts, concurrency) == 0)


def tolerated(total: int, tolerate: Tolerate | None) -> int:
    """How many of all items may fail."""
    if tolerate is None:
        return 0
    if tolerate.count is not None:
        return tolerate.count
    # Rounded first: 29 % of 100 would be 28.999….
    return floor(round(total * (tolerate.percent or 0.0) / 100, 6))


def judge(counts: MapCounts, tolerate: Tolerate | None) -> MapEnd | None:
    """How a map over a list has ended; None while items are left."""
    if counts.cursor < counts.total or counts.waiting or counts.active:
        return None
    return _by_tolerance(counts, tolerate)


def judge_each(
    counts: MapCounts, tolerate: Tolerate | None, before: MapCounts, before_ended: str | None
) -> MapEnd | None:
    """The same for `each`: `before` has the counts of the step that it names, `before_ended` the state that ended it.

    Beyond the tolerance of that step, items wait for those that failed there, and the step is BLOCKED.
    """
    if before_ended is None or counts.waiting or counts.active:
        return None
    if counts.succeeded + counts.failed < before.succeeded:
        return None
    return _by_tolerance(counts, tolerate) if before_ended == "SUCCEEDED" else "BLOCKED"


def describe_failures(step: str, counts: MapCounts, tolerate: Tolerate | None) -> str:
    """Why a mapped step failed, for people."""
    allowed = tolerated(counts.total, tolerate)
    items = "1 item" if counts.total == 1 else f"{counts.total:,} items"
    return f"{counts.failed:,} of {items} of step '{step}' failed, and {allowed:,} may fail."


def _by_tolerance(counts: MapCounts, tolerate: Tolerate | None) -> MapEnd:
    return "SUCCEEDED" if counts.failed <= tolerated(counts.total, tolerate) else "FAILED"


def _kind_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case dict():
            return "an object"
        case _:
            return type(value).__name__
