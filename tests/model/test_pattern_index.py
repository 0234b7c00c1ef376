"""The index finds exactly the patterns that match, whatever was added and removed before."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ondot.model.pattern_index import PatternIndex, is_indexed
from ondot.model.patterns import compile_pattern
from tests.model.test_patterns import PATTERNS, VALUES
from tests.proves import proves

TYPES = st.sampled_from(["a", "b"])


@given(
    st.lists(st.tuples(st.integers(0, 5), TYPES, st.none() | PATTERNS), max_size=12), st.sets(st.integers(0, 5)), VALUES
)
@settings(max_examples=150, deadline=None)
@proves("S11")
def test_the_index_finds_what_trying_all_patterns_finds(
    added: list[tuple[int, str, dict[str, Any] | None]], removed: set[int], value: object
) -> None:
    index: PatternIndex[int] = PatternIndex()
    there: dict[int, tuple[str, Any]] = {}
    for name, type_, source in added:
        pattern = None if source is None else compile_pattern(source)
        index.add(name, type_, pattern)
        there[name] = type_, pattern
    for name in removed:
        index.remove(name)
        there.pop(name, None)
    assert len(index) == len(there)
    for wanted in ("a", "b", "c"):
        expected = {
            name
            for name, (type_, pattern) in there.items()
            if type_ == wanted and (not pattern or pattern.matches(value))
        }
        found = index.find(wanted, value)
        assert set(found) == expected
        assert len(found) == len(expected)
        unindexed = sum(type_ == wanted and not is_indexed(pattern) for type_, pattern in there.values())
        assert index.count_tries(wanted) == unindexed


@proves("S11")
def test_an_event_tries_few_of_ten_thousand_patterns_with_an_exact_value() -> None:
    index: PatternIndex[int] = PatternIndex()
    for n in range(10_000):
        source = {"source": ["/shop"], "data": {"customer": [n, f"c{n}"], "amount": [{"numeric": [">", 0]}]}}
        index.add(n, "paid", compile_pattern(source))
    assert index.count_tries("paid") == 0
    assert index.find("paid", {"source": "/shop", "data": {"customer": "c17", "amount": 1}}) == [17]
    assert sorted(index.find("paid", {"source": "/shop", "data": [{"customer": [17, "c18"], "amount": 1}]})) == [17, 18]
    assert index.find("paid", {"source": "/shop", "data": {"customer": True, "amount": 1}}) == []
