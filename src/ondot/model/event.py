"""A CloudEvent 1.0 (S11): one JSON object, checked strictly. `document.sent_events` reads its three forms on the wire.

Unknown attributes are extensions, whose names are lower-case letters and digits. Types that begin with `ondot.` are
ondot's own.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import Struct, structs

from ondot.model.errors import Fault, InvalidBody
from ondot.model.pattern_tests import shown
from ondot.model.text import hidden_in
from ondot.model.trace import TraceContext

MAX_TYPE: Final = 255
MAX_SOURCE: Final = 1_024
MAX_ID: Final = 255
MAX_SUBJECT: Final = 1_024
MAX_ATTRIBUTE: Final = 4_096
MAX_EXTENSIONS: Final = 50
MAX_EVENT_BYTES: Final = 256 * 1024
MAX_EVENTS: Final = 1_000
OWN_TYPES: Final = "ondot."
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"

_CONTEXT: Final = frozenset(
    {"specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema", "data", "data_base64"}
)
_EXTENSION: Final = re.compile(r"[a-z0-9]{1,40}")
_INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_TEXTS: Final = {"id": MAX_ID, "source": MAX_SOURCE, "type": MAX_TYPE, "subject": MAX_SUBJECT}
_ENCODER: Final = msgspec.json.Encoder()


class Event(Struct, frozen=True, gc=False):
    """An event as it was sent. `value` is what patterns look at, `text` the same as JSON."""

    id: str
    source: str
    type: str
    subject: str | None
    time: datetime | None
    value: dict[str, Any]
    text: str

    @property
    def size(self) -> int:
        """How much a pattern may have to look at: values, and long text."""
        return 1 + self.text.count(",") // 4 + len(self.text) // 2048

    @property
    def key(self) -> UUID:
        """By what a repeated event is known: its source and id."""
        digest = hashlib.sha256(f"{len(self.source)}:{self.source}{self.id}".encode()).digest()
        return UUID(bytes=digest[:16])


def read_events(values: object, *, from_outside: bool = True) -> list[Event]:
    """The events of a batch. Raises InvalidBody with the faults of all."""
    if not isinstance(values, list):
        raise invalid_event([Fault("", "A batch is a list of events; send one event as application/cloudevents+json.")])
    if not 1 <= len(values) <= MAX_EVENTS:
        raise invalid_event([Fault("", f"A batch has 1 to {MAX_EVENTS:,} events, got {len(values):,}.")])
    events: list[Event] = []
    faults: list[Fault] = []
    for place, value in enumerate(values):
        try:
            events.append(read_event(value, f"/{place}", from_outside=from_outside))
        except InvalidBody as refusal:
            faults += refusal.faults
            if len(faults) >= 20:
                break
    if faults:
        raise invalid_event(faults[:20])
    return events


def read_event(value: object, pointer: str = "", *, from_outside: bool = True) -> Event:
    """The event of a JSON value. Raises InvalidBody with a fault for each error."""
    if not isinstance(value, dict):
        message = (
            'An event is a JSON object, such as {"specversion": "1.0", "id": "1", "source": "/shop", "type": "x"}.'
        )
        raise invalid_event([Fault(pointer, message)])
    # null means that an optional attribute is not there.
    fields = {name: content for name, content in value.items() if content is not None or name == "data"}
    faults = [Fault(f"{pointer}/{name}", message) for name, message in _faults(fields, from_outside=from_outside)]
    if faults:
        raise invalid_event(faults)
    text = _ENCODER.encode(fields).decode()
    if (size := len(text.encode())) > MAX_EVENT_BYTES:
        advice = "Store its data elsewhere, and send the address."
        message = f"An event has at most {MAX_EVENT_BYTES:,} bytes, got {size:,}. {advice}"
        raise invalid_event([Fault(pointer, message)])
    return Event(
        fields["id"],
        fields["source"],
        fields["type"],
        fields.get("subject"),
        _instant(fields.get("time")),
        fields,
        text,
    )


def carry_trace(event: Event, trace: TraceContext | None) -> Event:
    """The event with the trace of its request, by the extension of CloudEvents for that, unless it has its own."""
    if trace is None or TRACEPARENT in event.value:
        return event
    value = {name: content for name, content in event.value.items() if name != TRACESTATE}
    value[TRACEPARENT] = trace.traceparent
    if trace.state is not None:
        value[TRACESTATE] = trace.state
    return structs.replace(event, value=value, text=_ENCODER.encode(value).decode())


def fault_of_type(type_: str, *, from_outside: bool) -> str | None:
    """What is wrong with the type of an event."""
    if (hidden := hidden_in(type_)) is not None:
        return f"A type has visible characters only, got {hidden}."
    if from_outside and type_.startswith(OWN_TYPES):
        return (
            f"Types that begin with {OWN_TYPES} are ondot's own; name yours after your domain: com.example.order.paid."
        )
    return None


def _faults(fields: Mapping[str, Any], *, from_outside: bool) -> Iterator[tuple[str, str]]:
    """Each with the name of its attribute."""
    version = fields.get("specversion")
    if version != "1.0":
        yield "specversion", f'`specversion` must be "1.0", got {shown(version)}.'
    yield from _faults_of_texts(fields, from_outside=from_outside)
    if "time" in fields and _instant(fields["time"]) is None:
        yield "time", f'`time` must be an instant such as "2026-11-16T12:00:00Z", got {shown(fields["time"])}.'
    for name in ("datacontenttype", "dataschema"):
        if name in fields and not _is_short_text(fields[name]):
            yield name, f"`{name}` must be a text of 1 to {MAX_ATTRIBUTE:,} characters, got {shown(fields[name])}."
    if "data_base64" in fields:
        if "data" in fields:
            yield "data_base64", "`data` and `data_base64` exclude each other; give one of them."
        if not _is_base64(fields["data_base64"]):
            yield "data_base64", "`data_base64` must be text in base64."
    yield from _faults_of_extensions([(name, value) for name, value in fields.items() if name not in _CONTEXT])


def _faults_of_texts(fields: Mapping[str, Any], *, from_outside: bool) -> Iterator[tuple[str, str]]:
    for name, longest in _TEXTS.items():
        text = fields.get(name)
        if text is None:
            if name != "subject":
                yield name, f"`{name}` is missing: every event has one."
        elif not isinstance(text, str) or not 1 <= len(text) <= longest:
            yield name, f"`{name}` must be a text of 1 to {longest:,} characters, got {shown(text)}."
        elif name != "type" and (hidden := hidden_in(text)) is not None:
            yield name, f"`{name}` has visible characters only, got {hidden}."
        elif name == "type" and (fault := fault_of_type(text, from_outside=from_outside)) is not None:
            yield name, fault


def _faults_of_extensions(extensions: list[tuple[str, Any]]) -> Iterator[tuple[str, str]]:
    if len(extensions) > MAX_EXTENSIONS:
        yield "", f"An event has at most {MAX_EXTENSIONS} extension attributes, got {len(extensions)}."
        return
    for name, value in extensions:
        pointer = name.replace("~", "~0").replace("/", "~1")
        if _EXTENSION.fullmatch(name) is None:
            advice = "lower-case letters and digits, at most 40; put your own data into `data`"
            yield pointer, f"{shown(name)} is not a name of an attribute: {advice}."
        elif isinstance(value, (dict, list)) or (isinstance(value, str) and len(value) > MAX_ATTRIBUTE):
            kind = "a text, number or boolean"
            yield pointer, f"The attribute `{name}` must be {kind} of at most {MAX_ATTRIBUTE:,} characters."


def _instant(text: object) -> datetime | None:
    if not isinstance(text, str) or _INSTANT.fullmatch(text) is None:
        return None
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _is_short_text(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= MAX_ATTRIBUTE


def _is_base64(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(base64.b64decode(value, validate=True) or not value)
    except (binascii.Error, ValueError):
        return False


def invalid_event(faults: list[Fault]) -> InvalidBody:
    message = faults[0].message if len(faults) == 1 else f"There are {len(faults)} errors in what was sent."
    return InvalidBody(message, faults=tuple(faults))
