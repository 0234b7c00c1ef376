"""Windows, tolerance and ends of mapped steps (W7)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondot.model.workflow.maps import (
    PORTION,
    WINDOW,
    MapCounts,
    NotMappable,
    describe_failures,
    is_stuck,
    judge,
    judge_each,
    read_list,
    room,
    split,
    tolerated,
)
from ondot.model.workflow.spec import MAX_ITEMS, Tolerate
from tests.proves import proves


@proves("W7")
@pytest.mark.parametrize(
    ("value", "kind"),
    [(None, "null"), (True, "true"), (3, "a number"), ("abc", "a string"), ({"a": 1}, "an object")],
)
def test_a_value_that_is_no_list_cannot_be_mapped(value: object, kind: str) -> None:
    with pytest.raises(NotMappable, match=f"`map.over` of step 'process' must be a list, got {kind}"):
        read_list("process", value)


@proves("W7")
def test_a_list_has_at_most_100_000_items() -> None:
    assert len(read_list("process", [0] * MAX_ITEMS)) == 100_000
    with pytest.raises(NotMappable, match="has 100,001 items, and a map has 100,000 at most"):
        read_list("process", [0] * (MAX_ITEMS + 1))


@proves("W7")
@given(st.integers(0, 5 * PORTION))
def test_portions_have_every_item_once_in_order(count: int) -> None:
    portions = list(split(range(count)))
    assert [item for _, portion in portions for item in portion] == list(range(count))
    assert [first for first, _ in portions] == list(range(0, count, PORTION))


@proves("W7")
def test_the_window_is_bounded_by_concurrency_and_by_a_constant() -> None:
    assert room(MapCounts(total=100_000), None) == WINDOW
    assert room(MapCounts(total=100_000), 100_000) == WINDOW
    assert room(MapCounts(total=100, active=10), 50) == 40
    # Lowered while it runs: nothing is taken back.
    assert room(MapCounts(total=100, active=10), 5) == 0


@proves("W7")
@pytest.mark.parametrize(
    ("total", "tolerate", "may_fail"),
    [
        (100, None, 0),
        (100, Tolerate(count=3), 3),
        (100, Tolerate(percent=29), 29),
        (1_000, Tolerate(percent=0.1), 1),
        (99, Tolerate(percent=1), 0),
        (0, Tolerate(percent=100), 0),
        (7, Tolerate(percent=100), 7),
    ],
)
def test_how_many_items_may_fail(total: int, tolerate: Tolerate | None, may_fail: int) -> None:
    assert tolerated(total, tolerate) == may_fail


@proves("W7")
def test_a_map_ends_when_nothing_is_left_and_by_its_tolerance() -> None:
    assert judge(MapCounts(total=2, cursor=2, active=1, succeeded=1), None) is None
    assert judge(MapCounts(total=2, cursor=1, succeeded=1), None) is None
    assert judge(MapCounts(total=2, cursor=2, waiting=1, succeeded=1), None) is None
    assert judge(MapCounts(total=2, cursor=2, succeeded=2), None) == "SUCCEEDED"
    over = MapCounts(total=2, cursor=2, succeeded=1, failed=1)
    assert judge(over, None) == "FAILED"
    assert judge(over, Tolerate(count=1)) == "SUCCEEDED"
    assert describe_failures("process", over, None) == "1 of 2 items of step 'process' failed, and 0 may fail."


@proves("W7")
def test_a_step_with_each_ends_after_the_step_before_it() -> None:
    before = MapCounts(total=3, cursor=3, succeeded=2, failed=1)
    done = MapCounts(total=3, cursor=3, succeeded=2)
    assert judge_each(done, None, before, None) is None
    assert judge_each(MapCounts(total=3, cursor=3, succeeded=1), None, before, "SUCCEEDED") is None
    # The item that failed before it is within the tolerance there, and is skipped here.
    assert judge_each(done, None, before, "SUCCEEDED") == "SUCCEEDED"
    # Beyond it, it waits for a person.
    assert judge_each(done, None, before, "FAILED") == "BLOCKED"
    assert judge_each(MapCounts(total=3, cursor=3, succeeded=1, failed=1), None, before, "SUCCEEDED") == "FAILED"


@proves("W8")
def test_a_map_whose_active_items_are_all_blocked_child_runs_does_not_move() -> None:
    assert is_stuck(MapCounts(total=3, cursor=3, active=2, stuck=2, succeeded=1), None)
    assert not is_stuck(MapCounts(total=3, cursor=3, active=2, stuck=1, succeeded=1), None)
    assert not is_stuck(MapCounts(total=3, cursor=2, active=2, stuck=2), None)
    # The window is full of them, so that the third is never made.
    assert is_stuck(MapCounts(total=3, cursor=2, active=2, stuck=2), 2)
    assert not is_stuck(MapCounts(total=3, cursor=3, succeeded=3), None)
