"""`{"$from": "list.result.files"}`: values of a run inside the payload of a step (W4).

A reference stands for a whole value, typed; there are no string templates. It names the result of an ancestor (`count`
and `items` of a mapped one too), the payload of the run, or, in a mapped step, its `item` and `index`. A path goes
through objects by key and through lists by position; keys that have dots are written as a list: `{"$from": ["list",
"result", "a.b"]}`. A path that does not exist fails the step with a sentence, and never yields null in silence.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

from msgspec import Raw, json

from ondot.model.paths import MISSING, look_into

REFERENCE: Final = "$from"
_MARK: Final = b'"$from"'
MAX_PATH: Final = 32
MAX_STEP_NAME: Final = 63
_STEP_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
RESERVED: Final = frozenset({"payload", "item", "index", "event", "run"})
"""Words that a reference may begin with, so no step is named like them."""

A_REFERENCE: Final = '{"$from": "list.result.files"}'

Part = Literal["result", "count", "items", "payload", "item", "index"]


@dataclass(frozen=True, slots=True)
class Reference:
    """`step` is None for the payload of the run, and for `item` and `index`."""

    step: str | None
    part: Part
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        first = (self.part,) if self.step is None else (self.step, self.part)
        return ".".join((*first, *self.path))


@dataclass(frozen=True, slots=True)
class StepValue:
    """What an ended step left. `has_result` is False if it was skipped without a `default`, or did not succeed: every
    path into it is null. The result of a mapped step is its list of items."""

    result: Any = None
    has_result: bool = True
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a mapped step."""

    index: int
    value: Any


class Unresolved(Exception):
    """A reference cannot be filled in; the message is a sentence for the step's error."""


def is_step_name(name: str) -> bool:
    return len(name) <= MAX_STEP_NAME and name not in RESERVED and _STEP_NAME.fullmatch(name) is not None


def may_refer(payload: Raw | bytes) -> bool:
    """Whether the text of a payload may have a reference; one without is used as it is."""
    return _MARK in bytes(payload)


def read_reference(written: Mapping[str, Any]) -> Reference | str:
    """The reference in an object that has `$from`; or what is wrong with it, as a sentence."""
    match read_parts(written):
        case str(fault):
            return fault
        case ["payload" | "item" as part, *below]:
            return Reference(None, part, tuple(below))
        case ["index"]:
            return Reference(None, "index")
        case [step, "result" | "items" as part, *below] if step not in RESERVED:
            return Reference(step, part, tuple(below))
        case [step, "count"] if step not in RESERVED:
            return Reference(step, "count")
        case parts:
            path = ".".join(parts)[:100]
            return f"A path goes on with `result`, `items` or `count`, a number, after the step, got {path!r}."


def read_parts(written: Mapping[str, Any]) -> list[str] | str:
    if len(written) > 1:
        other = next(key for key in written if key != REFERENCE)
        return f"A reference takes `$from` alone, got `{other[:60]}` beside it: for example {A_REFERENCE}."
    path = written[REFERENCE]
    parts = path.split(".") if isinstance(path, str) else path
    if not isinstance(parts, list) or not parts or not all(isinstance(part, str) and part for part in parts):
        return f"`$from` takes a path such as {A_REFERENCE}, or a list of its parts."
    if len(parts) > MAX_PATH:
        return f"A path has at most {MAX_PATH} parts, got {len(parts)}."
    return parts


def find_references(value: object, pointer: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Reference | str]]:
    """The references in a payload, or what is wrong with them, each with the path to its place."""
    nodes: list[tuple[tuple[str, ...], object]] = [(pointer, value)]
    while nodes:
        place, node = nodes.pop()
        if isinstance(node, dict):
            if REFERENCE in node:
                yield place, read_reference(node)
            else:
                nodes += [((*place, key), item) for key, item in node.items()]
        elif isinstance(node, list):
            nodes += [((*place, str(i)), item) for i, item in enumerate(node)]


def find_steps_named(payload: Raw | None) -> frozenset[str]:
    """The steps whose values a payload needs; none for a payload without references."""
    if payload is None or not may_refer(payload):
        return frozenset()
    return _find_steps_named(bytes(payload))


@lru_cache(maxsize=4096)
def _find_steps_named(payload: bytes) -> frozenset[str]:
    found = (reference for _, reference in find_references(json.decode(payload)))
    return frozenset(
        reference.step for reference in found if isinstance(reference, Reference) and reference.step is not None
    )


def resolve(template: object, values: Mapping[str, StepValue], payload: object, item: Item | None = None) -> Any:
    """The template with every reference filled in. `payload` is that of the run. Raises Unresolved.

    Only the template is searched, never a value that was filled in: a result that looks like a reference is data.
    """
    if isinstance(template, dict):
        if REFERENCE in template:
            return _look_up(template, values, payload, item)
        return {key: resolve(value, values, payload, item) for key, value in template.items()}
    if isinstance(template, list):
        return [resolve(value, values, payload, item) for value in template]
    return template


def _look_up(written: Mapping[str, Any], values: Mapping[str, StepValue], payload: object, item: Item | None) -> object:
    reference = read_reference(written)
    if isinstance(reference, str):
        raise Unresolved(reference)
    if reference.step is not None:
        return _look_into_step(reference, values)
    if reference.part == "payload":
        return _follow(payload, reference, "The payload of the run")
    if item is None:
        raise Unresolved(f"`{reference}` has a value only in a mapped step.")
    return item.index if reference.part == "index" else _follow(item.value, reference, "The item")


def _look_into_step(reference: Reference, values: Mapping[str, StepValue]) -> object:
    assert reference.step is not None
    value = values.get(reference.step)
    if value is None:
        raise Unresolved(f"There is no step `{reference.step}` above this one, which `{reference}` needs.")
    if reference.part == "count":
        if value.count is None and value.has_result:
            raise Unresolved(f"`{reference}`: `{reference.step}` is no mapped step, so it has no `count`.")
        return value.count if value.count is not None else 0
    return _follow(value.result, reference, f"The result of `{reference.step}`") if value.has_result else None


def _follow(value: Any, reference: Reference, whose: str) -> Any:
    for depth, key in enumerate(reference.path):
        below = look_into(value, key)
        if below is MISSING:
            before = ".".join(reference.path[:depth])
            at = f" at `{before[:100]}`" if before else ""
            needed = f"`{str(reference)[:200]}`"
            raise Unresolved(f"{whose} has no `{key[:100]}`{at}, which {needed} needs: it is {_describe(value)}.")
        value = below
    return value


_KINDS: Final[Mapping[type, str]] = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
}


def _describe(value: object) -> str:
    """The kind of a value, never the value: it may be secret."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        keys = ", ".join(key[:40] for key in list(value)[:5])
        return f"an object with {keys}{', …' if len(value) > 5 else ''}" if keys else "an empty object"
    return _KINDS[type(value)]
