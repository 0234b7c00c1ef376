"""Patterns of EventBridge: what matches, what is refused, and that no pattern can take long."""

import ipaddress
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ondot.model import patterns
from ondot.model.errors import InvalidBody
from ondot.model.patterns import compile_pattern, keys_at
from tests.proves import proves

BIG = 2**70


def matches(pattern: object, value: object) -> bool:
    return compile_pattern(pattern).matches(value)


# Each line: pattern of the field `f`, values that match, values that do not. `...` is a field that is missing.
CASES: list[tuple[list[Any], list[Any], list[Any]]] = [
    (["a"], ["a", ["b", "a"], [["a"]]], ["A", "ab", "", None, 1, ..., [], {}, {"f": "a"}, ["b"]]),
    ([""], [""], [None, ..., " ", []]),
    ([None], [None, [None]], ["null", "", ..., 0, False, []]),
    ([True], [True], [1, "true", False, ...]),
    ([1], [1, 1.0, [2, 1]], [True, "1", 1.5, ...]),
    ([0], [0, -0.0], [False, None, ...]),
    ([BIG], [BIG], [BIG + 1, float(BIG) * 2, "x"]),
    ([0.1], [0.1, 1e-1], [0.2, "0.1"]),
    (["a", 2, None], ["a", 2, None], ["b", 3, ...]),
    ([{"prefix": "eu"}], ["eu", "eu-1"], ["EU", "e", "xeu", 1, None, ...]),
    ([{"prefix": ""}], ["", "x"], [1, ...]),
    ([{"suffix": ".png"}], [".png", "a.png"], ["a.PNG", "png", ...]),
    ([{"prefix": {"equals-ignore-case": "eu"}}], ["EU-1", "Eu"], ["e", "xEU"]),
    ([{"suffix": {"equals-ignore-case": ".PNG"}}], ["a.png", "A.Png"], ["png.a"]),
    ([{"equals-ignore-case": "Straße"}], ["STRASSE", "straße"], ["strase", 1]),
    ([{"anything-but": "a"}], ["b", "", 1, None, True, ["a", "b"]], ["a", ["a"], ..., [], {}]),
    ([{"anything-but": 1}], [2, "1", True], [1, 1.0, ...]),
    ([{"anything-but": ["a", 1, None]}], ["b", 2, False], ["a", 1, None, ...]),
    ([{"anything-but": {"prefix": "eu"}}], ["us", 1], ["eu", "eu-1", ...]),
    ([{"anything-but": {"prefix": ["eu", "us"]}}], ["ap"], ["eu", "us-1", ...]),
    ([{"anything-but": {"suffix": ".png"}}], ["a.gif"], ["a.png"]),
    ([{"anything-but": {"equals-ignore-case": ["a", "b"]}}], ["c"], ["A", "b"]),
    ([{"anything-but": {"wildcard": "*/lib/*"}}], ["/a/b"], ["/a/lib/b"]),
    ([{"numeric": [">=", 100]}], [100, 100.0, BIG], [99.99, "100", True, None, ...]),
    ([{"numeric": [">", 0, "<=", 5]}], [0.1, 5], [0, 5.1]),
    ([{"numeric": ["<", 5, ">", 0]}], [1], [0, 5]),
    ([{"numeric": ["=", 3]}], [3, 3.0], [4]),
    ([{"numeric": [">", 2**53]}], [2**53 + 1], [2**53]),
    ([{"exists": True}], ["", None, 0, False, [1]], [..., [], {}, {"x": 1}]),
    ([{"exists": False}], [..., [], {}, {"x": 1}], ["", None, 0, [1]]),
    (["a", {"exists": False}], ["a", ...], ["b"]),
    ([{"cidr": "10.0.0.0/24"}], ["10.0.0.1", "10.0.0.255"], ["10.0.1.0", "::1", "10.0.0", "x" * 10_000, 10, ...]),
    ([{"cidr": "2001:db8::/32"}], ["2001:db8::1"], ["2001:db9::1", "10.0.0.1"]),
    ([{"wildcard": "a*b"}], ["ab", "axxb", "a*b"], ["a", "b", "aab ", "ba"]),
    ([{"wildcard": "*"}], ["", "x"], [1, ...]),
    ([{"wildcard": "*aba*aba*"}], ["abaaba", "xaba-abay"], ["aba", "ababa"]),
    ([{"wildcard": "ab*ba"}], ["abba", "ab-ba"], ["aba"]),
    ([{"wildcard": "a\\*\\\\*"}], ["a*\\", "a*\\x"], ["ab\\", "a*"]),
    ([{"wildcard": "ab"}], ["ab"], ["abc"]),
]


@pytest.mark.parametrize(("tests", "yes", "no"), CASES, ids=[str(case[0])[:40] for case in CASES])
@proves("S11")
def test_a_field_matches_as_in_eventbridge(tests: list[Any], yes: list[Any], no: list[Any]) -> None:
    for value in yes:
        assert matches({"f": tests}, {} if value is ... else {"f": value}), value
    for value in no:
        assert not matches({"f": tests}, {} if value is ... else {"f": value}), value


@proves("S11")
def test_one_object_of_a_list_must_match_all_fields_of_a_pattern() -> None:
    pattern = {"lines": {"sku": ["a"], "count": [{"numeric": [">", 1]}]}}
    assert matches(pattern, {"lines": [{"sku": "b", "count": 9}, {"sku": "a", "count": 2}]})
    assert not matches(pattern, {"lines": [{"sku": "b", "count": 9}, {"sku": "a", "count": 1}]})
    assert matches(pattern, {"lines": [[{"sku": "a", "count": 2}]]})
    assert matches(pattern, {"lines": {"sku": ["x", "a"], "count": 2}})


@proves("S11")
def test_a_field_that_must_be_missing_is_missing_in_every_object_of_a_list() -> None:
    pattern = {"lines": {"error": [{"exists": False}]}}
    values: list[object] = [
        {},
        {"lines": []},
        {"lines": 1},
        {"lines": [1]},
        {"lines": {"x": 1}},
        {"lines": [{"x": 1}, 2]},
    ]
    for value in values:
        assert matches(pattern, value), value
    assert not matches(pattern, {"lines": [{"x": 1}, {"error": 1}]})
    both = {"lines": {"error": [{"exists": False}], "sku": ["a"]}}
    assert matches(both, {"lines": [{"sku": "a"}, {"sku": "b", "error": 1}]})


@proves("S11")
def test_one_pattern_of_an_or_must_match_beside_the_other_fields() -> None:
    pattern = {"a": ["x"], "$or": [{"b": [1]}, {"c": {"d": [{"exists": False}]}, "e": [2]}]}
    assert matches(pattern, {"a": "x", "b": 1})
    assert matches(pattern, {"a": "x", "e": 2})
    assert not matches(pattern, {"a": "x", "e": 2, "c": {"d": 1}})
    assert not matches(pattern, {"a": "y", "b": 1})
    assert matches({"data": {"$or": [{"b": [1]}, {"c": [1]}]}}, {"data": [{"x": 1}, {"c": 1}]})


# What is refused, where, and a word of the sentence.
REFUSED: list[tuple[object, str, str]] = [
    ([], "", "object"),
    ({}, "", "at least one field"),
    ({"a": {}}, "/a", "at least one field"),
    ({"a": "x"}, "/a", 'write ["x"]'),
    ({"a": []}, "/a", "empty"),
    ({"a": [[1]]}, "/a/0", "got a list"),
    ({"a/b": {"c~d": ["ok", {"prefx": "x"}]}}, "/a~1b/c~0d/1", "`prefix`"),
    ({"a": [{"prefix": "x", "suffix": "y"}]}, "/a/0", "one test"),
    ({"a": [{}]}, "/a/0", "one test"),
    ({"a": [{"prefix": 1}]}, "/a/0/prefix", "takes a text"),
    ({"a": [{"prefix": {"wildcard": "x"}}]}, "/a/0/prefix", "equals-ignore-case"),
    ({"a": [{"exists": "yes"}]}, "/a/0/exists", "true or false"),
    ({"a": [{"numeric": [">"]}]}, "/a/0/numeric", "one or two comparisons"),
    ({"a": [{"numeric": ["~", 1]}]}, "/a/0/numeric/0", "none of"),
    ({"a": [{"numeric": [">", "1"]}]}, "/a/0/numeric/1", "not a number"),
    ({"a": [{"numeric": [">", True]}]}, "/a/0/numeric/1", "not a number"),
    ({"a": [{"numeric": [">", 5, "<", 5]}]}, "/a/0/numeric", "no number"),
    ({"a": [{"numeric": [">", 1, ">", 2]}]}, "/a/0/numeric", "one is >"),
    ({"a": [{"numeric": ["=", 1, "<", 2]}]}, "/a/0/numeric", "one is >"),
    ({"a": [{"cidr": "10.0.0.0/33"}]}, "/a/0/cidr", "10.0.0.0/24"),
    ({"a": [{"wildcard": "a**b"}]}, "/a/0/wildcard", "two stars"),
    ({"a": [{"wildcard": "a\\n"}]}, "/a/0/wildcard", "backslash"),
    ({"a": [{"anything-but": []}]}, "/a/0/anything-but", "at least one"),
    ({"a": [{"anything-but": [["x"]]}]}, "/a/0/anything-but/0", "texts, numbers"),
    ({"a": [{"anything-but": {"numeric": [">", 1]}}]}, "/a/0/anything-but", "`prefix`"),
    ({"a": [{"anything-but": {"wildcard": ["a**"]}}]}, "/a/0/anything-but/wildcard", "two stars"),
    ({"$or": {}}, "/$or", "takes a list"),
    ({"$or": []}, "/$or", "at least one"),
    ({"$or": [{"a": ["x"]}, 1]}, "/$or/1", "object"),
    ({"a": ["x" * 3_000]}, "/a/0", "2,048 characters"),
    ({"a": list(range(1_001))}, "/a", "1,000 entries"),
    ({"a": [{"prefix": str(n)} for n in range(101)]}, "/a", "100 tests"),
    ({"a": [{"anything-but": {"wildcard": [f"{n}*" for n in range(101)]}}]}, "/a", "100 tests"),
    ({str(n): list(range(1_000)) for n in range(5)}, "/4", "5,000"),
]


@pytest.mark.parametrize(("pattern", "pointer", "words"), REFUSED, ids=[str(case[0])[:40] for case in REFUSED])
@proves("S11")
def test_a_wrong_pattern_is_refused_with_a_pointer_and_a_sentence(pattern: object, pointer: str, words: str) -> None:
    with pytest.raises(InvalidBody) as refusal:
        compile_pattern(pattern, "/schedule")
    fault = refusal.value.faults[0]
    assert fault.pointer == f"/schedule{pointer}"
    assert words in fault.message
    assert fault.message.endswith((".", "]."))


@proves("S11")
def test_all_errors_of_a_pattern_are_reported_at_once_up_to_twenty() -> None:
    with pytest.raises(InvalidBody) as refusal:
        compile_pattern({"a": "x", "b": [{"cidr": "x"}], "c": {}})
    assert [fault.pointer for fault in refusal.value.faults] == ["/a", "/b/0/cidr", "/c"]
    with pytest.raises(InvalidBody) as refusal:
        compile_pattern({str(n): n for n in range(100)})
    assert len(refusal.value.faults) == patterns.MAX_FAULTS


@proves("S11")
def test_a_pattern_that_is_too_deep_is_refused_before_it_is_walked() -> None:
    pattern: object = ["x"]
    for _ in range(50_000):
        pattern = {"a": pattern}
    with pytest.raises(InvalidBody, match="32 objects deep"):
        compile_pattern(pattern)
    alternatives: object = {"a": ["x"]}
    for _ in range(50_000):
        alternatives = {"$or": [alternatives]}
    with pytest.raises(InvalidBody, match="32 objects deep"):
        compile_pattern(alternatives)


@proves("S11")
def test_a_mismatch_names_the_field_what_it_had_and_what_is_wanted() -> None:
    pattern = compile_pattern({"data": {"amount": [{"numeric": [">=", 100]}], "region": ["eu", {"prefix": "us"}]}})
    assert str(pattern.why_not({"data": {"amount": 50}})) == "data.amount was 50, wanted >= 100"
    reason = str(pattern.why_not({"data": {"amount": 500}}))
    assert reason == 'data.region was missing, wanted "eu" or a text that starts with "us"'
    assert pattern.why_not({"data": {"amount": 500, "region": "eu"}}) is None


@proves("S11", "W3")
def test_a_pattern_states_which_fields_it_looks_at_and_which_an_index_can_use() -> None:
    pattern = compile_pattern({"a": {"b": ["x", 1]}, "c": [{"prefix": "p"}], "$or": [{"d": [1]}, {"a": {"e": [True]}}]})
    assert set(pattern.paths()) == {("a", "b"), ("c",), ("d",), ("a", "e")}
    (equality,) = pattern.equalities()
    assert equality.path == ("a", "b")
    assert set(keys_at({"a": [{"b": ["y", 1.0]}, {"b": True}, 3]}, ("a", "b"))) & equality.keys == {1}


class CountedText(str):
    """A text that counts how many characters `find` may have looked at."""

    looks = 0

    def find(self, *args: Any) -> int:
        found = super().find(*args)
        end = args[2] if found < 0 else found + len(args[0])
        CountedText.looks += end - args[1]
        return found


@pytest.mark.parametrize(
    "wildcard", ["*a*a*a*a*a*a*a*a*b", "*a" * 1_000 + "*b", "*" + "a" * 1_000 + "*b", "*aab*aab*b"]
)
@proves("S11")
def test_a_hostile_wildcard_looks_at_each_character_once(wildcard: str) -> None:
    CountedText.looks = 0
    text = CountedText("a" * 200_000)
    assert not matches({"f": [{"wildcard": wildcard.removesuffix("b") + "c*b"}]}, {"f": text})
    assert not matches({"f": [{"wildcard": wildcard + "*"}]}, {"f": text})
    assert CountedText.looks <= 2 * len(text)


# An independent matcher, as plain as possible: wildcards by a table, numbers as fractions, lists spread out first.


def naive_wildcard(wildcard: str, text: str) -> bool:
    tokens: list[str | None] = []
    escaped = False
    for char in wildcard:
        if escaped:
            tokens.append(char)
            escaped = False
        elif char == "\\":
            escaped = True
        else:
            tokens.append(None if char == "*" else char)
    reachable = {0}
    for token in tokens:
        if token is None:
            reachable = set(range(min(reachable), len(text) + 1)) if reachable else set()
        else:
            reachable = {at + 1 for at in reachable if at < len(text) and text[at] == token}
    return len(text) in reachable


def naive_equal(left: object, right: object) -> bool:
    if isinstance(left, bool) or isinstance(right, bool) or left is None or right is None:
        return left is right
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return Fraction(left) == Fraction(right)
    return type(left) is type(right) and left == right


def naive_test(entry: Any, value: Any) -> bool:
    if not isinstance(entry, dict):
        return naive_equal(entry, value)
    ((kind, operand),) = entry.items()
    if kind == "anything-but":
        if isinstance(operand, dict):
            ((inner, texts),) = operand.items()
            return all(not naive_test({inner: text}, value) for text in (texts if isinstance(texts, list) else [texts]))
        return all(not naive_equal(one, value) for one in (operand if isinstance(operand, list) else [operand]))
    if kind == "exists":
        return bool(operand)
    if kind == "numeric":
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        sign = [Fraction(value) - Fraction(bound) for bound in operand[1::2]]
        wanted = {"=": [0], ">": [1], "<": [-1], ">=": [0, 1], "<=": [0, -1]}
        return all((s > 0) - (s < 0) in wanted[op] for s, op in zip(sign, operand[::2], strict=True))
    if not isinstance(value, str):
        return False
    if kind == "cidr":
        try:
            return ipaddress.ip_address(value) in ipaddress.ip_network(operand, strict=False)
        except ValueError:
            return False
    if kind == "wildcard":
        return naive_wildcard(operand, value)
    if isinstance(operand, dict):
        (operand,) = operand.values()
        value, operand = value.casefold(), operand.casefold()
    if kind == "equals-ignore-case":
        return bool(value.casefold() == operand.casefold())
    part = value[: len(operand)] if kind == "prefix" else value[len(value) - len(operand) :]
    return bool(len(operand) <= len(value) and part == operand)


def spread(value: Any) -> list[Any]:
    return [single for entry in value for single in spread(entry)] if isinstance(value, list) else [value]


def naive_matches(pattern: Any, value: Any) -> bool:
    objects = [single for single in spread(value) if isinstance(single, dict)]
    if not isinstance(value, list) and not objects:
        objects = [{}]

    def is_met(fields: dict[str, Any]) -> bool:
        for name, content in pattern.items():
            if name == "$or":
                if not any(naive_matches(choice, fields) for choice in content):
                    return False
            elif isinstance(content, dict):
                if not naive_matches(content, fields.get(name)):
                    return False
            else:
                singles = [one for one in spread(fields.get(name, [])) if not isinstance(one, dict)]
                if singles:
                    if not any(naive_test(entry, one) for entry in content for one in singles):
                        return False
                elif {"exists": False} not in content:
                    return False
        return True

    return all(map(is_met, objects)) if is_met({}) else any(map(is_met, objects))


NAMES = st.sampled_from("abc")
TEXTS = st.text("aAbé*\\ß", max_size=4)
NUMBERS = st.one_of(st.integers(-3, 3), st.sampled_from([0.5, 1.0, -2.0, BIG, BIG + 1, 1e20]))
SINGLES = st.one_of(TEXTS, NUMBERS, st.booleans(), st.none(), st.sampled_from(["10.0.0.1", "10.0.1.1", "::1"]))
VALUES = st.recursive(
    SINGLES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=12,
)
WILDCARDS = st.lists(st.sampled_from(["*", "a", "b", "\\*", "\\\\", "A"]), max_size=6).map(
    lambda parts: "".join(part for n, part in enumerate(parts) if part != "*" or n == 0 or parts[n - 1] != "*")
)
FOLDED = st.builds(lambda text: {"equals-ignore-case": text}, TEXTS)
RANGES = st.tuples(st.sampled_from([">", ">="]), NUMBERS, st.sampled_from(["<", "<="]), NUMBERS)
TESTS = st.one_of(
    SINGLES,
    st.builds(lambda kind, text: {kind: text}, st.sampled_from(["prefix", "suffix", "equals-ignore-case"]), TEXTS),
    st.builds(lambda kind, text: {kind: text}, st.sampled_from(["prefix", "suffix"]), FOLDED),
    st.builds(lambda text: {"wildcard": text}, WILDCARDS),
    st.builds(lambda exists: {"exists": exists}, st.booleans()),
    st.builds(lambda op, n: {"numeric": [op, n]}, st.sampled_from(["=", ">", ">=", "<", "<="]), NUMBERS),
    RANGES.filter(lambda r: r[1] < r[3]).map(lambda r: {"numeric": list(r)}),
    st.builds(lambda values: {"anything-but": values}, st.one_of(SINGLES, st.lists(SINGLES, min_size=1, max_size=3))),
    st.builds(lambda kind, texts: {"anything-but": {kind: texts}}, st.sampled_from(["prefix", "suffix"]), TEXTS),
    st.builds(lambda texts: {"anything-but": {"wildcard": texts}}, st.lists(WILDCARDS, min_size=1, max_size=2)),
    st.sampled_from([{"cidr": "10.0.0.0/24"}, {"cidr": "::/8"}]),
)
LEAVES = st.lists(TESTS, min_size=1, max_size=3)
PATTERNS = st.recursive(
    st.dictionaries(NAMES, LEAVES, min_size=1, max_size=3),
    lambda inner: st.one_of(
        st.dictionaries(NAMES, st.one_of(LEAVES, inner), min_size=1, max_size=3),
        st.builds(lambda choices, more: more | {"$or": choices}, st.lists(inner, min_size=1, max_size=3), inner),
    ),
    max_leaves=8,
)


@given(PATTERNS, VALUES)
@settings(max_examples=300, deadline=None)
@proves("S11")
def test_a_pattern_matches_what_an_independent_matcher_says(pattern: dict[str, Any], value: object) -> None:
    compiled = compile_pattern(pattern)
    assert compiled.matches(value) == naive_matches(pattern, value)
    assert (compiled.why_not(value) is None) == compiled.matches(value)


@given(PATTERNS, VALUES)
@settings(max_examples=150, deadline=None)
@proves("S11")
def test_a_match_has_every_value_that_the_index_looks_up(pattern: dict[str, Any], value: object) -> None:
    compiled = compile_pattern(pattern)
    if compiled.matches(value):
        for equality in compiled.equalities():
            assert not equality.keys.isdisjoint(keys_at(value, equality.path))
