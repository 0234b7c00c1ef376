"""The target of a job in the long form, and the steps of a workflow: what an answer shows, and a patch is applied to.

A step shows the fields that it was given, and no defaults: a workflow may have 10,000 of them.
"""

from typing import Annotated, Any, Final, assert_never

import msgspec
from msgspec import Raw
from pydantic import Field
from typing_extensions import TypedDict

from ondot.document.grpc import GrpcOut, render_grpc
from ondot.document.publish import render_publish
from ondot.document.structs import to_document, to_json
from ondot.model.duration import as_written
from ondot.model.gates import Limits
from ondot.model.headers import is_sensitive
from ondot.model.job import TargetSpec
from ondot.model.secret import MASK, Hidden
from ondot.model.signature import SIGNING_HEADER
from ondot.model.target import FunctionTarget, GrpcTarget, HttpTarget, PublishTarget, ShellTarget
from ondot.model.workflow.spec import (
    Approve,
    MapSpec,
    OnFailure,
    StepSpec,
    StepTarget,
    SubWorkflow,
    Tolerate,
    Wait,
    WorkflowTarget,
)

Seconds = int | float

_STEP: Final = StepSpec()
_LIMITS: Final = Limits()


class HttpOut(TypedDict):
    url: str
    method: str
    headers: dict[str, str | dict[str, str]]
    signing_secret: str | dict[str, str] | None
    connect_timeout: Seconds | None
    first_byte_timeout: Seconds | None
    follow_redirects: bool


class ShellOut(TypedDict):
    command: list[str]


class WorkflowOut(TypedDict):
    steps: Annotated[dict[str, dict[str, Any]], Field(description="Each step with the fields that it was given.")]
    on_failure: OnFailure
    blocked_for: Seconds


class TargetOut(TypedDict, total=False):
    """One of `http`, `function`, `shell`, `grpc`, `publish`, `workflow`."""

    http: HttpOut
    function: str
    shell: ShellOut
    grpc: GrpcOut
    publish: dict[str, Any]
    workflow: WorkflowOut


def render_target(target: TargetSpec) -> TargetOut:
    match target:
        case HttpTarget():
            # Spelled out for speed: targets are not remembered.
            connect_s, first_byte_s = target.connect_timeout_s, target.first_byte_timeout_s
            return {
                "http": {
                    "url": target.url,
                    "method": target.method,
                    "headers": (headers := _render_headers(target.headers) if target.headers else {}),
                    "signing_secret": headers.pop(SIGNING_HEADER, None),
                    "connect_timeout": None if connect_s is None else as_written(connect_s),
                    "first_byte_timeout": None if first_byte_s is None else as_written(first_byte_s),
                    "follow_redirects": target.follow_redirects,
                }
            }
        case FunctionTarget():
            return {"function": target.name}
        case ShellTarget():
            return {"shell": {"command": list(target.command)}}
        case GrpcTarget():
            return {"grpc": render_grpc(target)}
        case PublishTarget():
            return {"publish": render_publish(target, _render_headers(target.headers))}
        case WorkflowTarget():
            return {"workflow": _render_workflow(target)}
    assert_never(target)


def _render_headers(headers: dict[str, str | Hidden]) -> dict[str, str | dict[str, str]]:
    """Credentials are masked, also those that were stored before they were sealed."""
    return {
        name: value.render() if isinstance(value, Hidden) else MASK if is_sensitive(name) else value
        for name, value in headers.items()
    }


def _render_workflow(target: WorkflowTarget) -> WorkflowOut:
    return {
        "steps": {name: render_step(step) for name, step in target.steps.items()},
        "on_failure": target.on_failure,
        "blocked_for": as_written(target.blocked_for_s),
    }


def render_step(step: StepSpec) -> dict[str, Any]:
    """A step in the long form, which as a body means the same step."""
    fields = {
        "depends_on": list(step.depends_on) or None,
        **({} if step.target is None else _render_call(step.target)),
        "when": None if step.when == _STEP.when else step.when,
        "if": _decode(step.condition),
        "payload": _decode(step.payload),
        "map": None if step.map is None else _render_map(step.map),
        "finally": step.is_final or None,
        "handles": step.handles or None,
        "default": _decode(step.default),
        "retry": None if step.retry is None else to_document(step.retry),
        "timeout": to_json(step.timeout_s),
        "pool": step.pool,
        "priority": step.priority,
        "labels": step.labels or None,
        **({} if step.limits is None else _render_limits(step.limits)),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _decode(raw: Raw | None) -> Any:
    return None if raw is None else msgspec.json.decode(raw)


def _render_limits(limits: Limits) -> dict[str, Any]:
    defaults = to_document(_LIMITS)
    return {
        "concurrency_key" if name == "key" else name: value
        for name, value in to_document(limits).items()
        if value != defaults[name]
    }


def _render_call(target: StepTarget) -> dict[str, Any]:
    match target:
        case HttpTarget() | FunctionTarget() | ShellTarget() | GrpcTarget() | PublishTarget():
            return {"target": render_target(target)}
        case Wait(event=None):
            return {"wait": to_json(target.for_s)}
        case Wait():
            event = _decode(target.event)
            timeout = {} if target.timeout_s is None else {"timeout": as_written(target.timeout_s)}
            return {"wait": {"event": event, **timeout}}
        case Approve():
            return {"approve": to_document(target)}
        case SubWorkflow():
            return {"workflow": target.key}
    assert_never(target)


def _render_map(spec: MapSpec) -> dict[str, Any]:
    rendered: dict[str, Any] = {} if spec.over is None else {"over": _decode(spec.over)}
    if spec.each is not None:
        rendered["each"] = spec.each
    if spec.concurrency is not None:
        rendered["concurrency"] = spec.concurrency
    match spec.tolerate:
        case Tolerate(count=int(count)):
            rendered["tolerate"] = {"count": count}
        case Tolerate(percent=float(percent)):
            rendered["tolerate"] = {"percent": as_written(percent)}
    return rendered
