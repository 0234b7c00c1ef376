"""From the bytes of a request to JSON that every later layer can handle.

JSON is read strictly: UTF-8, no NaN, no numbers that overflow, no half surrogates. Text that PostgreSQL cannot store
(the character NUL) and bodies that would exhaust a reader (deep nesting, very many values) are rejected here, with a
pointer, so that no later layer has to check. camelCase becomes snake_case here too, except in the user's own data.

A small body can be a large tree: 10 MB of `[[],[],…]` took 470 MB and seconds of the event loop. So depth and number of
values are counted in the bytes before anything is decoded, and the jobs of a batch are decoded one at a time. Outside
the payload a body may have no more values than a job can use, which bounds the work of finding its faults.
"""

import re
from itertools import accumulate
from typing import Final

import msgspec
from msgspec import Raw

from ondot.model.errors import Fault, InvalidBody, NotJson, TooLarge

MAX_DEPTH: Final = 64
BYTES_A_VALUE: Final = 16
"""A body may have one value (a comma or an opening bracket outside of texts) for each 16 bytes of its largest size:
131,072 for a job. A decoded value takes about 64 bytes of memory."""
MAX_FIELDS: Final = 10_000
"""Values of a body outside its payload: a job with 1,000 blackouts and 1,000 dates has 4,000."""
USER_DATA: Final = frozenset({"payload", "headers", "metadata", "labels", "if", "default", "over", "filter"})
"""Fields with the user's own data: keys inside them are not changed."""
STEPS: Final = "steps"
"""Steps of a workflow: their names are the user's, and each may have as many values as a job."""
_UNCOUNTED: Final = frozenset({"payload", "depends_on", "over"})

_BOM: Final = b"\xef\xbb\xbf"
_BYTE: Final = re.compile(r" \(byte (\d+)\)$")
_HUMP: Final = re.compile(r"(?<=[a-z0-9])[A-Z]+")
_DECODER: Final = msgspec.json.Decoder()
_FIELDS_DECODER: Final = msgspec.json.Decoder(dict[str, Raw])
_ITEMS_DECODER: Final = msgspec.json.Decoder(list[Raw])

_TEXT: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_TEXTS: Final = re.compile(_TEXT, re.DOTALL)
# A piece takes about 5 ms, after which other threads can run.
_PIECE: Final = re.compile(rb'(?:[^"]*+' + _TEXT + rb"){1,2000}+", re.DOTALL)
_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(b"[]{},"))
_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def read_json(raw: bytes | Raw, *, max_bytes: int, pointer: str = "") -> object:
    """The value of a body, or of the part at a pointer. Raises NotJson, InvalidBody or TooLarge."""
    raw = bytes(raw)
    # A short body has no more values than bytes, and counting its brackets is fast.
    if len(raw) > min(MAX_FIELDS, max_bytes) or raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
        _require_size(raw, max_bytes, pointer)
    try:
        body: object = _DECODER.decode(raw)
    except UnicodeDecodeError:
        raise _not_utf8(raw, _what(pointer)) from None
    except msgspec.DecodeError as error:
        raise _not_json(raw, str(error), _what(pointer)) from None
    except RecursionError:
        raise _too_deep(pointer) from None
    # A look at the bytes rules out nearly all bodies; the walk that knows pointers takes longer than decoding.
    if rb"\u0000" in raw:
        _walk(body, pointer)
    return body


def read_batch(raw: bytes, *, max_bytes: int, items: str) -> object:
    """The body of a batch, with the entries of the list `items` as bytes, for `read_json` to read one by one.

    Only the names of other fields are kept. Raises as `read_json` does.
    """
    _require_size(raw, max_bytes, "", is_deep_later=True)
    try:
        fields = _FIELDS_DECODER.decode(raw)
        return {name: _ITEMS_DECODER.decode(value) if name == items else None for name, value in fields.items()}
    except UnicodeDecodeError:
        raise _not_utf8(raw, _what("")) from None
    except msgspec.ValidationError:
        return read_json(raw, max_bytes=max_bytes)  # not a batch: the caller reports what it is
    except msgspec.DecodeError as error:
        raise _not_json(raw, str(error), _what("")) from None
    except RecursionError:
        raise _too_deep("") from None


def _require_size(raw: bytes, max_bytes: int, pointer: str, *, is_deep_later: bool = False) -> None:
    """Reject bodies that would take too much to decode, by their bytes alone; linear, 5 to 30 ms for a megabyte."""
    if len(raw) > max_bytes:
        raise too_large(max_bytes, len(raw), pointer)
    opened = raw.count(b"[") + raw.count(b"{")
    max_values = max(max_bytes // BYTES_A_VALUE, MAX_FIELDS)
    is_deep = opened > MAX_DEPTH and not is_deep_later
    if not is_deep and opened + raw.count(b",") <= max_values:
        return  # even if every comma and bracket is outside of texts
    values = depth = at = 0
    while at < len(raw):
        found = _PIECE.match(raw, at)
        end = found.end() if found else len(raw)
        structure = _TEXTS.sub(b"", raw[at:end]).translate(None, _NOT_STRUCTURE)
        at = end
        brackets = structure.replace(b",", b"")
        values += len(structure) - len(brackets) + brackets.count(b"[") + brackets.count(b"{")
        if values > max_values:
            raise _too_many(max_values, pointer)
        if is_deep and brackets:
            depths = list(accumulate(map(_STEPS.__getitem__, brackets), initial=depth))
            depth = depths[-1]
            if max(depths) > MAX_DEPTH:
                raise _too_deep(pointer)


def too_large(max_bytes: int, size: int | None = None, pointer: str = "") -> TooLarge:
    """`size` is None if it is unknown, but larger than allowed."""
    has = f"more than {max_bytes:,} bytes" if size is None else f"{size:,} bytes; at most {max_bytes:,} are accepted"
    advice = "store large data elsewhere and send its address, and send many jobs in several batches"
    facts: dict[str, object] = {"max_bytes": max_bytes} if size is None else {"bytes": size, "max_bytes": max_bytes}
    if pointer:
        facts["pointer"] = pointer
    return TooLarge(f"{_what(pointer)} has {has}: {advice}.", **facts)


def _too_many(max_values: int, pointer: str) -> InvalidBody:
    message = (
        f"{_what(pointer)} has more than {max_values:,} values (commas and opening brackets outside of texts): store "
        "large data elsewhere and send its address, or send it as text."
    )
    return InvalidBody(message, faults=(Fault(pointer, message),))


def _what(pointer: str) -> str:
    return f"The job at {pointer}" if pointer else "The body"


def snake_case(body: object, pointer: str = "") -> object:
    """The same body with camelCase field names in snake_case.

    Raises InvalidBody if a field is given in both spellings, or if the body has more values than ondot can use: later
    steps look at each of them.
    """
    _require_few(body, pointer)
    return _snake_case(body, pointer)


def _require_few(body: object, pointer: str) -> None:
    values, nodes = 0, [(pointer, body)]
    while nodes:
        place, node = nodes.pop()
        if not isinstance(node, (dict, list)):
            continue
        values += len(node)
        if values > MAX_FIELDS:
            message = (
                f"There are more than {MAX_FIELDS:,} values outside of the payload; leave out everything that is not a "
                "field of ondot, and put your own data into `payload`."
            )
            raise InvalidBody(message, faults=(Fault(place, message),))
        pairs = node.items() if isinstance(node, dict) else enumerate(node)
        for name, value in pairs:
            below = f"{place}/{escaped(str(name))}"
            if name == STEPS and isinstance(value, dict):
                for step, content in value.items():
                    if isinstance(content, dict):
                        _require_few(content, f"{below}/{escaped(step)}")
            elif isinstance(value, (dict, list)) and name not in _UNCOUNTED:
                nodes.append((below, value))


def _snake_case(body: object, pointer: str) -> object:
    match body:
        case dict():
            return _snake_case_fields(body, pointer)
        case list():
            return [_snake_case(item, f"{pointer}/{i}") for i, item in enumerate(body)]
        case _:
            return body


def snake_case_name(name: str) -> str:
    """callbackUrl, callbackURL → callback_url; other names are not changed."""
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
            message = f"`{other[:64]}` and `{written[:64]}` are two spellings of one field; give one of them."
            raise InvalidBody(message, faults=(Fault(f"{pointer}/{escaped(written)}", message),))
        if name == STEPS and isinstance(value, dict):
            place = f"{pointer}/{escaped(written)}"
            fields[name] = {step: _snake_case(content, f"{place}/{escaped(step)}") for step, content in value.items()}
            continue
        # A filter of events is a pattern over the user's data; one at the top selects jobs or letters by their fields.
        is_own = name in USER_DATA and not (name == "filter" and not pointer)
        nested = isinstance(value, (dict, list)) and not is_own
        fields[name] = _snake_case(value, f"{pointer}/{escaped(written)}") if nested else value
    return fields


def _walk(value: object, pointer: str) -> None:
    """Reject a NUL anywhere. The depth is already checked."""
    match value:
        case str():
            if "\0" in value:
                raise _nul(pointer)
        case dict():
            for key, item in value.items():
                if "\0" in key:
                    raise _nul(pointer)
                _walk(item, f"{pointer}/{escaped(key)}")
        case list():
            for i, item in enumerate(value):
                _walk(item, f"{pointer}/{i}")


def _nul(pointer: str) -> InvalidBody:
    message = r"This text contains a NUL character (\u0000), which cannot be stored; remove it."
    return InvalidBody(message, faults=(Fault(pointer, message),))


def _too_deep(pointer: str) -> InvalidBody:
    message = f"The body is nested deeper than {MAX_DEPTH} levels; make it flatter, or send the inner part as text."
    return InvalidBody(message, faults=(Fault(pointer, message),))


def _not_utf8(raw: bytes, what: str) -> NotJson:
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        at = error.start
        return NotJson(f"{what} is not UTF-8: byte 0x{raw[at]:02x} at {_place(raw, at)}. Send UTF-8.", byte=at)
    raise AssertionError("msgspec found a fault in UTF-8 that Python does not find")


_HALF_A_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")


def _not_json(raw: bytes, reason: str, what: str) -> NotJson:
    if (error := _not_text(raw, what)) is not None:
        return error
    found = _BYTE.search(reason)
    if found is None and "truncated" not in reason:
        return NotJson(f"{what} has a number that is too large to keep: {reason}. Send it as text.")
    if found is None:
        return NotJson(
            f"The body ends too early, after {len(raw):,} bytes: a quote or bracket is not closed.",
            byte=len(raw),
        )
    position = int(found[1])
    reason = reason[: found.start()].removeprefix("JSON is malformed: ")
    return NotJson(f"{what} is not JSON: {reason} at {_place(raw, position)}.", byte=position)


def _not_text(raw: bytes, what: str) -> NotJson | None:
    """Errors that are found before brackets and quotes."""
    if not raw.strip():
        return NotJson(
            'The body is empty; send a JSON object, for example {"name": "hello", "url": "https://example.com"}.'
        )
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return NotJson("The body is UTF-16; send it as UTF-8.", byte=0)
    if raw.startswith(_BOM):
        return NotJson("The body starts with a byte order mark; send UTF-8 without one.", byte=0)
    if half := _HALF_A_PAIR.search(raw):
        return NotJson(
            f"{what} has half of a surrogate pair, which is not a character, at {_place(raw, half.start())}.",
            byte=half.start(),
        )
    return None


def _place(raw: bytes, position: int) -> str:
    before = raw[:position]
    line = before.count(b"\n") + 1
    column = len(before[before.rfind(b"\n") + 1 :].decode(errors="replace")) + 1
    return f"line {line}, column {column} (byte {position})"
