"""A JSON document as YAML, for `-o yaml`: what every parser of YAML 1.1 and 1.2 reads back as the same document (D5).

Only block collections and two kinds of strings are written: plain words, and strings in double quotes with the escapes
of JSON. So nothing turns into a number, a date or a boolean, and no library is needed.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_RESERVED: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
_UNPRINTABLE: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
LONGEST_KEY: Final = 1000
"""Parsers read longer ones in another form only."""


def to_yaml(document: Any) -> str:
    return "\n".join(_lines(document, "")) + "\n"


def _lines(value: Any, indent: str) -> Iterator[str]:
    match value:
        case Mapping() if value:
            for name, below in value.items():
                key = _scalar(str(name))
                if len(key) > LONGEST_KEY:
                    yield f"{indent}? {key}"
                    key = ""
                yield from _entry(f"{indent}{key}:", below, f"{indent}  ")
        case list() | tuple() if value:
            for below in value:
                first, *rest = _lines(below, f"{indent}  ")
                yield f"{indent}- {first[len(indent) + 2 :]}"
                yield from rest
        case _:
            yield f"{indent}{_scalar(value)}"


def _entry(head: str, value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, Mapping | list | tuple) and value:
        yield head
        yield from _lines(value, indent)
    else:
        yield f"{head} {_scalar(value)}"


def _scalar(value: Any) -> str:
    match value:
        case str():
            return value if _PLAIN.fullmatch(value) and value.lower() not in _RESERVED else _quoted(value)
        case float() if "e" in (written := repr(value)) and "." not in written:
            return written.replace("e", ".0e")  # without a point, YAML 1.1 reads a string
        case Mapping():
            return "{}"
        case Sequence():
            return "[]"
    return json.dumps(value)


def _quoted(text: str) -> str:
    """As JSON. What YAML does not allow as it is, is written by its number: of one character, not of two surrogates."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(text, ensure_ascii=False))
