"""Functions in words (D1): arguments, options and workers, for the page and the terminal."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ondot.model.json_schema import resolve

_KINDS: Final = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "array": "list",
    "object": "object",
    "null": "null",
}
_FORMATS: Final = {
    "date": "date",
    "date-time": "date and time",
    "time": "time",
    "duration": "duration",
    "uuid": "UUID",
    "decimal": "decimal number",
    "byte": "bytes in base64",
    "base64": "bytes in base64",
    "path": "path",
}
_LONGEST: Final = 60
MAX_CHOICES: Final = 200


@dataclass(frozen=True, slots=True)
class Argument:
    """`kind`: that of JSON Schema, `json` if there are several. `is_nullable`: it may also be null."""

    name: str
    kind: str
    format: str | None
    choices: tuple[Any, ...]
    is_required: bool
    is_nullable: bool
    has_default: bool
    default: Any
    description: str | None
    schema: Mapping[str, Any]


def list_arguments(schema: Mapping[str, Any]) -> list[Argument]:
    """The arguments of a function, in their order."""
    properties = schema.get("properties")
    required = schema.get("required")
    needed = set(required) if isinstance(required, list) else set()
    if not isinstance(properties, Mapping):
        return []
    return [_argument(name, part, name in needed, schema) for name, part in properties.items()]


def describe_argument(argument: Argument) -> str:
    """Its type as a person would say it: `date`, `list of text`, `eu or us`."""
    words = _describe(argument.kind, argument.format, argument.choices, argument.schema)
    return f"{words} or null" if argument.is_nullable else words


def options_in_words(options: Mapping[str, Any]) -> str:
    """`retries 0, timeout 90s`; long values are cut."""
    listed = []
    for name, value in options.items():
        if name == "retry" and isinstance(value, Mapping):
            listed += [f"{key.replace('max_retries', 'retries')} {_short(one)}" for key, one in value.items()]
        else:
            listed.append(f"{name} {_short(value)}")
    return ", ".join(listed) or "none"


def workers_in_words(workers: int) -> str:
    return "no live worker" if workers == 0 else "1 worker" if workers == 1 else f"{workers:,} workers"


def _argument(name: str, part: object, is_required: bool, root: Mapping[str, Any]) -> Argument:
    schema: Mapping[str, Any] = part if isinstance(part, Mapping) else {}
    own = schema
    branches = [one for one in schema.get("anyOf", ()) if isinstance(one, Mapping)]
    values = [one for one in branches if one.get("type") != "null"]
    is_nullable = len(values) < len(branches)
    if is_nullable and len(values) == 1:
        schema = values[0]
    elif branches:
        schema = {}
    if isinstance(ref := schema.get("$ref"), str):
        found = resolve(root, ref)
        schema = found if isinstance(found, Mapping) else {}
    kind = schema.get("type")
    if isinstance(kind, list):
        kinds = [one for one in kind if one != "null"]
        is_nullable = is_nullable or "null" in kind
        kind = kinds[0] if len(kinds) == 1 else None
    choices = schema.get("enum", [schema["const"]] if "const" in schema else [])
    is_listed = isinstance(choices, list) and 0 < len(choices) <= MAX_CHOICES
    format_ = "byte" if schema.get("contentEncoding") == "base64" else schema.get("format")
    description = own.get("description", schema.get("description"))
    return Argument(
        name,
        kind if isinstance(kind, str) and kind in _KINDS else "json",
        format_ if isinstance(format_, str) else None,
        tuple(choices) if is_listed else (),
        is_required,
        is_nullable,
        "default" in own,
        own.get("default"),
        description if isinstance(description, str) else None,
        schema,
    )


def _describe(kind: str, format_: str | None, choices: tuple[Any, ...], schema: Mapping[str, Any]) -> str:
    if choices:
        return " or ".join(_short(choice) for choice in choices[:10]) + (" …" if len(choices) > 10 else "")
    if format_ in _FORMATS:
        return _FORMATS[format_]
    items = schema.get("items")
    if kind == "array" and isinstance(items, Mapping) and isinstance(items.get("type"), str):
        return f"list of {_describe(items['type'], items.get('format'), (), items)}"
    return _KINDS.get(kind, "any JSON")


def _short(value: object) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
