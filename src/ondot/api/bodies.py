"""From the bytes of a request to JSON that everything behind the edge can hold.

JSON is read strictly: UTF-8, no NaN, no numbers that overflow, no half surrogates. Beyond that, what
PostgreSQL cannot store (the character NUL) and what would exhaust a reader (deep nesting) is refused here,
with a pointer to it, so that no later layer has to think of it. camelCase becomes snake_case here too, except
in what belongs to the user.
"""

import re
from typing import Final

import msgspec

from ondot.model.errors import Fault, InvalidBody, NotJson, TooLarge

MAX_DEPTH: Final = 64
USER_DATA: Final = frozenset({"payload", "headers", "labels"})
"""Fields whose content is the user's own: keys inside them are left as they are."""

_BOM: Final = b"\xef\xbb\xbf"
_BYTE: Final = re.compile(r" \(byte (\d+)\)$")
_HUMP: Final = re.compile(r"(?<=[a-z0-9])[A-Z]+")
_DECODER: Final = msgspec.json.Decoder()


def read_json(raw: bytes, *, max_bytes: int) -> object:
    if len(raw) > max_bytes:
        raise TooLarge(
            f"The body has {len(raw):,} bytes, and at most {max_bytes:,} are taken; send less, or in parts.",
            bytes=len(raw),
            max_bytes=max_bytes,
        )
    try:
        body: object = _DECODER.decode(raw)
    except UnicodeDecodeError:
        raise _not_utf8(raw) from None
    except msgspec.DecodeError as error:
        raise _not_json(raw, str(error)) from None
    except RecursionError:
        raise _too_deep("") from None
    # A glance at the bytes excludes nearly all; the walk that knows pointers takes longer than the decoding.
    if rb"\u0000" in raw or (raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _is_too_deep(body)):
        _walk(body, "", 0)
    return body


def snake_case(body: object, pointer: str = "") -> object:
    """The same body with camelCase field names in snake_case; raises InvalidBody if a field comes in both."""
    match body:
        case dict():
            return _snake_case_fields(body, pointer)
        case list():
            return [snake_case(item, f"{pointer}/{i}") for i, item in enumerate(body)]
        case _:
            return body


def snake_case_name(name: str) -> str:
    """callbackUrl, callbackURL → callback_url; any other name stays as it is."""
    return _HUMP.sub(lambda hump: f"_{hump[0].lower()}", name)


def escaped(segment: str) -> str:
    """One segment of a JSON pointer (RFC 6901)."""
    return segment.replace("~", "~0").replace("/", "~1")


def _snake_case_fields(body: dict[str, object], pointer: str) -> dict[str, object]:
    fields: dict[str, object] = {}
    for written, value in body.items():
        name = written if written.islower() else snake_case_name(written)
        if name in fields:
            other = next(key for key in body if key != written and snake_case_name(key) == name)
            message = f"`{other}` and `{written}` are two spellings of one field; give one of them."
            raise InvalidBody(message, faults=(Fault(f"{pointer}/{escaped(written)}", message),))
        nested = isinstance(value, (dict, list)) and name not in USER_DATA
        fields[name] = snake_case(value, f"{pointer}/{escaped(written)}") if nested else value
    return fields


def _is_too_deep(body: object) -> bool:
    level = [body]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for node in level
            for item in (node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
            if type(item) is dict or type(item) is list
        ]
        if not level:
            return False
    return True


def _walk(value: object, pointer: str, depth: int) -> None:
    match value:
        case str():
            if "\0" in value:
                raise _nul(pointer)
        case dict():
            if depth == MAX_DEPTH:
                raise _too_deep(pointer)
            for key, item in value.items():
                if "\0" in key:
                    raise _nul(pointer)
                _walk(item, f"{pointer}/{escaped(key)}", depth + 1)
        case list():
            if depth == MAX_DEPTH:
                raise _too_deep(pointer)
            for i, item in enumerate(value):
                _walk(item, f"{pointer}/{i}", depth + 1)


def _nul(pointer: str) -> InvalidBody:
    message = r"There is a NUL character (\u0000) in the text here, which cannot be stored; take it out."
    return InvalidBody(message, faults=(Fault(pointer, message),))


def _too_deep(pointer: str) -> InvalidBody:
    message = f"The body is nested deeper than {MAX_DEPTH} levels; make it flatter, or send the inner part as text."
    return InvalidBody(message, faults=(Fault(pointer, message),))


def _not_utf8(raw: bytes) -> NotJson:
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        at = error.start
        return NotJson(f"The body is not UTF-8: byte 0x{raw[at]:02x} at {_place(raw, at)}. Send UTF-8.", byte=at)
    raise AssertionError("msgspec found a fault in UTF-8 that Python does not see")


_HALF_A_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")


def _not_json(raw: bytes, reason: str) -> NotJson:
    if (told := _not_text(raw)) is not None:
        return told
    found = _BYTE.search(reason)
    if found is None and "truncated" not in reason:
        return NotJson(f"The body has a number that is too large to keep: {reason}. Send it as text.")
    if found is None:
        return NotJson(
            f"The body ends too early, after {len(raw):,} bytes: a quote or bracket is not closed.",
            byte=len(raw),
        )
    position = int(found[1])
    reason = reason[: found.start()].removeprefix("JSON is malformed: ")
    return NotJson(f"The body is not JSON: {reason} at {_place(raw, position)}.", byte=position)


def _not_text(raw: bytes) -> NotJson | None:
    """What is wrong before it comes to brackets and quotes."""
    if not raw.strip():
        return NotJson(
            'The body is empty; send a JSON object, for example {"name": "hello", "url": "https://example.com"}.'
        )
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return NotJson("The body is UTF-16; send it as UTF-8.", byte=0)
    if raw.startswith(_BOM):
        return NotJson("The body begins with a byte order mark; send UTF-8 without one.", byte=0)
    if half := _HALF_A_PAIR.search(raw):
        return NotJson(
            f"The body has half of a surrogate pair, which is no character, at {_place(raw, half.start())}.",
            byte=half.start(),
        )
    return None


def _place(raw: bytes, position: int) -> str:
    before = raw[:position]
    line = before.count(b"\n") + 1
    column = len(before[before.rfind(b"\n") + 1 :].decode(errors="replace")) + 1
    return f"line {line}, column {column} (byte {position})"
