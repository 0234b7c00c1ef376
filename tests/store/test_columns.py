"""Columns as arguments: a value that is the same for all rows is sent once, and no other is."""

from hypothesis import given
from hypothesis import strategies as st

from ondot.store.columns import collapse_equal
from tests.proves import proves


@given(st.lists(st.one_of(st.none(), st.integers(0, 2))))
@proves("N2")
def test_a_collapsed_column_filled_up_from_its_first_entry_is_the_original(values: list[int | None]) -> None:
    sent = collapse_equal(values)
    first = sent[0] if sent else None
    filled = sent if len(sent) == len(values) else [first] * len(values)
    assert filled == values


@proves("N2")
def test_equal_entries_are_sent_once_and_absent_ones_not_at_all() -> None:
    assert collapse_equal(["a"] * 1000) == ["a"]
    assert collapse_equal([None] * 1000) == []
    assert collapse_equal(["a", None]) == ["a", None]
