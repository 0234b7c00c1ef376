"""What a user registers: one frozen spec for each version of a job.

A spec is stored as JSON with its job and never changes. An execution names its version, so all its attempts run the
same spec even if the job is edited meanwhile. Defaults are defined here and nowhere else.
"""

from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from itertools import zip_longest
from typing import Final, Literal, assert_never

import msgspec
from msgspec import Raw, Struct, structs

from ondot.model.errors import InvalidBody
from ondot.model.execution import PriorityClass
from ondot.model.expect import Expect
from ondot.model.gates import Limits
from ondot.model.headers import is_sensitive
from ondot.model.ids import JobId
from ondot.model.retry import Retry
from ondot.model.schedule import Interval, Once, OnEvent, Rrule, Schedule, When, for_job, jitter_offset
from ondot.model.secret import Hidden
from ondot.model.target import (
    AttemptTarget,
    ConnectedTarget,
    FunctionTarget,
    GrpcTarget,
    HttpTarget,
    PublishTarget,
    RemoteTarget,
    ShellTarget,
)
from ondot.model.workflow.spec import WorkflowTarget


class JobState(StrEnum):
    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    ENDED = "ENDED"
    DELETED = "DELETED"


Priority = Literal["high", "normal", "low"]

CLASS_OF: dict[Priority, PriorityClass] = {
    "high": PriorityClass.HIGH,
    "normal": PriorityClass.NORMAL,
    "low": PriorityClass.LOW,
}

NO_PAYLOAD = Raw(b"null")


class Unique(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """No second job with this key while one is live, or within `within_s` after one was created."""

    key: str
    within_s: float | None = None


class Debounce(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of jobs with this key created soon after each other the last one runs, `wait_s` after its creation."""

    key: str
    wait_s: float
    max_wait_s: float | None = None


class Throttle(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """At most `limit` jobs with this key in `per_s` seconds; the others are skipped."""

    key: str
    per_s: float
    limit: int = 1


TargetSpec = AttemptTarget | WorkflowTarget

TRACE_FIELDS: Final = frozenset({"trace", "tracestate"})
"""The fields of a spec that say where it comes from, not what it does."""
CANCEL_GRACE_S: Final = 10.0
"""The time that a cancelled attempt has to stop by itself, unless the job has a `cancel_grace`."""
REMOTE_TIMEOUT_S: Final = 300.0
"""The timeout of an HTTP or gRPC call or a publish, unless the job has a `timeout`. Functions and programs have none:
their worker sends heartbeats, and a nightly job may take an hour. A receiver that never answers sends no heartbeat."""


class JobSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`schedule` is None only before submit: a job without one runs once, when it is accepted.

    `timeout_s` of a workflow is that of its run, otherwise that of an attempt; None for the default of its target.
    Specs that were stored before this default existed left out 300 s, the default of that time, written or not: they
    have today's default.
    `secrets` are the names of the secrets that it refers to; () if it has only credentials in headers or names a
    connection, None if it has none of them, as nearly all: such a spec is not searched, when it is written or at an
    attempt.
    """

    name: str
    target: TargetSpec
    schedule: Schedule | None = None
    payload: Raw = NO_PAYLOAD
    pool: str = "default"
    priority: Priority = "normal"
    labels: dict[str, str] = {}
    secrets: tuple[str, ...] | None = None
    trace: str | None = None
    """The `traceparent` of the request that created this version, if it had one. Executions of a one-time job belong to
    that trace; those of a recurring one have traces of their own, with a link to it."""
    tracestate: str | None = None
    """The `tracestate` that came with it."""
    retry: Retry = Retry()
    timeout_s: float | None = None
    key: str | None = None
    pause_after_failures: int | None = None
    limits: Limits | None = None
    expect: Expect | None = None
    start_deadline_s: float | None = None
    cancel_grace_s: float = CANCEL_GRACE_S
    unique: Unique | None = None
    debounce: Debounce | None = None
    throttle: Throttle | None = None
    depends_on: tuple[str, ...] = ()
    """The ids of the one-time jobs that it waits for. Before submit also their keys."""
    metrics: bool = False
    """A recurring job may ask for series of its own in the metrics (`flow.job_series`)."""

    @property
    def recurs(self) -> bool:
        return self.schedule is not None and not isinstance(self.schedule.when, Once)

    @property
    def starts_by_event(self) -> bool:
        return self.schedule is not None and isinstance(self.schedule.when, OnEvent)

    @property
    def attempt_timeout_s(self) -> float | None:
        """How long one attempt may take; None: no limit."""
        if self.timeout_s is not None:
            return self.timeout_s
        match self.target:
            case HttpTarget() | GrpcTarget() | PublishTarget():
                return REMOTE_TIMEOUT_S
            case FunctionTarget() | ShellTarget() | WorkflowTarget():
                return None
            case _:
                assert_never(self.target)

    @property
    def priority_class(self) -> PriorityClass:
        return CLASS_OF[self.priority]


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(JobSpec)


def encode_spec(spec: JobSpec) -> str:
    return _ENCODER.encode(spec).decode()


def decode_spec(text: str | bytes) -> JobSpec:
    return _DECODER.decode(text)


def fill_in_schedule(spec: JobSpec, job_id: JobId, now: datetime) -> JobSpec:
    """The spec as it is stored: a job without a schedule runs once, at `now`; `H` and `spread` get their values."""
    schedule = Schedule(when=Once(at=now)) if spec.schedule is None else for_job(spec.schedule, job_id)
    if schedule.spread_s and schedule.offset_s is None:  # nobody looked for the least loaded one: any will do
        offset_s = jitter_offset(job_id, schedule.spread_s).total_seconds() // 1
        schedule = structs.replace(schedule, offset_s=offset_s)
    return spec if schedule is spec.schedule else structs.replace(spec, schedule=schedule)


def is_same_spec(wanted: JobSpec, stored: JobSpec) -> bool:
    """Whether a spec means the same as the stored one; an anchor that no user chose does not count."""
    # Through JSON and back, like the stored one: 60 and 60.0 are the same seconds.
    wanted = decode_spec(encode_spec(keep_anchors(keep_hidden(wanted, stored), stored)))
    if wanted.trace != stored.trace or wanted.tracestate != stored.tracestate:
        wanted = structs.replace(wanted, trace=stored.trace, tracestate=stored.tracestate)
    return msgspec.json.encode(wanted) == msgspec.json.encode(stored)


def keep_hidden(wanted: JobSpec, stored: JobSpec) -> JobSpec:
    """The spec with the stored headers where `•••` or an equal value was given.

    Raises InvalidBody for a `•••` without a stored value, or if the call now goes to another origin: who may change an
    address must not get credentials that another person gave.
    """
    if wanted.secrets is None:
        return wanted
    if isinstance(wanted.target, WorkflowTarget):
        before = stored.target.steps if isinstance(stored.target, WorkflowTarget) else {}
        steps = {
            name: structs.replace(
                step, target=_keep_hidden(step.target, before[name].target if name in before else None)
            )
            if isinstance(step.target, RemoteTarget)
            else step
            for name, step in wanted.target.steps.items()
        }
        return structs.replace(wanted, target=structs.replace(wanted.target, steps=steps))
    if isinstance(wanted.target, RemoteTarget):
        return structs.replace(wanted, target=_keep_hidden(wanted.target, stored.target))
    return wanted


def _keep_hidden(wanted: RemoteTarget, stored: object) -> RemoteTarget:
    old = stored if isinstance(stored, RemoteTarget) else None
    known = {} if old is None else {name.lower(): value for name, value in old.headers.items()}
    headers: dict[str, str | Hidden] = {}
    for name, value in wanted.headers.items():
        kept = known.get(name.lower())
        headers[name] = value
        if not isinstance(value, Hidden):
            continue
        if value.is_unchanged:
            if old is None or kept is None:
                raise InvalidBody(_nothing_kept(name))
            if old.origin != wanted.origin:
                raise InvalidBody(
                    f"The header {name} is kept only for the address that it was given for: give its value again, "
                    "because scheme, host or port of the address change."
                )
            headers[name] = kept
        elif value.mark is not None and isinstance(kept, Hidden) and kept.mark == value.mark:
            headers[name] = kept
    return structs.replace(wanted, headers=headers)


def find_unsealed(spec: JobSpec) -> list[str]:
    """The names of headers with credentials that are stored in plain."""
    return [
        name
        for target in list_remote_targets(spec)
        for name, value in target.headers.items()
        if isinstance(value, str) and is_sensitive(name)
    ]


def list_remote_targets(spec: JobSpec) -> list[RemoteTarget]:
    """The targets of a job that call a host: its own, or those of its steps."""
    match spec.target:
        case target if isinstance(target, RemoteTarget):
            return [target]
        case WorkflowTarget():
            return [step.target for step in spec.target.steps.values() if isinstance(step.target, RemoteTarget)]
        case _:
            return []


def replace_remote_targets(spec: JobSpec, change: Callable[[RemoteTarget], RemoteTarget]) -> JobSpec:
    """The spec with its remote target, or those of its steps, changed."""
    match spec.target:
        case target if isinstance(target, RemoteTarget):
            return structs.replace(spec, target=change(target))
        case WorkflowTarget():
            steps = {
                name: structs.replace(step, target=change(step.target))
                if isinstance(step.target, RemoteTarget)
                else step
                for name, step in spec.target.steps.items()
            }
            return structs.replace(spec, target=structs.replace(spec.target, steps=steps))
        case _:
            return spec


def list_connections_named(spec: JobSpec) -> frozenset[str]:
    """The connections that a job names, or its steps."""
    if spec.secrets is None:
        return frozenset()
    targets = list_remote_targets(spec)
    return frozenset(each.connection for each in targets if isinstance(each, ConnectedTarget) and each.connection)


def refuse_unchanged(spec: JobSpec) -> None:
    """Raises InvalidBody if a new job has a header `•••`, which means: unchanged."""
    if spec.secrets is None:
        return
    for target in list_remote_targets(spec):
        for name, value in target.headers.items():
            if isinstance(value, Hidden) and value.is_unchanged:
                raise InvalidBody(_nothing_kept(name))


def _nothing_kept(name: str) -> str:
    return f"The header {name} is `•••`, which means unchanged, and no value is stored for it: give its value."


def keep_anchors(wanted: JobSpec, stored: JobSpec) -> JobSpec:
    """The spec with the unchosen anchors of the stored rules, so that an upsert of a new payload moves no fires."""
    new, old = wanted.schedule, stored.schedule
    if new is None or old is None or new.start_at != old.start_at:
        return wanted
    keeps_offset = new.spread_s == old.spread_s and (not new.is_offset_given or new.offset_s == old.offset_s)
    schedule = structs.replace(
        new,
        offset_s=old.offset_s if keeps_offset else new.offset_s,
        is_offset_given=old.is_offset_given if keeps_offset else new.is_offset_given,
        when=_rule_anchored_as(new.when, old.when),
        include=tuple(_rule_anchored_as(*pair) for pair in zip_longest(new.include, old.include) if pair[0]),
        exclude=tuple(_rule_anchored_as(*pair) for pair in zip_longest(new.exclude, old.exclude) if pair[0]),
    )
    return structs.replace(wanted, schedule=schedule)


def _rule_anchored_as(wanted: When, stored: When | None) -> When:
    match wanted, stored:
        case Interval(), Interval(is_anchored=False) if wanted.every_s == stored.every_s and (
            not wanted.is_anchored or wanted.anchor_at == stored.anchor_at
        ):
            return stored
        case Rrule(), Rrule(is_anchored=False) if structs.replace(
            wanted, begins=stored.begins, is_anchored=False
        ) == stored and (not wanted.is_anchored or wanted.begins == stored.begins):
            return stored
        case _:
            return wanted
