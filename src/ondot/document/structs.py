"""Between structs of the model and objects of a document, by one rule: fields of the same name.

A struct names durations with `_s` (`timeout_s`), a document without (`timeout`). Values are carried over by this rule
in both directions, so no list of fields is spelled only to copy them, and no field can be forgotten.
"""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar, get_args

from msgspec import Struct, structs
from pydantic import BaseModel

from ondot.model.duration import as_written

S = TypeVar("S", bound=Struct)


def to_struct(kind: type[S], body: BaseModel, **given: Any) -> S:
    """A struct with the values of a body, except for the fields that are `given`."""
    for name, in_body, inner in _counterparts(kind):
        if name not in given:
            given[name] = _to_value(getattr(body, in_body), inner)
    return kind(**given)


def to_document(struct: Struct, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """An object of a document with all values of a struct, except for these fields."""
    fields = _counterparts(type(struct))
    return {in_body: to_json(getattr(struct, name)) for name, in_body, _ in fields if name not in without}


def to_json(value: Any) -> Any:
    """A value as a document has it: 90 rather than 90.0, instants in RFC 3339 with `Z`, lists and objects."""
    match value:
        case float():
            return as_written(value)
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case tuple():
            return [to_json(entry) for entry in value]
        case Struct():
            return to_document(value)
        case _:
            return value


def with_own_defaults(struct: S) -> S:
    """An equal struct, all the way down, in which each value that equals its default is that default.

    msgspec leaves a field out only if it holds the very object of its default, and a default that a user wrote is
    another "POST", another 300.0. Without this a spec in full and the same spec in short would be stored as two texts,
    and an upsert of one over the other would look like a change, with a new version and a new anchor.
    """
    changes: dict[str, Any] = {}
    names, defaults = _defaults(type(struct))
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


def _to_value(value: object, inner: type[Struct] | None) -> object:
    if isinstance(value, list):
        return tuple(_to_value(entry, inner) for entry in value)
    return to_struct(inner, value) if inner is not None and isinstance(value, BaseModel) else value


@lru_cache(maxsize=64)
def _counterparts(kind: type[Struct]) -> tuple[tuple[str, str, type[Struct] | None], ...]:
    """For each field of a struct: its name in a body, and the struct of its value, if it is one."""
    return tuple((field.name, field.name.removesuffix("_s"), _struct_in(field.type)) for field in structs.fields(kind))


def _struct_in(annotation: object) -> type[Struct] | None:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Struct):
            return candidate
    return None


@lru_cache(maxsize=64)
def _defaults(kind: type[Struct]) -> tuple[tuple[str, ...], tuple[object, ...]]:
    fields = structs.fields(kind)
    return tuple(field.name for field in fields), tuple(field.default for field in fields)
