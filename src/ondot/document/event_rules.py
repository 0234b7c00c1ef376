"""What a job does with the events that it matches, in a request: `debounce`, `batch`, `cancel_on` (S11)."""

import re
from typing import Annotated, Any, Final

import msgspec
from pydantic import AfterValidator, Field

from ondot.document.fields import Body, Duration
from ondot.document.shorthand import Path
from ondot.model.duration import as_written
from ondot.model.errors import InvalidBody
from ondot.model.event import MAX_TYPE, OWN_TYPES
from ondot.model.event_rules import (
    LONGEST_S,
    MAX_BATCH,
    MAX_CANCEL_ON,
    MAX_PATH,
    SHORTEST_S,
    Batch,
    CancelOn,
    Debounce,
)
from ondot.model.patterns import compile_pattern

MAX_FILTER_BYTES: Final = 16 * 1024

Faults = list[tuple[Path, str]]

_PATH: Final = re.compile(r"[^.\s\x00]+(\.[^.\s\x00]+)*")


def _path(text: str) -> str:
    if not _PATH.fullmatch(text):
        raise ValueError('the path of a value in the event, for example "data.customer"')
    return text


def _period(seconds: float) -> float:
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise ValueError('a duration from 0.1 seconds to 7 days, for example "5m"')
    return seconds


ValuePath = Annotated[str, Field(max_length=MAX_PATH), AfterValidator(_path)]
Period = Annotated[Duration, AfterValidator(_period)]


class EventDebounceBody(Body):
    """Events of one key start one execution, with the latest of them, when they have been quiet."""

    period: Period = Field(description="How long no further event has come.", examples=["5m"])
    key: ValuePath | None = Field(
        default=None,
        description="The path of a value in the event: each value has a window of its own.",
        examples=["data.customer"],
    )
    timeout: Period | None = Field(
        default=None, description="The longest time after the first event. Default: none.", examples=["10m"]
    )


class BatchBody(Body):
    """Events start one execution together, with a list of them as payload."""

    size: Annotated[int, Field(ge=1, le=MAX_BATCH)] = Field(description="With so many it starts.", examples=[100])
    wait: Period = Field(description="The longest time after the first event.", examples=["5s"])


class CancelOnBody(Body):
    """Events that cancel executions of the job which an event with the same value started."""

    type: Annotated[str, Field(min_length=1, max_length=MAX_TYPE)] = Field(
        description="The type of these events.", examples=["com.acme.order.cancelled"]
    )
    same: ValuePath = Field(
        description="The path of the value that must be the same in both events.", examples=["data.order_id"]
    )
    filter: Any = Field(default=None, description="A pattern that these events must match. Default: all do.")


def read_debounce(body: EventDebounceBody | None) -> tuple[Debounce | None, Faults]:
    if body is None:
        return None, []
    if body.timeout is not None and body.timeout < body.period:
        message = "`timeout` is shorter than `period`: it would always end first. Leave it out, or make it longer."
        return None, [(("debounce", "timeout"), message)]
    return Debounce(period_s=body.period, key=body.key, timeout_s=body.timeout), []


def read_batch(body: BatchBody | None) -> Batch | None:
    return None if body is None else Batch(size=body.size, wait_s=body.wait)


def read_cancel_on(bodies: list[CancelOnBody]) -> tuple[tuple[CancelOn, ...], Faults]:
    rules: list[CancelOn] = []
    faults: Faults = []
    if len(bodies) > MAX_CANCEL_ON:
        return (), [(("cancel_on",), f"A job has at most {MAX_CANCEL_ON} rules in `cancel_on`, got {len(bodies)}.")]
    for place, body in enumerate(bodies):
        at = ("cancel_on", str(place))
        if body.type.startswith(OWN_TYPES):
            faults.append(
                ((*at, "type"), "Events of ondot's own do not cancel; use `limits`, or a workflow with `on_failure`.")
            )
            continue
        text = None if body.filter is None else msgspec.json.encode(body.filter).decode()
        if text is not None:
            faults += [((*at, "filter", *path), message) for path, message in _faults_of_filter(body.filter, text)]
        rules.append(CancelOn(type=body.type, same=body.same, filter=text))
    return ((), faults) if faults else (tuple(rules), [])


def render_rules(debounce: Debounce | None, batch: Batch | None, cancel_on: tuple[CancelOn, ...]) -> dict[str, Any]:
    """As a body has them; only those that are there."""
    rendered: dict[str, Any] = {}
    if debounce is not None:
        timeout = None if debounce.timeout_s is None else as_written(debounce.timeout_s)
        rendered["debounce"] = {"key": debounce.key, "period": as_written(debounce.period_s), "timeout": timeout}
    if batch is not None:
        rendered["batch"] = {"size": batch.size, "wait": as_written(batch.wait_s)}
    if cancel_on:
        rendered["cancel_on"] = [
            {
                "type": rule.type,
                "same": rule.same,
                "filter": None if rule.filter is None else msgspec.json.decode(rule.filter),
            }
            for rule in cancel_on
        ]
    return rendered


def _faults_of_filter(source: object, text: str) -> Faults:
    if len(text.encode()) > MAX_FILTER_BYTES:
        return [((), f"A filter here has at most {MAX_FILTER_BYTES:,} bytes.")]
    try:
        compile_pattern(source)
    except InvalidBody as refusal:
        return [
            (tuple(part.replace("~1", "/").replace("~0", "~") for part in fault.pointer.split("/")[1:]), fault.message)
            for fault in refusal.faults
        ]
    return []
