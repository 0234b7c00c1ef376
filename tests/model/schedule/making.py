"""Short ways to make the schedules that these tests are about, and Hypothesis strategies for cron fields."""

from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Literal

from hypothesis import strategies as st

from ondot.model.schedule import Cron, Dst, Schedule, next_fire

if TYPE_CHECKING:
    from collections.abc import Iterator

# The text of a field and the values it means.
Field = tuple[str, frozenset[int]]

Gap = Literal["shift", "skip"]
Fold = Literal["first", "last", "both"]


def cron(expression: str, zone: str = "UTC", gap: Gap = "shift", fold: Fold = "first") -> Schedule:
    return Schedule(when=Cron(expression=expression, timezone=zone, dst=Dst(gap=gap, fold=fold)))


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def fires_after(schedule: Schedule, after: datetime) -> "Iterator[datetime]":
    fire_at = next_fire(schedule, after)
    while fire_at is not None:
        yield fire_at
        fire_at = next_fire(schedule, fire_at)


def next_fires(schedule: Schedule, after: str, n: int) -> list[str]:
    return [f"{fire_at:%Y-%m-%d %H:%M:%S}" for fire_at in islice(fires_after(schedule, utc(after)), n)]


@st.composite
def _terms(draw: st.DrawFn, low: int, high: int) -> Field:
    kind = draw(st.sampled_from(["value", "range", "stepped range", "step"]))
    first = draw(st.integers(low, high))
    if kind == "value":
        return str(first), frozenset({first})
    step = draw(st.integers(1, 20))
    if kind == "step":
        return f"*/{step}", frozenset(range(low, high + 1, step))
    last = draw(st.integers(first, high))
    if kind == "range":
        return f"{first}-{last}", frozenset(range(first, last + 1))
    return f"{first}-{last}/{step}", frozenset(range(first, last + 1, step))


def fields(low: int, high: int) -> st.SearchStrategy[Field]:
    """`*`, or a list of one to three terms."""
    lists = st.lists(_terms(low, high), min_size=1, max_size=3).map(
        lambda terms: (
            ",".join(text for text, _ in terms),
            frozenset().union(*(values for _, values in terms)),
        )
    )
    return st.one_of(st.just(("*", frozenset(range(low, high + 1)))), lists)
