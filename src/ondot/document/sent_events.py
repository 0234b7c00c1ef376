"""Events as they are sent over HTTP (S11): structured, binary or a batch, by the Content-Type.

Structured (`application/cloudevents+json`, also plain JSON without `ce-` headers): the body is the event. Binary: the
attributes are `ce-` headers, and the body is the data, of any kind; data that is not JSON is kept as text, or in
`data_base64` if it is not text. Batch (`application/cloudevents-batch+json`): the body is a list of events.
"""

import base64
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import unquote

from ondot.document.json_text import read_json
from ondot.model.errors import Fault
from ondot.model.event import BATCH, MAX_EVENT_BYTES, STRUCTURED, Event, invalid_event, read_event, read_events

Headers = Iterable[tuple[str, str]]

MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
"""Of a whole batch: an event of it has 8 kB on average at most."""

_TO_SEND: Final = (
    f"Send an event as {STRUCTURED}, several as {BATCH}, or the attributes in ce- headers and the data as the body."
)


def most_bytes(content_type: str | None) -> int:
    """How long the body of a request may be. Structured events may have data in base64, and blanks."""
    return MAX_BATCH_BYTES if _kind(content_type) == BATCH else 2 * MAX_EVENT_BYTES


def read_sent(headers: Headers, content_type: str | None, raw: bytes) -> tuple[list[Event], bool]:
    """The events of a request, and whether they are a batch. Raises NotJson, InvalidBody or TooLarge."""
    kind = _kind(content_type)
    if kind == BATCH:
        return read_events(read_json(raw, max_bytes=MAX_BATCH_BYTES)), True
    attributes = [(name.lower(), value) for name, value in headers if name.lower().startswith("ce-")]
    if kind == STRUCTURED or (not attributes and _is_json(kind)):
        return [read_event(read_json(raw, max_bytes=most_bytes(content_type)))], False
    if not attributes:
        raise invalid_event([Fault("", f"The body is {kind}, and there are no ce- headers. {_TO_SEND}")])
    return [_read_binary(attributes, kind, content_type, raw)], False


def _read_binary(attributes: list[tuple[str, str]], kind: str, content_type: str | None, raw: bytes) -> Event:
    fields: dict[str, Any] = {}
    for header, text in attributes:
        name = header.removeprefix("ce-")
        if name in fields:
            raise invalid_event([Fault(f"/{name}", f"The header {header} is given twice; give it once.")])
        if name in {"data", "data_base64", "datacontenttype"}:
            message = f"There is no header {header}: the data is the body, and Content-Type is its type."
            raise invalid_event([Fault(f"/{name}", message)])
        fields[name] = unquote(text)
    if content_type is not None:
        fields["datacontenttype"] = content_type
    if raw and _is_json(kind):
        fields["data"] = read_json(raw, max_bytes=MAX_EVENT_BYTES)
    elif raw:
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            text = "\x00"
        if "\x00" in text:
            fields["data_base64"] = base64.b64encode(raw).decode()
        else:
            fields["data"] = text
    return read_event(fields)


def _kind(content_type: str | None) -> str:
    return (content_type or "application/json").partition(";")[0].strip().lower()


def _is_json(kind: str) -> bool:
    return kind in {"application/json", "text/json"} or kind.endswith("+json")
