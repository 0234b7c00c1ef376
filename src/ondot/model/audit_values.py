"""The values of a change, as the audit log shows them (T6): the fields that changed, without secrets.

The log outlives the job and is read by more people than may read the job, so it has no payloads and no header values,
and no long lists: a value of more than some kilobytes is shown as its size.
"""

from typing import Any, Final

import msgspec
from msgspec import structs

from ondot.model.job import NO_PAYLOAD, TRACE_FIELDS, JobSpec

MASK: Final = "•••"
LONGEST: Final = 4096
"""Bytes of one value."""

Values = dict[str, Any]


def show_spec(spec: JobSpec) -> Values:
    """The fields of a job that differ from their defaults."""
    shown: Values = msgspec.json.decode(msgspec.json.encode(structs.replace(spec, payload=NO_PAYLOAD)))
    for name in TRACE_FIELDS:
        shown.pop(name, None)
    if spec.payload != NO_PAYLOAD:
        shown["payload"] = f"{MASK} ({len(bytes(spec.payload)):,} bytes)"
    target = shown["target"]
    if "headers" in target:
        target["headers"] = dict.fromkeys(target["headers"], MASK)
    return {name: _shorten(value) for name, value in shown.items()}


def show_changes(old: JobSpec, new: JobSpec) -> tuple[Values, Values]:
    """The fields that changed, before and after; a field at its default is None."""
    before, after = show_spec(old), show_spec(new)
    names = [
        name
        for name in JobSpec.__struct_fields__
        if name not in TRACE_FIELDS and getattr(old, name) != getattr(new, name)
    ]
    return {name: before.get(name) for name in names}, {name: after.get(name) for name in names}


def _shorten(value: Any) -> Any:
    size = len(msgspec.json.encode(value))
    return value if size <= LONGEST else f"({size:,} bytes)"
