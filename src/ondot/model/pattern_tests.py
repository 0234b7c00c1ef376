"""The tests of one value that a pattern has: `prefix`, `numeric`, `wildcard` … (S11, W3).

A test sees one value that is no object and no list: a text, a number, true, false or null. Each takes time that grows
with the length of the text and no faster: there are no regular expressions, and a wildcard looks at each character of
the text once for each piece between stars that is being searched. Numbers are compared as numbers, whatever their
spelling: 1 is 1.0, and integers of any size are exact. true is not 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

import msgspec

MAX_TEXT: Final = 2_048
"""Characters of one text in a pattern."""
MAX_LIST: Final = 1_000
"""Entries of one list in a pattern."""
KINDS: Final = ("anything-but", "cidr", "equals-ignore-case", "exists", "numeric", "prefix", "suffix", "wildcard")

Test = Callable[[object], bool]

_LONGEST_ADDRESS: Final = 45
_SHOWN: Final = 80
_TRUE, _FALSE = ("true",), ("false",)
_OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    "=": lambda value, bound: value == bound,
    ">": lambda value, bound: value > bound,
    ">=": lambda value, bound: value >= bound,
    "<": lambda value, bound: value < bound,
    "<=": lambda value, bound: value <= bound,
}


class Wrong(Exception):
    """What is wrong with one entry of a pattern, and where in it."""

    def __init__(self, message: str, *path: str | int) -> None:
        super().__init__(message)
        self.message = message
        self.path = path


@dataclass(frozen=True, slots=True)
class ValueTest:
    """One test that is not an exact value, with what it wants in words."""

    test: Test
    wants: str
    count: int = 1


def exact_key(value: object) -> object:
    """What an exact value is looked up by: equal numbers have equal keys, and true is not 1."""
    if value is True:
        return _TRUE
    if value is False:
        return _FALSE
    return value


def shown(value: object) -> str:
    """A value as JSON, cut to what a sentence can hold."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def compile_test(kind: str, operand: object) -> ValueTest:
    """The test of one entry such as `{"prefix": "eu"}`; `exists` is the caller's. Raises Wrong."""
    match kind:
        case "prefix" | "suffix" | "equals-ignore-case" | "wildcard":
            return _text_test(kind, operand)
        case "anything-but":
            return _anything_but(operand)
        case "numeric":
            return _numeric(operand)
        case "cidr":
            return _cidr(operand)
        case _:
            close = get_close_matches(kind, KINDS, n=1)
            advice = f"Use `{close[0]}`." if close else f"Use one of {', '.join(f'`{known}`' for known in KINDS)}."
            raise Wrong(f"Unknown test {shown(kind)}. {advice}")


def require_text(value: object, what: str, *path: str | int) -> str:
    if not isinstance(value, str):
        raise Wrong(f"{what} takes a text, got {shown(value)}.", *path)
    if len(value) > MAX_TEXT:
        raise Wrong(f"{what} takes at most {MAX_TEXT:,} characters, got {len(value):,}.", *path)
    return value


def require_list(value: object, what: str, *path: str | int) -> list[object]:
    if not isinstance(value, list):
        raise Wrong(f"{what} takes a list, got {shown(value)}.", *path)
    if not value:
        raise Wrong(f"{what} takes at least one entry, got an empty list, which nothing can match.", *path)
    if len(value) > MAX_LIST:
        raise Wrong(f"{what} takes at most {MAX_LIST:,} entries, got {len(value):,}.", *path)
    return value


def _text_test(kind: str, operand: object) -> ValueTest:
    if kind in {"prefix", "suffix"} and isinstance(operand, dict):
        if list(operand) != ["equals-ignore-case"]:
            raise Wrong(f'`{kind}` takes a text or {{"equals-ignore-case": "…"}}, got {shown(operand)}.', kind)
        text = require_text(operand["equals-ignore-case"], "`equals-ignore-case`", kind, "equals-ignore-case")
        folded = text.casefold()
        if kind == "prefix":
            return ValueTest(
                lambda value: isinstance(value, str) and value.casefold().startswith(folded),
                f"a text that starts with {shown(text)}, in upper or lower case",
            )
        return ValueTest(
            lambda value: isinstance(value, str) and value.casefold().endswith(folded),
            f"a text that ends with {shown(text)}, in upper or lower case",
        )
    text = require_text(operand, f"`{kind}`", kind)
    match kind:
        case "prefix":
            return ValueTest(
                lambda value: isinstance(value, str) and value.startswith(text),
                f"a text that starts with {shown(text)}",
            )
        case "suffix":
            return ValueTest(
                lambda value: isinstance(value, str) and value.endswith(text), f"a text that ends with {shown(text)}"
            )
        case "wildcard":
            return ValueTest(_wildcard(text), f"a text like {shown(text)}")
        case _:
            folded = text.casefold()
            return ValueTest(
                lambda value: isinstance(value, str) and value.casefold() == folded,
                f"{shown(text)} in upper or lower case",
            )


def _anything_but(operand: object) -> ValueTest:
    """No value of the list, or no text with any of these prefixes, suffixes … A missing field is no match."""
    if isinstance(operand, dict):
        if len(operand) != 1 or (kind := next(iter(operand))) not in {
            "prefix",
            "suffix",
            "equals-ignore-case",
            "wildcard",
        }:
            raise Wrong(
                "`anything-but` takes values, or an object with one of `prefix`, `suffix`, `equals-ignore-case`, "
                f"`wildcard`, got {shown(operand)}.",
                "anything-but",
            )
        inner = operand[kind]
        entries = require_list(inner, f"`{kind}`", "anything-but", kind) if isinstance(inner, list) else [inner]
        try:
            tests = [_text_test(kind, entry) for entry in entries]
        except Wrong as wrong:
            raise Wrong(wrong.message, "anything-but", *wrong.path) from None
        excluded = tuple(test.test for test in tests)
        return ValueTest(
            lambda value: not any(test(value) for test in excluded),
            f"anything but {' or '.join(test.wants for test in tests[:3])}{' …' if len(tests) > 3 else ''}",
            len(tests),
        )
    values = require_list(operand, "`anything-but`", "anything-but") if isinstance(operand, list) else [operand]
    for place, value in enumerate(values):
        if isinstance(value, (dict, list)):
            raise Wrong(
                f"`anything-but` takes texts, numbers, true, false and null, got {shown(value)}.", "anything-but", place
            )
        if isinstance(value, str):
            require_text(value, "`anything-but`", "anything-but", place)
    keys = frozenset(map(exact_key, values))
    wants = " or ".join(shown(value) for value in values[:3]) + (" …" if len(values) > 3 else "")
    return ValueTest(lambda value: exact_key(value) not in keys, f"anything but {wants}")


def _numeric(operand: object) -> ValueTest:
    example = '`numeric` takes one or two comparisons, such as [">", 0] or [">=", 0, "<", 100]'
    if not isinstance(operand, list) or len(operand) not in {2, 4}:
        raise Wrong(f"{example}, got {shown(operand)}.", "numeric")
    pairs: list[tuple[str, float]] = []
    for place in range(0, len(operand), 2):
        operator, bound = operand[place], operand[place + 1]
        if not isinstance(operator, str) or operator not in _OPERATORS:
            raise Wrong(f"{example}; {shown(operator)} is none of =, >, >=, <, <=.", "numeric", place)
        if isinstance(bound, bool) or not isinstance(bound, (int, float)):
            raise Wrong(f"{example}; {shown(bound)} is not a number.", "numeric", place + 1)
        pairs.append((operator, bound))
    wants = " and ".join(f"{operator} {shown(bound)}" for operator, bound in pairs)
    (first, low), *rest = pairs
    compare = _OPERATORS[first]
    if not rest:
        return ValueTest(lambda value: _is_number(value) and compare(value, low), wants)  # type: ignore[arg-type]
    second, high = rest[0]
    if {first[0], second[0]} != {"<", ">"}:
        raise Wrong(f"{example}: of two comparisons one is > or >= and the other < or <=, got {wants}.", "numeric")
    bottom, top = (low, high) if first[0] == ">" else (high, low)
    if bottom > top or (bottom == top and (first, second) not in {(">=", "<="), ("<=", ">=")}):
        raise Wrong(f"`numeric`: no number is {wants}.", "numeric")
    other = _OPERATORS[second]
    return ValueTest(
        lambda value: _is_number(value) and compare(value, low) and other(value, high),  # type: ignore[arg-type]
        wants,
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and value is not True and value is not False


def _cidr(operand: object) -> ValueTest:
    text = require_text(operand, "`cidr`", "cidr")
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        raise Wrong(f'`cidr` takes a block of addresses, such as "10.0.0.0/24", got {shown(text)}.', "cidr") from None

    def is_within(value: object) -> bool:
        if not isinstance(value, str) or len(value) > _LONGEST_ADDRESS:
            return False
        try:
            address: IPv4Address | IPv6Address = ip_address(value)
        except ValueError:
            return False
        return address in network

    return ValueTest(is_within, f"an address of {text}")


def _wildcard(text: str) -> Test:
    """`*` is any text, also none; `\\*` a star and `\\\\` a backslash."""
    first, *others = _pieces(text)
    if not others:
        return lambda value: value == first
    *middle, last = others
    shortest = len(first) + sum(map(len, middle)) + len(last)

    def is_like(value: object) -> bool:
        if not isinstance(value, str) or len(value) < shortest:
            return False
        if not (value.startswith(first) and value.endswith(last)):
            return False
        # The leftmost place of each piece leaves the most room for the next, so there is nothing to try again.
        at, end = len(first), len(value) - len(last)
        for piece in middle:
            at = value.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return at <= end

    return is_like


def _pieces(text: str) -> list[str]:
    """The texts between the stars."""
    pieces, piece, at = [], "", 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
            if at == len(text) or text[at] not in "*\\":
                raise Wrong("`wildcard`: a backslash is followed by * or by a backslash.", "wildcard")
            piece += text[at]
        elif char == "*":
            if at + 1 < len(text) and text[at + 1] == "*":
                raise Wrong("`wildcard`: two stars in a row mean the same as one; write one.", "wildcard")
            pieces.append(piece)
            piece = ""
        else:
            piece += char
        at += 1
    return [*pieces, piece]
