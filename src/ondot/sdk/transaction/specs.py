"""A job's body as the database stores it, and the answer to its creation: what the API would do with both (E11)."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import structs

from ondot.model.duration import as_written
from ondot.model.errors import Fault, InvalidBody
from ondot.model.ids import EPOCH
from ondot.model.job import JobSpec
from ondot.model.text import MAX_NAME
from ondot.sdk.options import ENQUEUED_ONLY, KEYS
from ondot.telemetry.trace_context import current_trace

Answer = dict[str, Any]


def spec_of(body: Mapping[str, Any]) -> JobSpec:
    """The job that a handler's body asks for, without its schedule. Raises InvalidBody or TooLarge, as the API does.

    `document` remembers the bodies that it has read, whatever their payloads are (3 microseconds instead of 50). Keys
    that were filled from arguments differ too, so a plain one is put into the spec of a body that has another.
    """
    from ondot.document.parse import new_job_spec  # here: a program without transactions need not load pydantic

    for option in (*ENQUEUED_ONLY, "depends_on", "key"):
        if option in body:
            raise _not_in_a_transaction(f"A job with `{option}`", f"/{option}")
    if "function" not in body["target"]:
        raise _not_in_a_transaction("A workflow", "/target")
    whole = body if "schedule" not in body else {name: value for name, value in body.items() if name != "schedule"}
    keys = {name: body[name] for name in KEYS if name in body}
    if not keys or not all(map(_is_plain, keys.values())):
        return new_job_spec(whole, EPOCH)
    spec = new_job_spec({**whole, **dict.fromkeys(keys, "key")}, EPOCH)
    assert spec.limits is not None
    limits = structs.replace(spec.limits, key=keys.get("concurrency_key"), order_key=keys.get("order_key"))
    return structs.replace(spec, limits=limits)


def _not_in_a_transaction(what: str, pointer: str) -> InvalidBody:
    message = f"{what} cannot be enqueued in a transaction. Enqueue it outside the block of `app.transaction(…)`."
    return InvalidBody(message, faults=(Fault(pointer, message),))


def with_trace(spec: JobSpec) -> JobSpec:
    """In the trace of the caller, as a request would be."""
    trace = current_trace()
    return spec if trace is None else structs.replace(spec, trace=trace.traceparent, tracestate=trace.state)


def answer_of(spec: JobSpec, body: Mapping[str, Any], id_: str, due_at: datetime, created_at: datetime) -> Answer:
    """The API's answer, as far as it is known here."""
    return {
        "id": id_,
        "state": "ACTIVE",
        "version": 1,
        "next_fire_at": _rfc_3339(due_at) if due_at > created_at else None,
        "name": spec.name,
        "target": body["target"],
        "payload": body.get("payload"),
        "pool": spec.pool,
        "priority": spec.priority,
        "labels": spec.labels,
        "timeout": None if spec.timeout_s is None else as_written(spec.timeout_s),
        "created_at": _rfc_3339(created_at),
    }


def _is_plain(key: object) -> bool:
    """Whether it surely is a key; any other is `document`'s to judge."""
    return isinstance(key, str) and len(key) <= MAX_NAME and key.isascii() and key.isprintable() and bool(key.strip())


def _rfc_3339(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")
