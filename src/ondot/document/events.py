"""A schedule by events in a request: which events start a job (S11). `model.patterns` checks the filter."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Raw
from pydantic import Field

from ondot.document.event_rules import (
    BatchBody,
    CancelOnBody,
    EventDebounceBody,
    read_batch,
    read_cancel_on,
    read_debounce,
    render_rules,
)
from ondot.document.fields import Body
from ondot.document.shorthand import Path
from ondot.model.errors import InvalidBody
from ondot.model.event import MAX_SOURCE, MAX_TYPE, fault_of_type
from ondot.model.patterns import compile_pattern
from ondot.model.schedule import OnEvent

MAX_FILTER_BYTES: Final = 64 * 1024

Faults = list[tuple[Path, str]]


class SourceBody(Body):
    """Sources that start with a text."""

    prefix: str = Field(min_length=1, max_length=MAX_SOURCE, description="How the source starts.", examples=["/shop"])


class EventBody(Body):
    """Events that start the job: each one of this type that matches."""

    type: Annotated[str, Field(min_length=1, max_length=MAX_TYPE)] = Field(
        description="The type of the events.", examples=["com.acme.order.paid"]
    )
    source: str | SourceBody | None = Field(
        default=None, description='Their source, or {"prefix": "/shop"}. Default: any.', examples=[{"prefix": "/shop"}]
    )
    filter: Any = Field(
        default=None,
        description="A pattern that they must match, as EventBridge has them. Default: every one matches.",
        examples=[{"data": {"amount": [{"numeric": [">=", 100]}]}}],
    )
    debounce: EventDebounceBody | None = Field(
        default=None, description="One execution for many events, with the latest.", examples=[{"period": "5m"}]
    )
    batch: BatchBody | None = Field(
        default=None, description="One execution with a list of events.", examples=[{"size": 100, "wait": "5s"}]
    )
    cancel_on: list[CancelOnBody] = Field(
        default_factory=list,
        description="Events that cancel executions which an event with the same value started.",
        examples=[[{"type": "com.acme.order.cancelled", "same": "data.order_id"}]],
    )


def read_event(body: EventBody) -> tuple[OnEvent | None, Faults]:
    """The rule of the model, or what is wrong with it, with paths relative to it."""
    faults: Faults = []
    if (fault := fault_of_type(body.type, from_outside=False)) is not None:
        faults.append((("type",), fault))
    if isinstance(body.source, str) and not 1 <= len(body.source) <= MAX_SOURCE:
        faults.append((("source",), f"A source has 1 to {MAX_SOURCE:,} characters. Leave it out to accept any."))
    text = None
    if body.filter is not None:
        text = msgspec.json.encode(body.filter).decode()
        faults.extend(_faults_of_filter(body, len(text.encode())))
    debounce, faults_of_debounce = read_debounce(body.debounce)
    cancel_on, faults_of_cancel_on = read_cancel_on(body.cancel_on)
    faults += faults_of_debounce + faults_of_cancel_on
    if faults:
        return None, faults
    is_exact = isinstance(body.source, str)
    return OnEvent(
        type=body.type,
        source=body.source if is_exact else None,  # type: ignore[arg-type]
        source_prefix=body.source.prefix if isinstance(body.source, SourceBody) else None,
        filter=text,
        debounce=debounce,
        batch=read_batch(body.batch),
        cancel_on=cancel_on,
    ), []


def rule_of_wait(written: Raw) -> OnEvent:
    """The event that a step of a workflow waits for; it was checked when the workflow was created."""
    rule, faults = read_event(EventBody(**msgspec.json.decode(written)))
    assert rule is not None, faults
    return rule


def render_event(rule: OnEvent) -> dict[str, Any]:
    """As a body has it."""
    source = {"prefix": rule.source_prefix} if rule.source_prefix is not None else rule.source
    return {
        "type": rule.type,
        "source": source,
        "filter": None if rule.filter is None else msgspec.json.decode(rule.filter),
        **render_rules(rule.debounce, rule.batch, rule.cancel_on),
    }


def _faults_of_filter(body: EventBody, size: int) -> Faults:
    if size > MAX_FILTER_BYTES:
        return [(("filter",), f"A filter has at most {MAX_FILTER_BYTES:,} bytes, got {size:,}.")]
    faults: Faults = []
    if isinstance(body.filter, dict):
        if "type" in body.filter:
            faults.append((("filter", "type"), "The type is given beside the filter; leave it out here."))
        if "source" in body.filter and body.source is not None:
            faults.append((("filter", "source"), "The source is given beside the filter; leave one of the two out."))
    try:
        compile_pattern(body.filter)
    except InvalidBody as refusal:
        for fault in refusal.faults:
            path = (part.replace("~1", "/").replace("~0", "~") for part in fault.pointer.split("/")[1:])
            faults.append((("filter", *path), fault.message))
    return faults
