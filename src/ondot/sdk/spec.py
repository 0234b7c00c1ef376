"""The spec of a job from a handler's body, for jobs that reach the database without the API (E11).

The body is what `Handler.body` makes, so its fields and their company were checked where the function was registered;
here they get the model's form, and what a number may be is looked at. What says what becomes of a job as it is created
(`unique`, `debounce`, `throttle`) needs the API and is refused. A test holds this together with `document.parse`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from ondot.model.duration import as_written, seconds
from ondot.model.errors import Fault, InvalidBody
from ondot.model.gates import MAX_AT_ONCE, Limits, Rate, rate_of
from ondot.model.job import FunctionTarget, JobSpec
from ondot.model.retry import Retry

_AS_THEY_ARE: Final = frozenset({"name", "pool", "priority", "labels"})
_SECONDS: Final = {"timeout": "timeout_s", "start_deadline": "start_deadline_s", "cancel_grace": "cancel_grace_s"}
_LIMITS: Final = frozenset({"concurrency_key", "key_concurrency", "key_rate", "order_key"})
_NOT_HERE: Final = (
    "cannot be enqueued in a transaction: enqueue it outside of the block of `app.transaction(connection)`."
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A spec without its schedule, and when it is due: at an instant, in so many seconds, or now if both are None."""

    spec: JobSpec
    at: datetime | None = None
    in_s: float | None = None


def wanted(body: Mapping[str, Any]) -> Wanted:
    """What a handler's body asks for. Raises InvalidBody if it cannot be, or not in a transaction."""
    fields: dict[str, Any] = {}
    at: datetime | None = None
    in_s: float | None = None
    for name, value in body.items():
        try:
            if name == "target":
                fields["target"] = FunctionTarget(name=value["function"])
            elif name == "payload":
                fields["payload"] = msgspec.Raw(msgspec.json.encode(value))
            elif name == "retry":
                fields["retry"] = _retry(value)
            elif name == "schedule" and value.keys() == {"at"}:
                at = datetime.fromisoformat(value["at"])
            elif name == "schedule" and value.keys() == {"in"}:
                in_s = seconds(value["in"])
            elif name in _SECONDS:
                fields[_SECONDS[name]] = seconds(value)
            elif name in _AS_THEY_ARE:
                fields[name] = value
            elif name not in _LIMITS:
                raise _refused(name, f"A job with `{name}` {_NOT_HERE}")
        except (ValueError, TypeError, msgspec.ValidationError) as error:
            raise _refused(name, f"`{name}` must be {error}.") from None
    fields["limits"] = _limits({name: value for name, value in body.items() if name in _LIMITS})
    return Wanted(JobSpec(**fields), at, in_s)


def _retry(body: Mapping[str, Any]) -> Retry:
    fields = dict(body)
    for name, value in body.items():
        if name in {"initial", "max"}:
            fields[f"{name}_s"] = seconds(fields.pop(name))
        elif name == "delays":
            fields["delays_s"] = [seconds(delay) for delay in fields.pop(name)]
        elif name in {"retry_on", "never_on"}:
            fields[name] = list(dict.fromkeys(str(entry) for entry in value))
    if unknown := fields.keys() - set(Retry.__struct_fields__):
        raise ValueError(f"without `{min(unknown)}`, which is not known")
    return msgspec.convert(fields, Retry)


def _limits(body: Mapping[str, Any]) -> Limits | None:
    if not body:
        return None
    key = body.get("concurrency_key")
    at_once = body.get("key_concurrency")
    rate = body.get("key_rate")
    if key is not None and at_once is None and rate is None:
        at_once = 1
    if at_once is not None and (not isinstance(at_once, int) or not 1 <= at_once <= MAX_AT_ONCE):
        raise _refused("key_concurrency", f"`key_concurrency` must be a whole number from 1 to {MAX_AT_ONCE:,}.")
    return Limits(
        order_key=_key("order_key", body.get("order_key")),
        key=_key("concurrency_key", key),
        key_concurrency=at_once,
        key_rate=None if rate is None else _rate(rate),
    )


def _key(name: str, key: object) -> str | None:
    if key is not None and not (isinstance(key, str) and key.strip() and len(key) <= 200 and key.isprintable()):
        raise _refused(name, f"`{name}` must be text of 1 to 200 characters; {key!r:.80} came.")
    return key


def _rate(written: object) -> Rate:
    try:
        return rate_of(written)
    except ValueError as error:
        raise _refused("key_rate", f"`key_rate` must be {error}.") from None


def _refused(name: str, message: str) -> InvalidBody:
    return InvalidBody(message, faults=(Fault(f"/{name}", message),))


def shown(wanted: Wanted, body: Mapping[str, Any]) -> dict[str, Any]:
    """What the answer to its creator tells of it."""
    spec = wanted.spec
    return {
        "name": spec.name,
        "target": body["target"],
        "payload": body.get("payload"),
        "pool": spec.pool,
        "priority": spec.priority,
        "labels": spec.labels,
        "timeout": None if spec.timeout_s is None else as_written(spec.timeout_s),
    }
