"""Checks of values by a JSON Schema (D1): the part of draft 2020-12 that msgspec and pydantic write for arguments.

A schema comes from a worker, so it may be hostile or of a later release. It is checked when it is registered
(`find_fault`): up to 64 KiB, no `$ref` outside of itself, and no pattern, which could take for ever to match. A keyword
that is not known here restricts nothing: the worker decodes the arguments in any case, and its word is the last.
A check makes at most `MAX_STEPS` steps and goes `MAX_DEPTH` deep, and accepts what it has not looked at: nested `anyOf`
takes exponential time. Formats accept what the worker's decoder accepts, neither more nor less.

Compiled once, a check of four arguments takes 9 µs of the processor, one of a single argument 3. `jsonschema` takes 32;
`jsonschema_rs` takes 0.2, and would be one more compiled dependency for 3 % of a request. Neither has these bounds and
formats.
"""

import operator
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, Final
from uuid import UUID

import msgspec

MAX_BYTES: Final = 64 * 1024
MAX_STEPS: Final = 100_000
"""Of one check: about 50 ms."""
MAX_DEPTH: Final = 100
MAX_FAULTS: Final = 20
MAX_NODES: Final = 10_000
NEARLY: Final = 1e-9
"""0.3 is a multiple of 0.1."""
_SHOWN: Final = 60
_NAMES_SHOWN: Final = 10

Path = tuple[str, ...]
Schema = Mapping[str, Any] | bool


@dataclass(slots=True)
class _Look:
    """One check while it goes on."""

    faults: list[tuple[Path, str]] = field(default_factory=list)
    steps: int = MAX_STEPS
    depth: int = 0

    @property
    def is_spent(self) -> bool:
        return self.steps <= 0 or len(self.faults) >= MAX_FAULTS

    def reject(self, path: Path, message: str) -> None:
        self.faults.append((path, message))


Rule = Callable[[Any, Path, _Look], None]


class Check:
    """A compiled schema. Raises ValueError for one that is not acceptable (`find_fault`)."""

    def __init__(self, schema: Schema) -> None:
        self._compiler = _Compiler(schema)
        self._rule = self._compiler.compile(schema)

    def find_faults(self, value: object) -> list[tuple[Path, str]]:
        """What is wrong with a value, each with its path; at most `MAX_FAULTS`."""
        look = _Look()
        self._rule(value, (), look)
        return look.faults


def find_fault(schema: object) -> str | None:
    """Why a schema is not accepted, or None."""
    if not isinstance(schema, Mapping):
        return "it is no object"
    try:
        size = len(msgspec.json.encode(schema))
    except (TypeError, ValueError, RecursionError) as error:
        return f"it is not JSON: {error}"
    if size > MAX_BYTES:
        return f"it has {size:,} bytes, and at most {MAX_BYTES:,} are kept"
    nodes: list[tuple[object, bool]] = [(schema, True)]
    count = 0
    while nodes:
        node, is_schema = nodes.pop()
        if isinstance(node, Mapping):
            count += 1
            if is_schema:
                if (why := _find_fault_in(node)) is not None:
                    return why
                for keyword, below in node.items():
                    if keyword in _MAPS and isinstance(below, Mapping):
                        nodes += [(one, True) for one in below.values()]
                    elif keyword not in _VALUES:
                        nodes.append((below, True))
        elif isinstance(node, list):
            nodes += [(one, is_schema) for one in node]
    return f"it has {count:,} parts, and at most {MAX_NODES:,} are checked" if count > MAX_NODES else None


_MAPS: Final = frozenset({"properties", "$defs", "definitions", "dependentSchemas"})
_VALUES: Final = frozenset(
    {"default", "examples", "example", "const", "enum", "required", "dependentRequired", "discriminator"}
)


def _find_fault_in(schema: Mapping[str, Any]) -> str | None:
    for keyword in ("pattern", "patternProperties"):
        if keyword in schema:
            return f"it has a `{keyword}`, and one pattern can take for ever to match"
    for keyword in ("$ref", "$dynamicRef"):
        if isinstance(ref := schema.get(keyword), str) and not ref.startswith("#"):
            return f"it refers to {ref[:_SHOWN]!r}, which is outside of it"
    return None


# Compiling -----------------------------------------------------------------------------------------------------------


class _Compiler:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._by_ref: dict[str, Rule] = {}
        self._nodes = 0

    def compile(self, schema: object) -> Rule:
        """One rule for a schema. Raises ValueError for a schema that cannot be checked."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise ValueError(f"it has more than {MAX_NODES:,} parts")
        if schema is False:
            return lambda value, path, look: look.reject(path, f"{_name(path)} is not expected.")
        if not isinstance(schema, Mapping):
            return _accept
        if isinstance(ref := schema.get("$ref"), str):
            return self._follow(ref)
        rules: list[Rule] = []
        if "type" in schema:
            rules.append(_check_type(schema["type"]))
        if "const" in schema:
            rules.append(_check_enum([schema["const"]]))
        if isinstance(values := schema.get("enum"), list):
            rules.append(_check_enum(values))
        for keyword in ("anyOf", "oneOf"):
            if isinstance(branches := schema.get(keyword), list) and branches:
                rules.append(_check_any([self.compile(one) for one in branches], _name_types(branches, self._root)))
        if isinstance(branches := schema.get("allOf"), list):
            rules += [self.compile(one) for one in branches]
        rules += _of_numbers(schema)
        rules += _of_text(schema)
        if _says(schema, "properties", "required", "additionalProperties", "minProperties", "maxProperties"):
            rules.append(self._object(schema))
        if _says(schema, "items", "prefixItems", "minItems", "maxItems", "uniqueItems"):
            rules.append(self._list(schema))
        return _all(rules)

    def _follow(self, ref: str) -> Rule:
        """A rule that is compiled at its first use: schemas may be recursive."""
        known = self._by_ref

        def check(value: Any, path: Path, look: _Look) -> None:
            rule = known.get(ref)
            if rule is None:
                self._nodes = 0
                try:
                    rule = self.compile(resolve(self._root, ref))
                except (ValueError, RecursionError):
                    rule = _accept
                known[ref] = rule
            rule(value, path, look)

        return check

    def _object(self, schema: Mapping[str, Any]) -> Rule:
        properties = schema.get("properties")
        rules = (
            {name: self.compile(below) for name, below in properties.items()} if isinstance(properties, Mapping) else {}
        )
        required = [name for name in _listed(schema, "required") if isinstance(name, str)]
        others: Rule | None = None
        if "additionalProperties" in schema:
            allowed = schema["additionalProperties"]
            others = None if allowed is True else self.compile(allowed)
        is_closed = schema.get("additionalProperties") is False
        least, most = _count(schema, "minProperties"), _count(schema, "maxProperties")

        def check(value: Any, path: Path, look: _Look) -> None:
            if not isinstance(value, dict):
                return
            for name in required:
                if name not in value:
                    look.reject((*path, name), f"{_name((*path, name))} is missing.")
            for name, below in value.items():
                if look.is_spent:
                    return
                rule = rules.get(name)
                if rule is not None:
                    rule(below, (*path, name), look)
                elif is_closed:
                    look.reject((*path, name), _unknown(name, rules))
                elif others is not None:
                    others(below, (*path, name), look)
            if least is not None and len(value) < least:
                look.reject(path, f"{_name(path)} must have at least {least} entries, got {len(value)}.")
            if most is not None and len(value) > most:
                look.reject(path, f"{_name(path)} must have at most {most} entries, got {len(value)}.")

        return check

    def _list(self, schema: Mapping[str, Any]) -> Rule:
        first = [self.compile(one) for one in _listed(schema, "prefixItems")]
        rest = self.compile(schema["items"]) if "items" in schema else None
        least, most = _count(schema, "minItems"), _count(schema, "maxItems")
        is_set = schema.get("uniqueItems") is True

        def check(value: Any, path: Path, look: _Look) -> None:
            if not isinstance(value, list):
                return
            if least is not None and len(value) < least:
                look.reject(path, f"{_name(path)} must have at least {least} entries, got {len(value)}.")
            elif most is not None and len(value) > most:
                look.reject(path, f"{_name(path)} must have at most {most} entries, got {len(value)}.")
            for place, entry in enumerate(value):
                if look.is_spent:
                    return
                rule = first[place] if place < len(first) else rest
                if rule is not None:
                    rule(entry, (*path, str(place)), look)
            if is_set and len({msgspec.json.encode(entry, order="sorted") for entry in value}) < len(value):
                look.reject(path, f"{_name(path)} must not have an entry twice.")

        return check


def _listed(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    found = schema.get(keyword)
    return found if isinstance(found, list) else []


def _count(schema: Mapping[str, Any], keyword: str) -> int | None:
    found = schema.get(keyword)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _accept(_value: Any, _path: Path, _look: _Look) -> None:
    """Nothing is wrong with any value."""


def _all(rules: Sequence[Rule]) -> Rule:
    """A value that an earlier rule rejects is not looked at by later ones: one fault for one mistake."""
    if not rules:
        return _accept

    def check(value: Any, path: Path, look: _Look) -> None:
        look.steps -= 1
        if look.is_spent or look.depth >= MAX_DEPTH or _is_reference(value):
            return
        look.depth += 1
        known = len(look.faults)
        for rule in rules:
            rule(value, path, look)
            if len(look.faults) > known:
                break
        look.depth -= 1

    return check


def _is_reference(value: Any) -> bool:
    """`{"$from": …}` and `{"$secret": …}` stand for a value that only the attempt knows."""
    return isinstance(value, dict) and ("$from" in value or "$secret" in value)


def _check_any(rules: Sequence[Rule], names: str) -> Rule:
    def check(value: Any, path: Path, look: _Look) -> None:
        best: list[tuple[Path, str]] | None = None
        for rule in rules:
            one = _Look(steps=look.steps, depth=look.depth)
            rule(value, path, one)
            look.steps = one.steps
            if not one.faults or look.steps <= 0:
                return
            if best is None or _depth_of(one.faults) > _depth_of(best):
                best = one.faults
        assert best is not None
        if _depth_of(best) > len(path):  # one branch fits but for something below: the one that was meant
            look.faults += best
        else:
            look.reject(path, f"{_name(path)} must be {names}{_got(value)}.")

    return check


def _depth_of(faults: Sequence[tuple[Path, str]]) -> int:
    return max(len(path) for path, _ in faults)


def resolve(root: Schema, ref: str) -> object:
    """What a reference stands for. One to nothing, or in a circle, restricts nothing."""
    for _ in range(MAX_DEPTH):
        node: object = root
        for segment in ref.removeprefix("#").split("/")[1:]:
            name = segment.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, Mapping) or name not in node:
                return True
            node = node[name]
        if not isinstance(node, Mapping) or not isinstance(again := node.get("$ref"), str):
            return node
        ref = again
    return True


# Kinds of values -----------------------------------------------------------------------------------------------------


def _is_whole(value: Any) -> bool:
    """1.0 is none: the worker's decoder rejects it, too."""
    return isinstance(value, int) and not isinstance(value, bool)


_TYPES: Final[dict[str, tuple[str, Callable[[Any], bool]]]] = {
    "object": ("an object", lambda value: isinstance(value, dict)),
    "array": ("a list", lambda value: isinstance(value, list)),
    "string": ("text", lambda value: isinstance(value, str)),
    "boolean": ("true or false", lambda value: isinstance(value, bool)),
    "null": ("null", lambda value: value is None),
    "number": ("a number", lambda value: isinstance(value, (int, float)) and not isinstance(value, bool)),
    "integer": ("a whole number", _is_whole),
}


def _check_type(wanted: object) -> Rule:
    names = wanted if isinstance(wanted, list) else [wanted]
    known = [_TYPES[name] for name in names if isinstance(name, str) and name in _TYPES]
    if not known or len(known) < len(names):
        return _accept
    words = _or(words for words, _ in known)

    def check(value: Any, path: Path, look: _Look) -> None:
        if not any(fits(value) for _, fits in known):
            look.reject(path, f"{_name(path)} must be {words}{_got(value)}.")

    return check


def _check_enum(values: Sequence[Any]) -> Rule:
    words = _or(map(_shown, values[:_NAMES_SHOWN])) + (" and others" if len(values) > _NAMES_SHOWN else "")

    def check(value: Any, path: Path, look: _Look) -> None:
        if not any(_is_same(value, one) for one in values):
            look.reject(path, f"{_name(path)} must be {words}{_got(value)}.")

    return check


def _is_same(value: Any, other: Any) -> bool:
    """True is not 1."""
    return value == other and isinstance(value, bool) is isinstance(other, bool)


def _of_numbers(schema: Mapping[str, Any]) -> list[Rule]:
    bounds: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
        "minimum": ("at least", operator.ge),
        "exclusiveMinimum": ("more than", operator.gt),
        "maximum": ("at most", operator.le),
        "exclusiveMaximum": ("less than", operator.lt),
        "multipleOf": ("a multiple of", _is_multiple),
    }
    return [
        _check_bound(words, schema[keyword], fits)
        for keyword, (words, fits) in bounds.items()
        if _is_number(schema.get(keyword))
    ]


def _is_multiple(value: float, step: float) -> bool:
    try:
        ratio = value / step
        return abs(ratio - round(ratio)) < NEARLY
    except (ValueError, ArithmeticError):
        return True  # beyond what a float can say


def _check_bound(words: str, bound: Any, fits: Callable[[Any, Any], bool]) -> Rule:
    def check(value: Any, path: Path, look: _Look) -> None:
        if _is_number(value) and not fits(value, bound):
            look.reject(path, f"{_name(path)} must be {words} {bound}{_got(value)}.")

    return check


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _of_text(schema: Mapping[str, Any]) -> list[Rule]:
    rules: list[Rule] = []
    least, most = _count(schema, "minLength"), _count(schema, "maxLength")
    if least is not None or most is not None:

        def check(value: Any, path: Path, look: _Look) -> None:
            if not isinstance(value, str):
                return
            if least is not None and len(value) < least:
                look.reject(path, f"{_name(path)} must have at least {least} characters, got {len(value)}.")
            elif most is not None and len(value) > most:
                look.reject(path, f"{_name(path)} must have at most {most} characters, got {len(value)}.")

        rules.append(check)
    if (known := FORMATS.get(str(schema.get("format")))) is not None:
        rules.append(_check_format(*known))
    elif schema.get("contentEncoding") == "base64":
        rules.append(_check_format(*FORMATS["byte"]))
    return rules


def _check_format(words: str, read: Callable[[str], object]) -> Rule:
    def check(value: Any, path: Path, look: _Look) -> None:
        if not isinstance(value, str):
            return
        try:
            read(value)
        except (ValueError, ArithmeticError):
            look.reject(path, f"{_name(path)} must be {words}{_got(value)}.")

    return check


def _decoder(kind: type) -> Callable[[str], object]:
    """By msgspec, as the worker decodes it."""
    return lambda text: msgspec.convert(text, kind)


def _read_base64(text: str) -> bytes:
    return b64decode(text, validate=True)


FORMATS: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "date-time": ('a date and time such as "2030-01-31T09:00:00Z"', _decoder(datetime)),
    "date": ('a date such as "2030-01-31"', _decoder(date)),
    "time": ('a time such as "09:30:00"', _decoder(time)),
    "duration": ('a duration such as "PT90S"', _decoder(timedelta)),
    "uuid": ("a UUID", _decoder(UUID)),
    "decimal": ('a decimal number such as "12.50"', _decoder(Decimal)),
    "byte": ("bytes in base64", _read_base64),
    "base64": ("bytes in base64", _read_base64),
}


# Words ---------------------------------------------------------------------------------------------------------------


def _says(schema: Mapping[str, Any], *keywords: str) -> bool:
    return not schema.keys().isdisjoint(keywords)


def _name(path: Path) -> str:
    return f"`{'.'.join(path)[:200]}`" if path else "The payload"


def _or(words: Iterable[str]) -> str:
    listed = list(dict.fromkeys(words))
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} or {listed[-1]}"


def _name_types(branches: Sequence[object], root: Schema) -> str:
    """What a value may be, by the kinds of the branches."""
    words: list[str] = []
    for branch in branches:
        if isinstance(branch, Mapping) and isinstance(ref := branch.get("$ref"), str):
            branch = resolve(root, ref)  # noqa: PLW2901 - what it stands for
        if not isinstance(branch, Mapping):
            words.append("any value")
            continue
        if (known := FORMATS.get(str(branch.get("format")))) is not None:
            words.append(known[0])
        elif "const" in branch:
            words.append(_shown(branch["const"]))
        elif isinstance(values := branch.get("enum"), list):
            words += map(_shown, values[:_NAMES_SHOWN])
        else:
            kinds = branch.get("type")
            kinds = kinds if isinstance(kinds, list) else [kinds]
            words += [_TYPES[kind][0] for kind in kinds if isinstance(kind, str) and kind in _TYPES] or [
                "another value"
            ]
    return _or(words)


def _shown(value: object) -> str:
    text = msgspec.json.encode(value).decode(errors="replace")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _got(value: object) -> str:
    if isinstance(value, dict):
        return ", got an object"
    if isinstance(value, list):
        return ", got a list"
    return f", got {_shown(value)}"


def _unknown(name: str, known: Mapping[str, object]) -> str:
    listed = ", ".join(list(known)[:_NAMES_SHOWN]) or "none"
    close = get_close_matches(name[:200], known, n=1)
    advice = f"Did you mean `{close[0]}`?" if close else f"There are: {listed}."
    return f"There is no argument `{name[:_SHOWN]}`. {advice}"
