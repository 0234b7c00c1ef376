"""Values that exist only while a workflow runs: results of steps, arguments of the run, the item of a map (W4).

A `Value` stands for one of them in the arguments of a step. It is known by its path; nothing can be computed with it
while the workflow is described, and an attempt to do so raises an error that says where to compute instead.
Comparisons make conditions: `if_=files.result["total"] > 0`.
"""

from collections.abc import Mapping
from typing import Any, Final, Generic, NoReturn, TypeVar

R = TypeVar("R")

_KNOWN_LATER: Final = "{path} is known only when the workflow runs: {advice}."


class Condition:
    """A pattern that must match for a step to run. `a & b`: both. `steps`: those that it looks at."""

    def __init__(self, pattern: Mapping[str, Any], steps: frozenset[str] = frozenset()) -> None:
        self.pattern: Final = dict(pattern)
        self.steps: Final = steps

    def __and__(self, other: "Condition") -> "Condition":
        return Condition(_merge(self.pattern, other.pattern), self.steps | other.steps)

    def __bool__(self) -> bool:
        raise TypeError("A condition is judged when the workflow runs: give it as `if_=`, and join two with `&`.")


class Value:
    """`value["key"]` and `value[0]` go down into it. `steps`: the names of the steps that it needs."""

    def __init__(self, path: tuple[str, ...], steps: frozenset[str] = frozenset(), owner: object = None) -> None:
        self._path: Final = path
        self._steps: Final = steps
        self._owner: Final = owner

    def __getitem__(self, key: str | int) -> "Value":
        if isinstance(key, bool) or (isinstance(key, int) and key < 0):
            raise TypeError(f"{self!r}: go down by a key or by a position from 0, got {key!r:.60}.")
        return Value((*self._path, str(key)), self._steps, self._owner)

    def matches(self, *rules: Any) -> Condition:
        """A condition by rules of patterns, one of which must hold: `value.matches("eu", {"prefix": "us-"})`."""
        pattern: Any = list(rules)
        path = self._path if self._path[0] == "payload" else ("steps", *self._path)
        for part in reversed(path):
            pattern = {part: pattern}
        return Condition(pattern, self._steps)

    def __eq__(self, other: object) -> Condition:  # type: ignore[override]
        return self.matches(other)

    def __ne__(self, other: object) -> Condition:  # type: ignore[override]
        return self.matches({"anything-but": [other]})

    def __lt__(self, other: float) -> Condition:
        return self.matches({"numeric": ["<", other]})

    def __le__(self, other: float) -> Condition:
        return self.matches({"numeric": ["<=", other]})

    def __gt__(self, other: float) -> Condition:
        return self.matches({"numeric": [">", other]})

    def __ge__(self, other: float) -> Condition:
        return self.matches({"numeric": [">=", other]})

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{'.'.join(self._path)}>"

    def __bool__(self) -> bool:
        raise self._refusal("use `if_=` of a step to decide")

    def __str__(self) -> str:
        raise self._refusal("pass it as an argument, and make text of it in the function")

    def __format__(self, _: str) -> NoReturn:
        raise self._refusal("pass it as an argument, and make text of it in the function")

    def __iter__(self) -> NoReturn:
        raise self._refusal("use w.map(function, over=…)")

    def __len__(self) -> int:
        raise self._refusal("compute it in a function, or use `count` of a map")

    def _refusal(self, advice: str) -> TypeError:
        return TypeError(_KNOWN_LATER.format(path=".".join(self._path), advice=advice))


class StepHandle(Generic[R]):
    """A step of the workflow that is being described: what others come after, and the values it leaves."""

    def __init__(self, name: str, owner: object, line: str) -> None:
        self.name: Final = name
        self._owner: Final = owner
        self._line: Final = line
        """Where it is written."""

    @property
    def result(self) -> Value:
        """What the step returns; of a map, the list of what its items return."""
        return self._value("result")

    @property
    def state(self) -> Value:
        """For conditions: SUCCEEDED, FAILED, SKIPPED."""
        return self._value("state")

    def __repr__(self) -> str:
        return f"<step {self.name}>"

    def _value(self, part: str) -> Value:
        return Value((self.name, part), frozenset({self.name}), self._owner)


class MapHandle(StepHandle[R]):
    """A mapped step."""

    @property
    def count(self) -> Value:
        """How many items succeeded."""
        return self._value("count")

    @property
    def items(self) -> Value:
        """What the items return, in their order; null where one failed."""
        return self._value("items")


def is_known_later(given: object) -> bool:
    """Whether an argument is or holds a value that is known only when the workflow runs."""
    match given:
        case Value() | StepHandle():
            return True
        case Mapping():
            return any(map(is_known_later, given.values()))
        case list() | tuple():
            return any(map(is_known_later, given))
    return False


def read_values(given: object) -> tuple[Any, frozenset[str], set[int]]:
    """An argument as JSON with references; the steps that it needs, and the ids of the workflows they are of."""
    match given:
        case Value():
            path = given._path
            text: Any = ".".join(path) if not any("." in part or not part for part in path) else list(path)
            owners = set() if given._owner is None else {id(given._owner)}
            return {"$from": text}, given._steps, owners
        case StepHandle():
            return read_values(given.result)
        case Mapping():
            if wrong := [key for key in given if not isinstance(key, str)]:
                raise TypeError(f"a mapping must have text as keys, got {wrong[0]!r:.60}")
            read = {key: read_values(value) for key, value in given.items()}
            return (
                {key: value for key, (value, _, _) in read.items()},
                frozenset().union(*(steps for _, steps, _ in read.values())),
                set().union(*(owners for _, _, owners in read.values())),
            )
        case list() | tuple():
            entries = [read_values(value) for value in given]
            return (
                [value for value, _, _ in entries],
                frozenset().union(*(steps for _, steps, _ in entries)),
                set().union(*(owners for _, _, owners in entries)),
            )
        case _:
            return given, frozenset(), set()


def _merge(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(one)
    for key, value in other.items():
        if key in merged and isinstance(merged[key], dict) and isinstance(value, dict):
            merged[key] = _merge(merged[key], value)
        elif key in merged:
            raise ValueError(f"Two conditions look at {key!r}: write one pattern for it, with `matches`.")
        else:
            merged[key] = value
    return merged
