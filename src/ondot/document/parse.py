"""From the body of a job, a batch or a patch to specs of the model.

`now` is the time of the database: `in` and the anchor of `every` become instants here, and an `at` more than a minute
ago is rejected, because it is always a mistake.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Raw, structs

from ondot.document.body import JobBody, spec_of
from ondot.document.errors import MAX_FAULTS, describe_value, invalid_body, unknown_field
from ondot.document.fields import instant_or_none
from ondot.document.functions import KnownFunctions
from ondot.document.json_text import escaped, read_json
from ondot.document.limits import find_conflicts, find_late_changes
from ondot.document.merge_patch import base_of
from ondot.document.reading import Reading, as_payload, encode_payload_text, not_a, read
from ondot.document.render import render_schedule
from ondot.document.rules import MAX_BATCH, MAX_PAYLOAD_BYTES
from ondot.document.schedule import Before
from ondot.document.schedule_body import ScheduleBody
from ondot.document.shorthand import SHORT, STEPS, Path
from ondot.document.workflow import read_workflow
from ondot.model.errors import Fault, InvalidBody, InvalidSchedule
from ondot.model.event_payload import find_faults as find_event_faults
from ondot.model.headers import is_sensitive
from ondot.model.ids import EPOCH
from ondot.model.job import JobSpec, TargetSpec, keep_hidden, refuse_unchanged
from ondot.model.schedule import Once, Schedule
from ondot.model.schedule.looks import Looks, allowed
from ondot.model.secret import Hidden, find_references, may_refer, read_reference
from ondot.model.target import ConnectedTarget, FunctionTarget, RemoteTarget
from ondot.model.workflow.spec import StepSpec, WorkflowTarget
from ondot.model.workflow.values import may_refer as refers_to_event

MAX_JOB_BYTES: Final = 2 * MAX_PAYLOAD_BYTES
MAX_BATCH_LOOKS: Final = 1_000_000
"""The cost of all schedules of a batch together: about 4 s."""

_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(dict[str, Any])
_WHEN: Final = frozenset({"type", *(name for name, path in SHORT.items() if path[0] == "schedule")})
_LEFT_OUT: Final = frozenset({"payload", "schedule"})
_LONGEST_REMEMBERED: Final = 2048
_FAR_S: Final = 10 * 366 * 86_400
_A_JOB: Final = 'for example {"name": "hello", "url": "https://example.com"}'
_A_PATCH: Final = 'with the fields to change, for example {"timeout": "10m"}'


def job_spec(
    raw: object,
    now: datetime,
    *,
    pointer: str = "",
    current: JobSpec | None = None,
    keeps_anchors: bool = False,
    may_be_over: bool = False,
    origins: Mapping[Path, Path] = MappingProxyType({}),
    functions: KnownFunctions | None = None,
    checks_payload: bool = True,
) -> JobSpec:
    """The spec of a body; with `current` the version that it replaces. `keeps_anchors`: an interval that is the same as
    before counts from the same instant as before, and not from now. The options of the `functions` that it names are
    its defaults, and its payload must fit them.

    A schedule without a fire from now on is rejected unless it `may_be_over`: the schedule of a function may have been
    written long ago. `origins` maps paths of the long form to the names that the caller's user wrote.
    Raises InvalidBody or InvalidSchedule with every fault, or TooLarge.
    """
    before = None
    if current is not None and current.schedule is not None:
        before = Before(current.schedule, render_schedule(current.schedule), keeps_anchors=keeps_anchors)
    reading = read(JobBody, raw, pointer, _A_JOB, origins=origins, functions=functions)
    checked = functions if checks_payload else None
    return _job_spec(reading, now, before, pointer, current=current, may_be_over=may_be_over, functions=checked)


def new_job_spec(raw: object, now: datetime, *, pointer: str = "", functions: KnownFunctions | None = None) -> JobSpec:
    """The same for a new job from a JSON body, and fast if similar jobs were read before.

    Most jobs differ only in their payload and their instant. The spec of the rest of a body is remembered by its text.
    Any other schedule is read in full, because it depends on `now`.
    """
    if isinstance(raw, dict) and _WHEN.isdisjoint(raw):
        written = raw.get("schedule")
        schedule = None if written is None else _plain_once(written, now)
        if (written is None) is (schedule is None):
            text = _ENCODER.encode({name: value for name, value in raw.items() if name not in _LEFT_OUT})
            known = _recall(text, functions) if len(text) <= _LONGEST_REMEMBERED else None
            if known is not None and (schedule is None or known.debounce is None):
                payload = encode_payload_text(raw.get("payload"), pointer)
                if not may_refer(payload):
                    if functions is not None:
                        _check_arguments(functions, known, raw.get("payload"), pointer)
                    return structs.replace(known, payload=as_payload(payload), schedule=schedule)
    return job_spec(raw, now, pointer=pointer, functions=functions)


def _check_arguments(functions: KnownFunctions, spec: JobSpec, payload: object, pointer: str) -> None:
    if faults := list(functions.find_faults(spec, payload, f"{pointer}/payload")):
        raise invalid_body(faults, all_of_schedule=False)


def new_workflow_spec(raw: object, now: datetime, *, functions: KnownFunctions | None = None) -> JobSpec:
    """The spec of a new job that is a workflow; raises as `job_spec` does."""
    spec = new_job_spec(raw, now, functions=functions)
    if not isinstance(spec.target, WorkflowTarget):
        raise not_a("/steps", "A workflow has `steps`; for a job that makes one call use `POST /v1/jobs`.")
    return spec


@lru_cache(maxsize=4096)
def _recall(text: bytes, functions: KnownFunctions | None) -> JobSpec | None:
    """The spec of this body; None if it has faults, which need a pointer, a schedule, which needs the time, or keys
    that are filled from the payload."""
    try:
        spec = job_spec(_DECODER.decode(text), EPOCH, functions=functions, checks_payload=False)
    except InvalidBody:
        return None
    if functions is not None and isinstance(spec.target, FunctionTarget):
        function = functions.get(spec.target.name)
        if function is not None and function.has_templates:
            return None
    return spec if spec.schedule is None else None


def _plain_once(schedule: object, now: datetime) -> Schedule | None:
    """`{"in": 90}` and `{"at": "…Z"}` within the next 10 years; None for anything else."""
    if not isinstance(schedule, dict) or len(schedule) != 1:
        return None
    delay, at = schedule.get("in"), instant_or_none(schedule.get("at"))
    if (type(delay) is int or type(delay) is float) and 0 <= delay <= _FAR_S:
        at = now + timedelta(seconds=delay)
    if at is None or not now <= at <= now + timedelta(seconds=_FAR_S):
        return None
    return Schedule(when=Once(at=at))


def patched_spec(current: JobSpec, raw: object, now: datetime, *, functions: KnownFunctions | None = None) -> JobSpec:
    """The spec after a merge patch (RFC 7396) on its long form; raises as `job_spec` does. A patch changes what it
    names: it gets no defaults of a function."""
    assert current.schedule is not None, "submit completes every schedule"
    base = base_of(current)
    schedule = base["schedule"]
    assert schedule is not None
    reading = read(JobBody, raw, "", _A_PATCH, base=dict(base))
    if reading.long.get("schedule") is None:
        message = "A job always has a schedule: give another, pause the job, or delete it; `/run` runs it now."
        reading.reject(("schedule",), message)
    before = Before(current.schedule, schedule, keeps_anchors=True)
    return _job_spec(reading, now, before, "", current=current, functions=functions)


OF_RECURRING: Final = {
    "pause_after_failures": "`retry` for its attempts",
    "expect": "`start_deadline` and `timeout`",
    "metrics": "the metrics of its pool",
}
"""Fields that only recurring jobs have, and what a job that runs once uses instead."""


def _reject_recurring(reading: Reading[JobBody], body: JobBody) -> None:
    for field, instead in OF_RECURRING.items():
        given = getattr(body, field)
        if given is not None and given is not False:
            message = f"is for recurring jobs, and this one runs once; leave it out, and use {instead}."
            reading.reject((field,), f"`{reading.name((field,))}` {message}")


def _job_spec(
    reading: Reading[JobBody],
    now: datetime,
    before: Before | None,
    pointer: str,
    *,
    current: JobSpec | None = None,
    may_be_over: bool = False,
    functions: KnownFunctions | None = None,
) -> JobSpec:
    if reading.long.get("target") is None:
        reading.reject(("target",), "Say what to call: give `url`, `function`, `command`, `steps`, or `target`.")
    schedule = reading.schedule(now, before, may_be_over=may_be_over)
    body = reading.body
    if body is not None and (body.retry.backoff == "listed") != bool(body.retry.delays):
        message = 'Give `delays` with `"backoff": "listed"`, for example ["1s", "1m"], and leave them out otherwise.'
        reading.reject(("retry", "delays"), message)
    if body is not None and not _recurs(body.schedule):
        _reject_recurring(reading, body)
    for path, message in find_conflicts(reading.long, reading.name, is_new=current is None):
        reading.reject(path, message)
    workflow = read_workflow(reading) if _has_workflow(reading.long) else None
    if body is None or body.target is None or reading.faults:
        raise reading.refusal()
    payload = encode_payload_text(body.payload, pointer)
    spec = spec_of(body, schedule=schedule, payload=as_payload(payload), workflow=workflow)
    _check_event_payload(spec, reading)
    _check_payloads(functions, spec, current, reading)
    for path, message in find_late_changes(spec, current) if current is not None else ():
        reading.reject(path, message)
    if workflow is None:
        names = _find_secrets(spec.target, payload, reading, ())
    else:
        spec, names = _find_secrets_of_steps(spec, workflow, payload, reading)
    if reading.faults:
        raise invalid_body(reading.faults, all_of_schedule=False)
    if names is None:
        return spec
    spec = structs.replace(spec, secrets=names)
    if current is not None:
        return keep_hidden(spec, current)
    if spec.key is None:
        refuse_unchanged(spec)
    return spec


def _check_payloads(
    functions: KnownFunctions | None, spec: JobSpec, current: JobSpec | None, reading: Reading[JobBody]
) -> None:
    """Of the job, or of its steps. A version that leaves target and payload as they are is not checked: the function
    may have changed since, and another field must be changeable all the same."""
    if functions is None:
        return
    if current is not None and current.target == spec.target and bytes(current.payload) == bytes(spec.payload):
        return
    assert reading.body is not None
    payload = reading.body.payload
    if not (spec.starts_by_event and payload is None):  # the event is the payload
        for fault in functions.find_faults(spec, payload, reading.pointer(("payload",))):
            reading.add(("payload",), fault)
    if isinstance(spec.target, WorkflowTarget):
        steps = reading.long["target"]["workflow"]["steps"]  # type: ignore[index]
        for path, message in islice(functions.find_faults_of_steps(steps), MAX_FAULTS):
            reading.reject((*STEPS, *path), message)


def _has_workflow(long: Mapping[str, object]) -> bool:
    target = long.get("target")
    return isinstance(target, dict) and target.get("workflow") is not None


def _find_secrets_of_steps(
    spec: JobSpec, workflow: WorkflowTarget, payload: bytes, reading: Reading[JobBody]
) -> tuple[JobSpec, tuple[str, ...] | None]:
    """The spec with the secrets of each step, and all their names. A step without a payload has that of the job."""
    of_job = _find_secrets(None, payload, reading, ())
    steps: dict[str, StepSpec] = {}
    for name, step in workflow.steps.items():
        own = None if step.payload is None else bytes(step.payload)
        target = step.target if isinstance(step.target, RemoteTarget) else None
        found = _find_secrets(target, own or b"", reading, (*STEPS, name))
        if own is None and of_job is not None:
            found = tuple(sorted({*of_job, *(found or ())}))
        steps[name] = step if found is None else structs.replace(step, secrets=found)
    names = [step.secrets for step in steps.values() if step.secrets is not None]
    if of_job is None and not names:
        return spec, None
    replaced = structs.replace(spec, target=structs.replace(workflow, steps=steps))
    return replaced, tuple(sorted({*(of_job or ()), *(name for found in names for name in found)}))


def _check_event_payload(spec: JobSpec, reading: Reading[JobBody]) -> None:
    """References to the event; secrets are not filled in beside them, because what an event brings is plain data."""
    if not spec.starts_by_event or not refers_to_event(spec.payload):
        return
    payload = msgspec.json.decode(spec.payload)
    for place, message in find_event_faults(payload):
        reading.reject(("payload", *place), message)
    if may_refer(bytes(spec.payload)) and any(True for _ in find_references(payload)):
        message = "A payload refers to the event or to secrets, not to both: put secrets into headers."
        reading.reject(("payload",), message)


def _find_secrets(
    target: TargetSpec | None, payload: bytes, reading: Reading[JobBody], at: Path
) -> tuple[str, ...] | None:
    """The names of the secrets that a target and a payload refer to; None if it also has no credentials in headers and
    names no connection."""
    names: set[str] = set()
    has_hidden = False
    if isinstance(target, RemoteTarget) and target.headers:
        hidden = [value for value in target.headers.values() if isinstance(value, Hidden)]
        names.update(value.secret for value in hidden if value.secret is not None)
        has_hidden = bool(hidden) or any(map(is_sensitive, target.headers))
    if isinstance(target, ConnectedTarget) and target.connection is not None:
        has_hidden = True
    if may_refer(payload):
        for place, written in find_references(msgspec.json.decode(payload)):
            found = read_reference(written)
            if isinstance(found, str):
                path = ("payload", *(part.replace("~1", "/").replace("~0", "~") for part in place.split("/")[1:]))
                reading.reject((*at, *path), found)
            elif found.secret is not None:
                names.add(found.secret)
    return tuple(sorted(names)) if names or has_hidden else None


def job_specs(
    raw: object, now: datetime, *, max_bytes: int = MAX_JOB_BYTES, functions: KnownFunctions | None = None
) -> list[JobSpec]:
    """The specs of a batch, all or none. Jobs that are still bytes are decoded one by one, each up to `max_bytes`."""
    jobs = raw.get("jobs") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or not isinstance(jobs, list):
        raise not_a("/jobs", f"`jobs` must be a list of jobs, got {describe_value(jobs)}.")
    if unknown := list(islice((name for name in raw if name != "jobs"), MAX_FAULTS + 1)):
        faults = [Fault(f"/{escaped(name[:64])}", unknown_field((name,), ["jobs"])) for name in unknown]
        raise invalid_body(faults, all_of_schedule=False)
    if not 1 <= len(jobs) <= MAX_BATCH:
        raise not_a("/jobs", f"`jobs` must have 1 to {MAX_BATCH:,} jobs, got {len(jobs):,}: send several batches.")
    with allowed(MAX_BATCH_LOOKS) as looks:
        return _job_specs(jobs, now, max_bytes, looks, functions)


def _job_specs(
    jobs: list[object], now: datetime, max_bytes: int, looks: Looks, functions: KnownFunctions | None
) -> list[JobSpec]:
    specs: list[JobSpec] = []
    refusals: list[InvalidBody] = []
    count = 0
    for i, job in enumerate(jobs):
        pointer = f"/jobs/{i}"
        if looks.is_spent:
            message = "The schedules before this one take too long to compute; send it in another batch."
            raise InvalidSchedule(message, faults=(Fault(f"{pointer}/schedule", message),))
        try:
            body = read_json(job, max_bytes=max_bytes, pointer=pointer) if isinstance(job, Raw) else job
            specs.append(new_job_spec(body, now, pointer=pointer, functions=functions))
        except InvalidBody as refusal:
            refusals.append(refusal)
            count += len(refusal.faults)
            if count >= MAX_FAULTS:
                break
    if refusals:
        all_of_schedule = all(isinstance(refusal, InvalidSchedule) for refusal in refusals)
        raise invalid_body([fault for refusal in refusals for fault in refusal.faults], all_of_schedule=all_of_schedule)
    return specs


def _recurs(body: ScheduleBody | None) -> bool:
    return body is not None and body.at is None and body.in_ is None
