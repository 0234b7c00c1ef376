"""What a job does with the events that it matches (S11): debounce, batch, cancel_on. Pure.

A window collects events of one key. With `debounce` it closes `period` after its last event, and `timeout` after its
first; with `batch` when it has `size` events, and `wait` after its first. With both, at the first of these. A value of
an event is named by a path (`data.customer`), and two values are the same if they are equal as JSON.
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import Struct

from ondot.model.paths import MISSING, look_into

MAX_PATH: Final = 500
MAX_BATCH: Final = 1_000
MAX_BATCH_BYTES: Final = 1_000_000
"""A list of events that would be larger starts without the last one."""
MAX_CANCEL_ON: Final = 10
SHORTEST_S: Final = 0.1
LONGEST_S: Final = 7 * 86_400.0

_ENCODER: Final = msgspec.json.Encoder(order="sorted")


class Debounce(Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True):
    period_s: float
    key: str | None = None
    """The path of a value: each has a window of its own. None: one window for all events."""
    timeout_s: float | None = None


class Batch(Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True):
    size: int
    wait_s: float


class CancelOn(Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True):
    type: str
    same: str
    """The path of a value that must be the same in this event and in the one that started the execution."""
    filter: str | None = None


def find_value(event: Mapping[str, Any], path: str) -> object:
    """The value at a path; a value of this module's own if there is none."""
    value: Any = event
    for part in path.split("."):
        value = look_into(value, part)
        if value is MISSING:
            return MISSING
    return value


def window_key(debounce: Debounce | None, event: Mapping[str, Any]) -> UUID:
    """Which window of a job an event belongs to. Events without the value share one."""
    if debounce is None or debounce.key is None:
        return UUID(int=0)
    return _hash(debounce.key, find_value(event, debounce.key))


def cancel_keys(rules: Sequence[CancelOn], event: Mapping[str, Any]) -> list[UUID]:
    """By what an execution that this event starts is found when it is to be cancelled."""
    paths = dict.fromkeys(rule.same for rule in rules)
    return [key for path in paths if (key := cancel_key(path, event)) is not None]


def cancel_key(path: str, event: Mapping[str, Any]) -> UUID | None:
    """None: the event has no such value, so it is the same as no other."""
    value = find_value(event, path)
    return None if value is MISSING else _hash(path, value)


def closes_at(debounce: Debounce | None, batch: Batch | None, opened_at: datetime, now: datetime) -> datetime:
    """When a window closes that gets an event now."""
    ends = []
    if debounce is not None:
        ends.append(now + timedelta(seconds=debounce.period_s))
        if debounce.timeout_s is not None:
            ends.append(opened_at + timedelta(seconds=debounce.timeout_s))
    if batch is not None:
        ends.append(opened_at + timedelta(seconds=batch.wait_s))
    return min(ends)


def _hash(path: str, value: object) -> UUID:
    text = b"missing" if value is MISSING else b"=" + _ENCODER.encode(_as_number(value))
    return UUID(bytes=hashlib.sha256(path.encode() + b"\0" + text).digest()[:16])


def _as_number(value: Any) -> Any:
    """1.0 is 1, as in a pattern."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_as_number(item) for item in value]
    if isinstance(value, dict):
        return {name: _as_number(item) for name, item in value.items()}
    return value
