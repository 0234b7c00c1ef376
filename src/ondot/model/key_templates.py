"""Keys that name arguments (E12, E13): `"customer:{customer_id}"` is filled for each job."""

from collections.abc import Mapping
from string import Formatter
from typing import Any

import msgspec


def names_in(template: str) -> list[str]:
    """The arguments that a template names. Raises ValueError if it is not a template."""
    names = []
    for _, name, form, conversion in Formatter().parse(template):
        if name is None:
            continue
        if not name.isidentifier() or form or conversion:
            raise ValueError(f"{template!r}: name arguments alone, such as {{customer_id}}; write {{{{ for a brace.")
        names.append(name)
    return names


def fill(template: str, arguments: Mapping[str, Any]) -> str:
    """The template with the arguments in it as they travel: text as it is, all else as JSON."""
    parts = []
    for literal, name, _, _ in Formatter().parse(template):
        parts.append(literal)
        if name is not None:
            value = msgspec.to_builtins(arguments[name], str_keys=True)
            parts.append(value if isinstance(value, str) else msgspec.json.encode(value).decode())
    return "".join(parts)


def parts_of(template: str) -> list[str | dict[str, str]]:
    """The template as a list of literal text and `{"argument": name}`, for those that cannot parse it."""
    parts: list[str | dict[str, str]] = []
    for literal, name, _, _ in Formatter().parse(template):
        if literal and parts and isinstance(parts[-1], str):
            parts[-1] += literal
        elif literal:
            parts.append(literal)
        if name is not None:
            parts.append({"argument": name})
    return parts
