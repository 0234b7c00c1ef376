"""Which of many patterns an event matches, without trying them all (S11).

Patterns are kept by the type of their events. Of those that want a field to have one of a few values, each is kept
under these values of one such field: an event looks up its own value, and only those are tried. The others are tried
one by one, so their number is bounded: `MAX_REST` of one type.
"""

from collections.abc import Hashable, Iterable
from typing import Any, Final, Generic, TypeVar

from ondot.model.patterns import Equality, Pattern, keys_at

MAX_REST: Final = 1_000
MOST_LOOKS: Final = 500_000
"""Patterns that are tried for one event, each by its fields and tests, times the size of the event: about a second."""

Name = TypeVar("Name", bound=Hashable)


def is_indexed(pattern: Pattern | None) -> bool:
    """Whether an index finds it by a value."""
    return pattern is not None and bool(pattern.equalities())


class TooCostly(Exception):
    """The event has so many values, and so many patterns are tried for it, that it would take long."""


class PatternIndex(Generic[Name]):
    """Patterns by name. None for a pattern: every event of its type matches."""

    def __init__(self) -> None:
        self._types: dict[str, _OfType[Name]] = {}
        self._type_of: dict[Name, str] = {}

    def __len__(self) -> int:
        return len(self._type_of)

    def add(self, name: Name, type_: str, pattern: Pattern | None) -> None:
        """Add a pattern; one of the same name is replaced."""
        self.remove(name)
        self._type_of[name] = type_
        self._types.setdefault(type_, _OfType()).add(name, pattern)

    def remove(self, name: Name) -> None:
        type_ = self._type_of.pop(name, None)
        if type_ is not None:
            of_type = self._types[type_]
            of_type.remove(name)
            if of_type.is_empty:
                del self._types[type_]

    def has_type(self, type_: str) -> bool:
        return type_ in self._types

    def count_tries(self, type_: str) -> int:
        """How many patterns are tried for every event of a type."""
        of_type = self._types.get(type_)
        return 0 if of_type is None else of_type.rest

    def find(self, type_: str, value: object, size: int = 1) -> list[Name]:
        """The names of all patterns that match, each once. `size`: of the value. Raises TooCostly."""
        of_type = self._types.get(type_)
        return [] if of_type is None else of_type.find(value, MOST_LOOKS // size)


class _OfType(Generic[Name]):
    def __init__(self) -> None:
        self._fields: dict[tuple[str, ...], dict[object, dict[Name, Pattern]]] = {}
        self._rest: dict[Name, Pattern | None] = {}
        self._places: dict[Name, Equality | None] = {}

    @property
    def is_empty(self) -> bool:
        return not self._places

    @property
    def rest(self) -> int:
        return len(self._rest)

    def add(self, name: Name, pattern: Pattern | None) -> None:
        place = None if pattern is None else self._best(pattern.equalities())
        self._places[name] = place
        if pattern is None or place is None:
            self._rest[name] = pattern
            return
        values = self._fields.setdefault(place.path, {})
        for key in place.keys:
            values.setdefault(key, {})[name] = pattern

    def remove(self, name: Name) -> None:
        place = self._places.pop(name)
        if place is None:
            del self._rest[name]
            return
        values = self._fields[place.path]
        for key in place.keys:
            del values[key][name]
            if not values[key]:
                del values[key]
        if not values:
            del self._fields[place.path]

    def _best(self, equalities: Iterable[Equality]) -> Equality | None:
        """The one under whose values the fewest are; of equals one whose field is looked up already, and the deepest:
        many patterns share a source, few an order."""
        return min(
            equalities,
            key=lambda one: (self._company(one), one.path not in self._fields, -len(one.path), one.path),
            default=None,
        )

    def _company(self, equality: Equality) -> int:
        values = self._fields.get(equality.path)
        return 0 if values is None else max(len(values.get(key, ())) for key in equality.keys)

    def find(self, value: object, looks: int) -> list[Name]:
        found: dict[Name, None] = {}
        for path, values in self._fields.items():
            for key in set(keys_at(value, path)):
                for name, pattern in values.get(key, _NONE).items():
                    looks -= pattern.cost
                    if name not in found and pattern.matches(value):
                        found[name] = None
                    if looks < 0:
                        raise TooCostly
        for name, other in self._rest.items():
            if other is None:
                found[name] = None
                continue
            looks -= other.cost
            if looks < 0:
                raise TooCostly
            if other.matches(value):
                found[name] = None
        return list(found)


_NONE: Final[dict[Any, Pattern]] = {}
