"""Which lane of a tenant is served next: better classes first, and no lane waits longer than its bound."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from ondot.model.execution import PriorityClass
from ondot.model.fairness import PENALTY_S, Lane, Waiting, order_lanes
from ondot.model.ids import DEFAULT_TENANT, PoolNo
from tests.proves import proves

NOON = datetime(2031, 3, 3, 12, tzinfo=UTC)


def waiting(priority_class: PriorityClass, since_s: float) -> Waiting:
    """A lane of that class whose head has waited that long."""
    return Waiting(Lane(PoolNo(1), priority_class, DEFAULT_TENANT), NOON - timedelta(seconds=since_s))


lanes = st.lists(
    st.builds(waiting, st.sampled_from(PriorityClass), st.floats(0, 300)),
    unique_by=lambda entry: entry.lane.priority_class,
)


@proves("E2")
def test_every_class_has_a_bound_and_a_better_class_has_no_longer_one() -> None:
    penalties = [PENALTY_S[priority_class] for priority_class in PriorityClass]
    assert penalties == sorted(penalties)


@proves("E2")
def test_the_better_class_goes_first_if_lanes_have_waited_equally_long() -> None:
    entries = [waiting(priority_class, 5) for priority_class in reversed(PriorityClass)]
    assert [lane.priority_class for lane in order_lanes(entries)] == list(PriorityClass)


@given(lanes)
@proves("E2", "L6")
def test_a_lane_is_overtaken_only_by_work_within_its_bound(entries: list[Waiting]) -> None:
    ready_at = {entry.lane: entry.ready_at for entry in entries}
    order = order_lanes(entries)
    assert sorted(order, key=str) == sorted(ready_at, key=str)
    for place, lane in enumerate(order):
        for earlier in order[:place]:
            bound = PENALTY_S[lane.priority_class] - PENALTY_S[earlier.priority_class]
            assert (ready_at[earlier] - ready_at[lane]).total_seconds() <= bound


@given(lanes, st.randoms())
@proves("E2")
def test_the_order_does_not_depend_on_the_order_of_the_survey(entries: list[Waiting], random: object) -> None:
    shuffled = list(entries)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert order_lanes(shuffled) == order_lanes(entries)
