"""What is stored leaves out its defaults, however they came.

msgspec leaves a field out only if it holds the very object of its default, and a default that someone wrote is
another "POST", another 300.0. So a spec in full and the same in short would be stored as two texts, and an upsert of
the one over the other would seem to be a change, with a new version and a new anchor.
"""

from functools import lru_cache
from typing import Any, TypeVar

from msgspec import Struct, structs

S = TypeVar("S", bound=Struct)


def with_own_defaults(struct: S) -> S:
    """An equal struct, all the way down, in which each value that equals its default is that default."""
    changes: dict[str, Any] = {}
    names, defaults = _fields(type(struct))
    for name, default, value in zip(names, defaults, structs.astuple(struct), strict=True):
        if value is default:
            continue
        if type(value) is type(default) and value == default:
            changes[name] = default
        elif isinstance(value, Struct) and (inner := with_own_defaults(value)) is not value:
            changes[name] = inner
        elif isinstance(value, tuple) and value and isinstance(value[0], Struct):
            changes[name] = tuple(with_own_defaults(entry) for entry in value)
    return structs.replace(struct, **changes) if changes else struct


@lru_cache(maxsize=64)
def _fields(kind: type[Struct]) -> tuple[tuple[str, ...], tuple[object, ...]]:
    fields = structs.fields(kind)
    return tuple(field.name for field in fields), tuple(field.default for field in fields)
