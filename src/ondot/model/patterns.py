"""Patterns over JSON, as EventBridge has them (S11): filters of events, and `if` of a workflow's steps (W3).

    {"data": {"amount": [{"numeric": [">=", 100]}], "region": ["eu", {"prefix": "us-"}]}}

Every field of a pattern must match: an object goes one level down, a list holds alternatives of which one must match.
`$or` is a list of patterns of which one must match, beside the other fields. A pattern is compiled once and then only
looks things up: no regular expressions and no loops that a pattern could write.

Lists in the value: a field matches if one of the list's values does, however deep. If a pattern goes into a list of
objects, one and the same object must match all of it; a pattern that is met by fields that are missing (`exists: false`
alone) must be met by all of them. A missing field matches nothing but `exists: false`; null is a value. `exists` asks
for values: an object, an empty object and an empty list are none.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from ondot.model.errors import Fault, InvalidBody
from ondot.model.pattern_tests import (
    MAX_LIST,
    MAX_TEXT,
    Test,
    Wrong,
    compile_test,
    exact_key,
    require_list,
    require_text,
    shown,
)

MAX_DEPTH: Final = 32
MAX_VALUES: Final = 5_000
"""Fields, values and tests of one pattern."""
MAX_TESTS: Final = 100
"""Tests of one pattern that are not exact values: each is tried in turn, exact values are looked up at once."""
MAX_FAULTS: Final = 20

OR: Final = "$or"
_MISSING: Final = object()
_NOTHING: Final[dict[str, object]] = {}


class Equality(NamedTuple):
    """A field that must have one of these values (`exact_key`): what an index can look a pattern up by."""

    path: tuple[str, ...]
    keys: frozenset[object]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Why a value does not match: the first field that does not, what it has, and what the pattern wants."""

    path: tuple[str, ...]
    found: str
    wants: str

    def __str__(self) -> str:
        return f"{'.'.join(self.path)} {self.found}, wanted {self.wants}"


@dataclass(frozen=True, slots=True)
class _Leaf:
    """The alternatives of one field."""

    keys: frozenset[object]
    tests: tuple[Test, ...]
    matches_present: bool
    matches_missing: bool
    wants: str

    def matches(self, value: object) -> bool:
        if isinstance(value, list):
            found = False
            for single in flatten(value):
                if self.matches_single(single):
                    return True
                found = True
            return not found and self.matches_missing
        if value is _MISSING or isinstance(value, dict):
            return self.matches_missing
        return self.matches_single(value)

    def matches_single(self, value: object) -> bool:
        if self.matches_present or exact_key(value) in self.keys:
            return True
        return any(test(value) for test in self.tests)


@dataclass(frozen=True, slots=True)
class _Fields:
    """An object of a pattern: all its fields and one of each group of alternatives (`$or`)."""

    leaves: tuple[tuple[str, _Leaf], ...]
    objects: tuple[tuple[str, "_Fields"], ...]
    choices: tuple[tuple["_Fields", ...], ...]
    matches_missing: bool

    def matches(self, value: object) -> bool:
        if isinstance(value, list):
            elements = (element for element in flatten_objects(value))
            if self.matches_missing:
                return all(self.matches_object(element) for element in elements)
            return any(self.matches_object(element) for element in elements)
        return self.matches_object(value if isinstance(value, dict) else _NOTHING)

    def matches_object(self, value: dict[str, object]) -> bool:
        for name, leaf in self.leaves:
            if not leaf.matches(value.get(name, _MISSING)):
                return False
        for name, fields in self.objects:
            if not fields.matches(value.get(name, _MISSING)):
                return False
        return all(any(choice.matches_object(value) for choice in group) for group in self.choices)


class Pattern:
    """A compiled pattern. It holds no state that matching changes."""

    __slots__ = ("_root", "cost", "source")

    def __init__(self, root: _Fields, source: dict[str, object], cost: int) -> None:
        self._root = root
        self.source = source
        self.cost = cost
        """Fields and tests: how much it may look at for each value of what it is matched with."""

    def matches(self, value: object) -> bool:
        return self._root.matches(value)

    def equalities(self) -> tuple[Equality, ...]:
        """Fields that every match must have with one of a few values. A value may match them and not the pattern."""
        return tuple(_equalities(self._root, ()))

    def paths(self) -> tuple[tuple[str, ...], ...]:
        """Every field that the pattern looks at, those of `$or` too."""
        return tuple(dict.fromkeys(_paths(self._root, ())))

    def why_not(self, value: object) -> Mismatch | None:
        """The first field that does not match; None if all do."""
        return _why_not(self._root, value, ())


def compile_pattern(source: object, pointer: str = "") -> Pattern:
    """The pattern of a JSON value at `pointer` of its body. Raises InvalidBody with a fault for each error."""
    compiler = _Compiler(pointer)
    root = compiler.fields(source, (), 1)
    if compiler.faults:
        count = len(compiler.faults)
        raise InvalidBody(
            compiler.faults[0].message if count == 1 else f"The pattern has {count} errors.",
            faults=tuple(compiler.faults),
        )
    assert isinstance(source, dict)
    return Pattern(root, source, compiler.fields_met + compiler.tests)


def flatten(values: list[object]) -> Iterator[object]:
    """The single values of a list and of the lists in it; objects are left out."""
    for value in values:
        if isinstance(value, list):
            yield from flatten(value)
        elif not isinstance(value, dict):
            yield value


def flatten_objects(values: list[object]) -> Iterator[dict[str, object]]:
    for value in values:
        if isinstance(value, dict):
            yield value
        elif isinstance(value, list):
            yield from flatten_objects(value)


def keys_at(value: object, path: tuple[str, ...], at: int = 0) -> Iterator[object]:
    """The keys (`exact_key`) of all single values at a path, in lists too."""
    if at < len(path):
        if isinstance(value, dict):
            if path[at] in value:
                yield from keys_at(value[path[at]], path, at + 1)
        elif isinstance(value, list):
            for element in flatten_objects(value):
                yield from keys_at(element, path, at)
    elif isinstance(value, list):
        yield from map(exact_key, flatten(value))
    elif not isinstance(value, dict):
        yield exact_key(value)


class _Compiler:
    """One compilation: counts what it meets and collects the faults, each at its pointer."""

    def __init__(self, pointer: str) -> None:
        self.pointer = pointer
        self.faults: list[Fault] = []
        self.values = 0
        self.tests = 0
        self.fields_met = 0

    def reject(self, path: tuple[str | int, ...], message: str) -> None:
        if len(self.faults) < MAX_FAULTS:
            escaped = (str(name).replace("~", "~0").replace("/", "~1") for name in path)
            self.faults.append(Fault("".join([self.pointer, *(f"/{name}" for name in escaped)]), message))

    def fields(self, source: object, path: tuple[str | int, ...], depth: int) -> _Fields:
        nothing = _Fields((), (), (), matches_missing=False)
        if not isinstance(source, dict):
            self.reject(path, f'A pattern is an object, such as {{"data": {{"region": ["eu"]}}}}, got {shown(source)}.')
            return nothing
        if not source:
            self.reject(path, "An object of a pattern needs at least one field; leave it out to match everything.")
            return nothing
        if depth > MAX_DEPTH:
            self.reject(path, f"A pattern may be {MAX_DEPTH} objects deep, no deeper.")
            return nothing
        leaves: list[tuple[str, _Leaf]] = []
        objects: list[tuple[str, _Fields]] = []
        choices: list[tuple[_Fields, ...]] = []
        self.fields_met += len(source)
        for name, content in source.items():
            if not self.count(1, path):
                return nothing
            here = (*path, name)
            if len(name) > MAX_TEXT:
                self.reject(path, f"The name of a field has at most {MAX_TEXT:,} characters, got {len(name):,}.")
            elif name == OR:
                choices.append(self.alternatives(content, here, depth))
            elif isinstance(content, dict):
                objects.append((name, self.fields(content, here, depth + 1)))
            else:
                leaves.append((name, self.leaf(content, here)))
        matches_missing = (
            all(leaf.matches_missing for _, leaf in leaves)
            and all(inner.matches_missing for _, inner in objects)
            and all(any(choice.matches_missing for choice in group) for group in choices)
        )
        return _Fields(tuple(leaves), tuple(objects), tuple(choices), matches_missing)

    def alternatives(self, content: object, path: tuple[str | int, ...], depth: int) -> tuple[_Fields, ...]:
        try:
            entries = require_list(content, f"`{OR}`")
        except Wrong as wrong:
            self.reject(path, wrong.message)
            return ()
        return tuple(self.fields(entry, (*path, place), depth + 1) for place, entry in enumerate(entries))

    def leaf(self, content: object, path: tuple[str | int, ...]) -> _Leaf:
        nothing = _Leaf(frozenset(), (), matches_present=False, matches_missing=False, wants="")
        if not isinstance(content, list):
            self.reject(path, f"A field of a pattern takes a list of values: write [{shown(content)}].")
            return nothing
        if not content:
            self.reject(path, "A list of a pattern needs at least one entry: nothing matches an empty one.")
            return nothing
        if len(content) > MAX_LIST or not self.count(len(content), path):
            self.reject(path, f"A list of a pattern takes at most {MAX_LIST:,} entries, got {len(content):,}.")
            return nothing
        alternatives = _Alternatives()
        for place, entry in enumerate(content):
            try:
                self.tests += alternatives.add(entry)
            except Wrong as wrong:
                self.reject((*path, place, *wrong.path), wrong.message)
        if self.tests > MAX_TESTS:
            self.reject(
                path,
                f"A pattern takes at most {MAX_TESTS} tests beside exact values, of which there may be "
                f"{MAX_VALUES:,}. Split it into several.",
            )
            self.tests = 0
        return alternatives.leaf()

    def count(self, number: int, path: tuple[str | int, ...]) -> bool:
        """Whether the pattern is still within its bounds. The fault is reported once."""
        was_within = self.values <= MAX_VALUES
        self.values += number
        if self.values > MAX_VALUES and was_within:
            self.reject(path, f"A pattern takes at most {MAX_VALUES:,} fields, values and tests.")
        return self.values <= MAX_VALUES


class _Alternatives:
    """The entries of one list while it is compiled."""

    def __init__(self) -> None:
        self.keys: set[object] = set()
        self.tests: list[Test] = []
        self.wants: list[str] = []
        self.matches_present = self.matches_missing = False

    def add(self, entry: object) -> int:
        """How many tests it adds; an exact value is none. Raises Wrong."""
        if isinstance(entry, list):
            raise Wrong("An entry of a list is a value or a test, got a list: a list in the value needs none here.")
        if not isinstance(entry, dict):
            if isinstance(entry, str):
                require_text(entry, "A value")
            self.keys.add(exact_key(entry))
            self.wants.append(shown(entry))
            return 0
        if len(entry) != 1:
            example = '{"prefix": "eu"}'
            raise Wrong(f"An entry of a list is a value or one test, such as {example}, got {shown(entry)}.")
        ((kind, operand),) = entry.items()
        if kind == "exists":
            self.add_exists(operand)
            return 0
        test = compile_test(kind, operand)
        self.tests.append(test.test)
        self.wants.append(test.wants)
        return test.count

    def add_exists(self, operand: object) -> None:
        if not isinstance(operand, bool):
            raise Wrong(f"`exists` takes true or false, got {shown(operand)}.", "exists")
        self.matches_present |= operand
        self.matches_missing |= not operand
        self.wants.append("any value" if operand else "no value")

    def leaf(self) -> _Leaf:
        wants = " or ".join(self.wants[:3]) + (" …" if len(self.wants) > 3 else "")
        return _Leaf(frozenset(self.keys), tuple(self.tests), self.matches_present, self.matches_missing, wants)


def _equalities(fields: _Fields, path: tuple[str, ...]) -> Iterator[Equality]:
    for name, leaf in fields.leaves:
        if leaf.keys and not (leaf.tests or leaf.matches_present or leaf.matches_missing):
            yield Equality((*path, name), leaf.keys)
    for name, inner in fields.objects:
        yield from _equalities(inner, (*path, name))


def _paths(fields: _Fields, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, _ in fields.leaves:
        yield (*path, name)
    for name, inner in fields.objects:
        yield from _paths(inner, (*path, name))
    for group in fields.choices:
        for choice in group:
            yield from _paths(choice, path)


def _why_not(fields: _Fields, value: object, path: tuple[str, ...]) -> Mismatch | None:
    if fields.matches(value):
        return None
    if isinstance(value, list):
        return Mismatch(path, f"was a list of {len(value)}", "an entry that matches all of its fields")
    content = value if isinstance(value, dict) else _NOTHING
    for name, leaf in fields.leaves:
        found = content.get(name, _MISSING)
        if not leaf.matches(found):
            return Mismatch((*path, name), _found(found), leaf.wants)
    for name, inner in fields.objects:
        if mismatch := _why_not(inner, content.get(name, _MISSING), (*path, name)):
            return mismatch
    return Mismatch((*path, OR), "had no match", "one of its patterns")


def _found(value: object) -> str:
    if value is _MISSING:
        return "was missing"
    return "was an object" if isinstance(value, dict) else f"was {shown(value)}"
