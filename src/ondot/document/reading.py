"""From a request's JSON to a checked body: short forms expanded, fields checked, every fault kept with its pointer.

Fields of later releases are rejected with a message that says so, never ignored. All faults of a body are reported at
once, up to twenty, with pointers into the body as it was written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import Raw
from pydantic import BaseModel, ValidationError

from ondot.document.errors import MAX_FAULTS, Written, describe_value, faults_of, invalid_body
from ondot.document.functions import KnownFunctions
from ondot.document.json_text import snake_case
from ondot.document.merge_patch import merge
from ondot.document.rules import MAX_PAYLOAD_BYTES
from ondot.document.schedule import Before, schedule_of
from ondot.document.schedule_body import ScheduleBody
from ondot.document.shorthand import SCHEDULE_KINDS, TARGET_KINDS, Path, to_long_form
from ondot.model.errors import Fault, InvalidBody, InvalidGraph, TooLarge
from ondot.model.job import NO_PAYLOAD
from ondot.model.schedule import Schedule

_ENCODER: Final = msgspec.json.Encoder()
_NULL: Final = b"null"
_KINDS: Final = {"schedule": SCHEDULE_KINDS, "target": TARGET_KINDS}

Form = TypeVar("Form", bound=BaseModel)


@dataclass(slots=True)
class Reading(Generic[Form]):
    """A body while it is read: `body` is None if its fields have faults."""

    written: Written
    long: dict[str, object]
    body: Form | None = None
    faults: list[Fault] = field(default_factory=list)
    all_of_schedule: bool = True
    all_of_graph: bool = True

    def reject(self, path: Path, message: str) -> None:
        """Add a fault at a path of the long form."""
        self.add(path, self.written.fault(self.written.path(path), message))

    def add(self, path: Path, fault: Fault) -> None:
        self.faults.append(fault)
        self.all_of_schedule = self.all_of_schedule and path[:1] == ("schedule",)
        self.all_of_graph = False

    def reject_graph(self, path: Path, message: str) -> None:
        """Add a fault of the graph of a workflow: alone they have a code of their own."""
        all_of_graph = self.all_of_graph
        self.reject(path, message)
        self.all_of_graph = all_of_graph

    def refusal(self) -> InvalidBody:
        """All faults as one error."""
        refusal = invalid_body(self.faults, all_of_schedule=self.all_of_schedule)
        return InvalidGraph(refusal.message, faults=refusal.faults) if self.all_of_graph else refusal

    def pointer(self, path: Path) -> str:
        return self.written.fault(self.written.path(path), "").pointer

    def name(self, path: Path) -> str:
        return ".".join(self.written.path(path))

    def check_kinds(self) -> None:
        """Reject anything but exactly one kind of schedule and of target."""
        for place, kinds in _KINDS.items():
            content = self.long.get(place)
            if not isinstance(content, dict):
                continue
            given = [kind for kind in kinds if content.get(kind) is not None]
            if len(given) != 1:
                names = ", ".join(kinds)
                got = " and ".join(f"`{self.name((place, kind))}`" for kind in given) or "none"
                path = (place, given[1]) if given else (place,)
                self.reject(path, f"`{place}` takes exactly one of {names}, got {got}.")

    def schedule(self, now: datetime, before: Before | None = None, *, may_be_over: bool = False) -> Schedule | None:
        """The schedule of the model. It is read even if other fields have faults, to report all at once."""
        if before is not None and self.long.get("schedule") == before.written:
            return before.schedule
        body = getattr(self.body, "schedule", None)
        if self.body is None and isinstance(self.long.get("schedule"), dict):
            try:
                body = ScheduleBody.model_validate(self.long["schedule"])
            except ValidationError:
                return None
        if not isinstance(body, ScheduleBody) or sum(kind is not None for kind in _kinds(body)) != 1:
            return None
        faults, schedule = schedule_of(body, now, before, may_be_over=may_be_over)
        for path, message in faults:
            # An `in` has become an instant; a fault of that instant is a fault of `in`.
            place = ("schedule", "in") if path == ("at",) and body.in_ is not None else ("schedule", *path)
            self.reject(place, f"`{self.name(place)}`: {message}")
        return schedule


def read(
    form: type[Form],
    raw: object,
    pointer: str,
    example: str,
    *,
    base: dict[str, object] | None = None,
    origins: Mapping[Path, Path] = MappingProxyType({}),
    functions: KnownFunctions | None = None,
) -> Reading[Form]:
    """A body in its long form, checked. With a `base` the body is a patch, and the patched base is checked; otherwise
    it gets the options of the `functions` that it names."""
    if not isinstance(raw, dict):
        raise not_a(pointer, f"The body must be a JSON object, {example}, got {describe_value(raw)}.")
    fields = snake_case(raw, pointer)
    assert isinstance(fields, dict)
    long = to_long_form(fields, is_patch=base is not None)
    if functions is not None and base is None:
        functions.add_options(long.body)
    body = long.body if base is None else merge(base, long.body, form)
    reading = Reading[Form](Written(raw, pointer, long.origins | dict(origins)), body)
    for path, message in long.faults[:MAX_FAULTS]:
        reading.add((), reading.written.fault(reading.written.spelled(path), message))
    reading.check_kinds()
    try:
        reading.body = form.model_validate(body)
    except ValidationError as error:
        for path, fault in faults_of(error, form, reading.written):
            reading.add(path, fault)
    return reading


def not_a(pointer: str, message: str) -> InvalidBody:
    return InvalidBody(message, faults=(Fault(pointer, message),))


def read_form(form: type[Form], raw: object, example: str) -> Form:
    """A small body as its form, without short forms; `example` shows one. Raises InvalidBody."""
    if not isinstance(raw, dict):
        message = f"The body must be a JSON object, {example}, got {describe_value(raw)}."
        raise InvalidBody(message, faults=(Fault("", message),))
    try:
        return form.model_validate(snake_case(raw))
    except ValidationError as error:
        faults = [fault for _, fault in faults_of(error, form, Written(raw, "", {}))]
        raise invalid_body(faults, all_of_schedule=False) from None


def encode_payload(payload: object, pointer: str) -> Raw:
    return as_payload(encode_payload_text(payload, pointer))


def as_payload(text: bytes) -> Raw:
    # The default itself, so that a spec without a payload is stored without it.
    return NO_PAYLOAD if text is _NULL else Raw(text)


def encode_payload_text(payload: object, pointer: str) -> bytes:
    """The bytes themselves: those of a `Raw` would be a copy."""
    if payload is None:
        return _NULL
    encoded = _ENCODER.encode(payload)
    if len(encoded) > MAX_PAYLOAD_BYTES:
        raise TooLarge(
            f"The payload has {len(encoded):,} bytes; at most {MAX_PAYLOAD_BYTES:,} are accepted. "
            "Store it elsewhere and send its address.",
            pointer=f"{pointer}/payload",
            bytes=len(encoded),
            max_bytes=MAX_PAYLOAD_BYTES,
        )
    return encoded


def _kinds(body: ScheduleBody) -> tuple[object, ...]:
    """The kinds that the model has; `check_kinds` has rejected the others."""
    return body.cron, body.every, body.at, body.in_, body.rrule, body.event
