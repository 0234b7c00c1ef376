"""The payload of an execution that an event starts (S11): the event, or what the job's payload makes of it.

A job without a payload gets the whole event. `{"$from": "event.data.amount"}` anywhere in a payload stands for that
part of the event. A part that the event does not have is null: a job that needs one asks for it in its filter
(`exists`).
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Raw

from ondot.model.event import Event
from ondot.model.job import NO_PAYLOAD
from ondot.model.paths import MISSING, look_into
from ondot.model.workflow.values import REFERENCE, may_refer, read_parts

EVENT: Final = "event"
_ENCODER: Final = msgspec.json.Encoder()


def make_payload(payload: Raw, event: Event) -> str | None:
    """The text of the payload; None: the job's own, as it is."""
    if bytes(payload) == bytes(NO_PAYLOAD):
        return event.text
    if not may_refer(payload):
        return None
    return _ENCODER.encode(_fill(_decode(bytes(payload)), {EVENT: event.value})).decode()


def find_faults(payload: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """What is wrong with the references of a payload, each with its path."""
    if isinstance(payload, dict):
        if REFERENCE not in payload:
            for name, value in payload.items():
                yield from find_faults(value, (*path, name))
            return
        parts = read_parts(payload)
        if isinstance(parts, str):
            yield path, parts
        elif parts[0] != EVENT:
            yield (
                path,
                f'The payload of a job that events start refers to the event: {{"$from": "event.data.{parts[-1]}"}}.',
            )
    elif isinstance(payload, list):
        for place, value in enumerate(payload):
            yield from find_faults(value, (*path, str(place)))


@lru_cache(maxsize=1024)
def _decode(payload: bytes) -> Any:
    return msgspec.json.decode(payload)


def _fill(template: Any, values: dict[str, Any]) -> Any:
    if isinstance(template, dict):
        if REFERENCE in template:
            parts = read_parts(template)
            return None if isinstance(parts, str) else _follow(values, parts)
        return {name: _fill(value, values) for name, value in template.items()}
    if isinstance(template, list):
        return [_fill(value, values) for value in template]
    return template


def _follow(value: Any, parts: list[str]) -> Any:
    for part in parts:
        value = look_into(value, part)
        if value is MISSING:
            return None
    return value
