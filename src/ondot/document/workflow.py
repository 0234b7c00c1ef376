"""The workflow of a job as people write it (W1, W2): steps read, and their graph checked.

Steps arrive in the long form (`shorthand` has expanded their short forms). Every fault is reported with a pointer to
the field as it was written. Faults of the graph, such as a cycle or a reference to a step that is no ancestor, are
looked for once all steps can be read; they are a 400 of their own.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, Any, Final

import msgspec
from msgspec import Raw
from pydantic import Field, ValidationError

from ondot.document.attempt import RetryBody, target_of
from ondot.document.body import JobBody
from ondot.document.errors import MAX_FAULTS, Written, describe_value, faults_of, unknown_field
from ondot.document.fields import Body
from ondot.document.reading import Form, Reading, encode_payload_text
from ondot.document.shorthand import ATTEMPT_KINDS, STEPS, Path
from ondot.document.step_body import CALLS, StepBody, Waiting
from ondot.document.structs import to_struct, with_own_defaults
from ondot.model.errors import Fault, InvalidBody, TooLarge
from ondot.model.event import MAX_SOURCE, fault_of_type
from ondot.model.gates import Limits
from ondot.model.patterns import compile_pattern
from ondot.model.workflow.graph import Ancestry, find_faults
from ondot.model.workflow.spec import (
    BLOCKED_FOR_S,
    MAX_ITEMS,
    MAX_STEPS,
    Approve,
    MapSpec,
    OnFailure,
    StepSpec,
    StepTarget,
    SubWorkflow,
    Wait,
    WorkflowTarget,
)
from ondot.model.workflow.values import (
    A_REFERENCE,
    MAX_STEP_NAME,
    Reference,
    find_references,
    is_step_name,
    read_reference,
)

_LIMITS: Final = Limits()
_AT: Final = ("target", "workflow")
_ENCODER: Final = msgspec.json.Encoder()
_OF_ATTEMPTS: Final = (
    "retry", "timeout", "pool", "priority",
    "concurrency", "rate", "concurrency_key", "key_concurrency", "key_rate", "order_key",
)  # fmt: skip
_OF_VALUES: Final = ("payload", "map")
_PARTS_IN_CONDITIONS: Final = frozenset({"result", "count"})
_EVENT_FIELDS: Final = ("type", "source", "filter")

_Fault = tuple[Path, str]


OnFailureOf = Annotated[
    OnFailure,
    Field(
        description="What an unhandled failure does: the run waits for a person, or ends FAILED at once.",
        examples=["fail"],
    ),
]
BlockedFor = Annotated[
    Waiting,
    Field(description="How long a BLOCKED run waits for a person before it ends FAILED.", examples=["7d"]),
]


class WorkflowBody(Body):
    """What a workflow has beside its steps."""

    steps: Any
    on_failure: OnFailureOf = "block"
    blocked_for: BlockedFor = BLOCKED_FOR_S


class WorkflowJobBody(JobBody):
    """A job that is a workflow, by its steps."""

    steps: dict[str, StepBody] = Field(
        description=f"The steps by name, up to {MAX_STEPS:,}. Each takes the short forms of a job.",
        examples=[{"list": {"function": "list_files"}}],
    )
    on_failure: OnFailureOf = "block"
    blocked_for: BlockedFor = BLOCKED_FOR_S


def read_workflow(reading: Reading[Form]) -> WorkflowTarget | None:
    """The target of a body that has a workflow; None if it has faults, which are in `reading` then."""
    workflow = reading.long["target"]["workflow"]  # type: ignore[index]
    if not isinstance(workflow, dict):
        reading.reject(_AT, f"`target.workflow` must be an object with `steps`, got {describe_value(workflow)}.")
        return None
    steps = workflow.get("steps")
    if not isinstance(steps, dict) or not steps:
        example = '{"list": {"function": "list_files"}, "report": {"depends_on": ["list"], "function": "report"}}'
        reading.reject(
            STEPS, f"`{reading.name(STEPS)}` must be an object with a step for each name, such as {example}."
        )
        return None
    if len(steps) > MAX_STEPS:
        [(_, message)] = find_faults(dict.fromkeys(steps, StepSpec()))
        reading.reject_graph(STEPS, message)
        return None
    body = _validate(reading, WorkflowBody, {**workflow, "steps": None}, _AT)
    read: dict[str, StepSpec] = {}
    for name, step in steps.items():
        if (spec := _read_step(reading, name, step)) is not None:
            read[name] = spec
        elif len(reading.faults) >= MAX_FAULTS:
            break
    if body is None or len(read) < len(steps):
        return None
    for path, message in find_faults(read) or islice(_find_wrong_names(read, steps), MAX_FAULTS):
        reading.reject_graph((*STEPS, *path), message)
    return WorkflowTarget(steps=read, on_failure=body.on_failure, blocked_for_s=body.blocked_for)


def _read_step(reading: Reading[Form], name: str, step: object) -> StepSpec | None:
    at = (*STEPS, name)
    if not is_step_name(name):
        advice = f"use up to {MAX_STEP_NAME} letters, digits, _ and -"
        reading.reject(
            at, f"`{name[:80]}` cannot be the name of a step: {advice}, and none of payload, item, index, run."
        )
        return None
    if not isinstance(step, dict):
        reading.reject(at, f'`{name}` must be an object, for example {{"function": "f"}}, got {describe_value(step)}.')
        return None
    if "schedule" in step:
        kinds = list(step["schedule"]) if isinstance(step["schedule"], dict) else []
        reading.reject(
            (*at, "schedule", *kinds[:1]), "A step has no schedule of its own; give it to the workflow, or use `wait`."
        )
        return None
    if step.get("overlap") is not None:
        reading.reject((*at, "overlap"), "`overlap` is about runs; give it to the workflow, or use `concurrency` here.")
        return None
    body = _validate(reading, StepBody, step, at)
    if body is None:
        return None
    faults = list(_find_conflicts(name, step, body))
    for path, message in faults:
        reading.reject((*at, *path), message)
    return None if faults else _step_of(body, reading, at)


def _validate(reading: Reading[Form], form: type[Any], content: object, at: Path) -> Any:
    try:
        return form.model_validate(content)
    except ValidationError as error:
        written: Written = reading.written._replace(below=at)
        for path, fault in faults_of(error, form, written):
            reading.add((*at, *path), fault)
        return None


def _find_conflicts(name: str, step: Mapping[str, Any], body: StepBody) -> Iterator[_Fault]:
    calls = [call for call in CALLS if getattr(body, call) is not None]
    if len(calls) > 1:
        yield (calls[1],), f"A step does one thing: `{name}` has `{calls[0]}` and `{calls[1]}`; leave one out."
        return
    call = calls[0] if calls else None
    if body.target is not None:
        kinds = [kind for kind in ATTEMPT_KINDS if getattr(body.target, kind) is not None]
        if len(kinds) != 1:
            got = " and ".join(f"`{kind}`" for kind in kinds) or "none"
            yield ("target",), f"`target` of a step takes exactly one of {', '.join(ATTEMPT_KINDS)}, got {got}."
    for field in (*_OF_ATTEMPTS, *_OF_VALUES):
        if step.get(field) is None or call == "target" or (call == "workflow" and field in _OF_VALUES):
            continue
        what = f"`{call}`" if call else "a join, which calls nothing"
        yield (field,), f"`{field}` is for a step that calls something, and `{name}` is {what}; leave it out."
    if body.when == "failure" and not body.depends_on:
        yield ("when",), "`failure` looks at the parents, and this step has none; name them in `depends_on`."
    if body.handles and body.finally_:
        yield (
            ("handles",),
            "A `finally` step runs after the run was judged, so it cannot handle failures; leave `handles` out.",
        )
    for field in ("key_concurrency", "key_rate"):
        if getattr(body, field) is not None and body.concurrency_key is None:
            yield (field,), f"`{field}` limits by a key: give `concurrency_key` too."
    yield from _find_wrong_contents(body)


def _find_wrong_contents(body: StepBody) -> Iterator[_Fault]:
    if isinstance(body.retry, RetryBody) and (body.retry.backoff == "listed") != bool(body.retry.delays):
        message = 'Give `delays` with `"backoff": "listed"`, for example ["1s", "1m"], and leave them out otherwise.'
        yield ("retry", "delays"), message
    if body.map is not None and body.map.over is not None:
        yield from _find_faults_of_list(body.map.over)
    if body.wait is not None and body.wait.event is not None:
        yield from _find_faults_of_event(body.wait.event)
    if body.if_ is not None:
        yield from _faults_of_pattern(body.if_, ("if",))


def _find_faults_of_list(over: object) -> Iterator[_Fault]:
    at = ("map", "over")
    if isinstance(over, dict) and "$from" in over:
        found = read_reference(over)
        if isinstance(found, str):
            yield at, found
        elif found.part in {"item", "index", "count"}:
            yield at, f"`map.over` needs a list, and `{found}` is none; name a result that is one."
    elif not isinstance(over, list):
        yield at, f"`map.over` must be a list, or a reference such as {A_REFERENCE}, got {describe_value(over)}."
    elif len(over) > MAX_ITEMS:
        yield at, f"A map has at most {MAX_ITEMS:,} items, got {len(over):,}."


def _find_faults_of_event(event: object) -> Iterator[_Fault]:
    at = ("wait", "event")
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        yield at, '`wait.event` must be an object with a `type`, for example {"type": "com.acme.order.paid"}.'
        return
    for field in event:
        if field not in _EVENT_FIELDS:
            yield (*at, field), unknown_field((*at, field), list(_EVENT_FIELDS))
    if (fault := fault_of_type(event["type"], from_outside=False)) is not None:
        yield (*at, "type"), fault
    source = event.get("source")
    prefix = source.get("prefix") if isinstance(source, dict) and len(source) == 1 else source
    if source is not None and not (isinstance(prefix, str) and 1 <= len(prefix) <= MAX_SOURCE):
        yield (*at, "source"), '`source` must be a text, or {"prefix": "/shop"}.'
    if (written := event.get("filter")) is not None:
        yield from _faults_of_pattern(written, (*at, "filter"))


def _faults_of_pattern(pattern: object, at: Path) -> Iterator[_Fault]:
    try:
        compile_pattern(pattern)
    except InvalidBody as refusal:
        for fault in refusal.faults:
            yield (*at, *_path_of(fault)), fault.message


def _path_of(fault: Fault) -> Path:
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in fault.pointer.split("/")[1:])


def _find_wrong_names(specs: Mapping[str, StepSpec], steps: Mapping[str, Any]) -> Iterator[_Fault]:
    """References, conditions and maps that name a step which is no ancestor, or which has no such value."""
    ancestry = Ancestry(specs)
    for name, spec in specs.items():
        if spec.map is not None and spec.map.each is not None:
            yield from _find_fault_of_each(name, spec, spec.map.each, specs)
        if spec.payload is not None and b'"$from"' in bytes(spec.payload):
            for path, found in find_references(steps[name]["payload"]):
                if (fault := _judge(name, found, specs, ancestry)) is not None:
                    yield (name, "payload", *path), fault
        if spec.map is not None and spec.map.over is not None and b'"$from"' in bytes(spec.map.over):
            for path, found in find_references(steps[name]["map"]["over"]):
                if (fault := _judge(name, found, specs, ancestry)) is not None:
                    yield (name, "map", "over", *path), fault
        if spec.condition is not None:
            yield from _find_faults_of_condition(name, steps[name]["if"], specs, ancestry)


def _find_fault_of_each(name: str, spec: StepSpec, each: str, specs: Mapping[str, StepSpec]) -> Iterator[_Fault]:
    path = (name, "map", "each")
    if each not in spec.depends_on:
        yield path, f"`{name}` follows the items of `{each}`, so it must depend on it: add it to `depends_on`."
    elif specs[each].map is None:
        yield path, f"`{each}` is no mapped step, so it has no items to follow; use `over`."
    elif spec.when in {"failure", "ended"}:
        yield path, f"`{name}` follows items of `{each}` that succeeded, so `when` cannot be `{spec.when}`; use `over`."


def _judge(name: str, found: Reference | str, specs: Mapping[str, StepSpec], ancestry: Ancestry) -> str | None:
    """Why a reference of a step cannot be filled in, as a sentence."""
    if isinstance(found, str):
        return found
    if found.step is None:
        if found.part in {"item", "index"} and specs[name].map is None:
            return f"`{found}` has a value only in a step with `map`."
        return None
    if (why := _why_not_above(name, found.step, specs, ancestry)) is not None:
        return f"`{found}`: {why}"
    if found.part in {"count", "items"} and specs[found.step].map is None:
        return f"`{found}`: `{found.step}` is no mapped step, so it has no `{found.part}`; use `result`."
    return None


def _why_not_above(name: str, other: str, specs: Mapping[str, StepSpec], ancestry: Ancestry) -> str | None:
    if other not in specs:
        return f"there is no step `{other}`; name a step of this workflow."
    if not ancestry.is_above(other, name):
        return f"`{other}` is not above `{name}`, so it may not have ended; add it to `depends_on`."
    return None


def _find_faults_of_condition(
    name: str, written: object, specs: Mapping[str, StepSpec], ancestry: Ancestry
) -> Iterator[_Fault]:
    at = (name, "if")
    for path in compile_pattern(written).paths():
        match path:
            case ("payload", *_):
                pass
            case ("steps", other, part, *_) if part in _PARTS_IN_CONDITIONS:
                if (why := _why_not_above(name, other, specs, ancestry)) is not None:
                    yield (*at, "steps", other), f"`if` looks at `{other}`: {why}"
            case ("steps", *_):
                advice = '{"steps": {"list": {"result": {"total": [{"numeric": [">", 0]}]}}}}'
                yield (
                    at,
                    f"`if` looks at `{'.'.join(path)}`: name a step and its result or count, such as {advice}.",
                )
            case _:
                yield at, f"`if` looks at `payload` and `steps` only, got `{'.'.join(path)}`."


def _step_of(body: StepBody, reading: Reading[Form], at: Path) -> StepSpec:
    key_concurrency = body.key_concurrency
    if body.concurrency_key is not None and key_concurrency is None and body.key_rate is None:
        key_concurrency = 1
    limits = to_struct(
        Limits,
        body,
        overlap=_LIMITS.overlap,
        key=body.concurrency_key,
        key_concurrency=key_concurrency,
    )
    step = to_struct(
        StepSpec,
        body,
        target=_target_of(body),
        condition=_raw(body.if_),
        payload=None if body.payload is None else Raw(_encode_payload(body.payload, reading, at)),
        map=None if body.map is None else to_struct(MapSpec, body.map, over=_raw(body.map.over)),
        is_final=body.finally_,
        default=_raw(body.default),
        limits=None if limits == _LIMITS else limits,
        secrets=None,
    )
    return with_own_defaults(step)


def _target_of(body: StepBody) -> StepTarget | None:
    if body.target is not None:
        return target_of(body.target)
    if body.wait is not None:
        return Wait(for_s=body.wait.for_, event=_raw(body.wait.event), timeout_s=body.wait.timeout)
    if body.approve is not None:
        return to_struct(Approve, body.approve)
    return None if body.workflow is None else SubWorkflow(key=body.workflow)


def _encode_payload(payload: object, reading: Reading[Form], at: Path) -> bytes:
    try:
        return encode_payload_text(payload, "")
    except TooLarge as refusal:
        raise TooLarge(refusal.message, **refusal.facts | {"pointer": f"{reading.pointer(at)}/payload"}) from None


def _raw(value: object) -> Raw | None:
    return None if value is None else Raw(_ENCODER.encode(value))
