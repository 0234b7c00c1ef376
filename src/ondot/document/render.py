"""A job in the long form: what an answer shows, and what a patch is applied to.

`JobOut` is the one list of a job's fields for writing. Durations are seconds, instants are RFC 3339 with `Z`, and every
field is written out, so that a job that was read can be sent again and means the same. For this the anchor of an
interval, or of a rule without DTSTART, is shown as `anchor_at` even if no user chose it, and a rule of `include` or
`exclude` names its own zone.
"""

from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, NotRequired, Protocol, assert_never, cast
from uuid import UUID

import msgspec
from msgspec import Raw, Struct, structs
from pydantic import Field
from typing_extensions import TypedDict

from ondot.document.events import render_event
from ondot.document.render_target import Seconds, TargetOut, render_target
from ondot.document.rules import MAX_BATCH
from ondot.document.structs import to_document, to_json
from ondot.model.duration import as_written
from ondot.model.gates import Limits, Overlap, Rate
from ondot.model.job import JobSpec, JobState, Priority, find_unsealed
from ondot.model.retry import Backoff, Retry
from ondot.model.schedule import Cron, Interval, Once, OnEvent, Schedule, When, in_words
from ondot.model.schedule.dst import zone_info
from ondot.model.schedule.rrule import Rrule, begins_of
from ondot.model.workflow.spec import WorkflowTarget


class DstOut(TypedDict):
    gap: str
    fold: str


class MisfireOut(TypedDict):
    policy: str
    grace: Seconds
    window: Seconds
    limit: int


class BlackoutOut(TypedDict):
    from_at: str
    to_at: str


class CalendarOut(TypedDict):
    exclude_holidays: str | None
    exclude_dates: list[str]
    business_days: bool | Literal["next", "previous"]
    blackouts: list[BlackoutOut]


class RuleOut(TypedDict, total=False):
    """One of `cron`, `every`, `at`, `rrule`, and its fields."""

    cron: str
    every: Seconds
    at: str
    rrule: str
    timezone: str
    dst: DstOut
    anchor_at: str


class ScheduleOut(RuleOut, total=False):
    """When a job fires."""

    event: dict[str, Any]

    include: list[RuleOut]
    exclude: list[RuleOut]
    jitter: Seconds
    spread: Seconds
    offset: Seconds | None
    start_at: str | None
    end_at: str | None
    max_fires: int | None
    misfire: MisfireOut
    calendar: CalendarOut | None


class RetryOut(TypedDict):
    max_retries: int
    backoff: Backoff
    initial: Seconds
    factor: Seconds
    max: Seconds
    jitter: bool
    delays: list[Seconds]
    max_worker_losses: int
    retry_on: list[str]
    never_on: list[str]


class RateOut(TypedDict):
    limit: int
    per: Seconds
    burst: int


class UniqueOut(TypedDict):
    key: str
    within: Seconds | None


class DebounceOut(TypedDict):
    key: str
    wait: Seconds
    max_wait: Seconds | None


class ThrottleOut(TypedDict):
    key: str
    per: Seconds
    limit: int


class ExpectOut(TypedDict):
    start_within: Seconds | None
    end_within: Seconds | None
    end_by: str | None
    success_every: Seconds | None


class WarningOut(TypedDict):
    """A fact that does not stop anything. `function` and `nearest` are of an `unknown-function`."""

    code: str
    detail: str
    function: NotRequired[str]
    nearest: NotRequired[str | None]


class DeclaredBy(TypedDict):
    """The app whose code declares a job."""

    app: str
    release: Annotated[str, Field(description="The release that last changed its declaration.")]
    differs: Annotated[list[str], Field(description="The fields that are not as the code declares them.")]
    dropped_release: Annotated[
        str | None, Field(description="The first release that no longer declares it. null: it is declared.")
    ]


class JobOut(TypedDict):
    id: UUID
    name: str
    state: JobState
    state_reason: Annotated[str | None, Field(description="Why it is in its state, if ondot changed it by itself.")]
    key: str | None
    version: int
    next_fire_at: Annotated[datetime | None, Field(description="The earliest future fire, planned or not.")]
    schedule_in_words: str
    schedule: ScheduleOut | None
    target: TargetOut
    payload: Any
    pool: str
    priority: Priority
    labels: dict[str, str]
    retry: RetryOut
    timeout: Annotated[
        Seconds | None,
        Field(
            description="null: the default, 5 minutes for an HTTP or gRPC call, no limit for a function or a command."
        ),
    ]
    overlap: Overlap
    concurrency: int | None
    rate: RateOut | None
    concurrency_key: str | None
    key_concurrency: int | None
    key_rate: RateOut | None
    order_key: str | None
    start_deadline: Seconds | None
    cancel_grace: Seconds
    unique: UniqueOut | None
    debounce: DebounceOut | None
    throttle: ThrottleOut | None
    depends_on: list[str]
    expect: ExpectOut | None
    pause_after_failures: int | None
    metrics: bool
    created_at: datetime
    updated_at: datetime
    warnings: NotRequired[
        Annotated[list[WarningOut], Field(description="What one should know of it; left out if there is nothing.")]
    ]
    declared: NotRequired[
        Annotated[
            DeclaredBy,
            Field(description="In lists and of one job; left out if no app declares it: see `/jobs/{id}/declared`."),
        ]
    ]


class WorkflowRow(TypedDict):
    """A workflow in a list."""

    id: UUID
    name: str
    key: str | None
    state: JobState
    state_reason: str | None
    version: int
    steps: Annotated[int, Field(description="How many steps it has.")]
    schedule_in_words: str
    next_fire_at: datetime | None
    created_at: datetime
    updated_at: datetime


SPEC_FIELDS: Final = JobOut.__annotations__.keys() - {
    "id", "state", "state_reason", "version", "next_fire_at", "schedule_in_words", "created_at", "updated_at",
    "warnings", "declared",
}  # fmt: skip
"""The fields that a body may have too; only ondot writes the others."""

Json = dict[str, Any]
WrittenField = tuple[str, object, Callable[[Any], Any]]
"""The name of a field in a document, its default, and the function that renders its value."""


class StoredJob(Protocol):
    """A job with what is stored beside its spec."""

    @property
    def id(self) -> UUID: ...
    @property
    def spec(self) -> JobSpec: ...
    @property
    def state(self) -> JobState: ...
    @property
    def state_reason(self) -> str | None: ...
    @property
    def version(self) -> int: ...
    @property
    def next_fire_at(self) -> datetime | None: ...
    @property
    def created_at(self) -> datetime: ...


def render_job(job: StoredJob, updated_at: datetime, *, as_text: bool = False) -> JobOut:
    """A job as an answer shows it.

    `as_text` is for thousands of jobs a second: the result is only good for msgspec's encoder, since parts that many
    jobs share (how they retry, when they are due) are JSON already, rendered once, and a payload is the text that is
    stored. Rendering ten thousand different crons takes seconds. So as many schedules are remembered as a batch may
    hold: rendering a batch a second time, with its transaction open, takes a fraction of one.
    """
    rendered = _render(job.spec, as_text=as_text)
    rendered["id"] = job.id
    rendered["state"] = job.state
    rendered["state_reason"] = job.state_reason
    rendered["version"] = job.version
    rendered["next_fire_at"] = job.next_fire_at
    rendered["created_at"] = job.created_at
    rendered["updated_at"] = updated_at
    if job.spec.secrets is not None and (names := find_unsealed(job.spec)):
        why = "stored in plain, because this installation had no master key"
        detail = f"{', '.join(names)}: {why}. Set ONDOT_SECRET_KEY, and send the job again."
        rendered["warnings"] = [{"code": "secret-in-plain", "detail": detail}]
    return cast("JobOut", rendered)


def render_workflow_row(job: StoredJob, updated_at: datetime) -> WorkflowRow:
    """A job that is a workflow, without its steps."""
    assert isinstance(job.spec.target, WorkflowTarget)
    return {
        "id": job.id,
        "name": job.spec.name,
        "key": job.spec.key,
        "state": job.state,
        "state_reason": job.state_reason,
        "version": job.version,
        "steps": len(job.spec.target.steps),
        "schedule_in_words": _render_when(job.spec.schedule)[0],
        "next_fire_at": job.next_fire_at,
        "created_at": job.created_at,
        "updated_at": updated_at,
    }


def render_spec(spec: JobSpec) -> Json:
    """The long form of a spec, which as a body means the same spec."""
    return {name: value for name, value in _render(spec, as_text=False).items() if name in SPEC_FIELDS}


def _render(spec: JobSpec, *, as_text: bool) -> Json:
    rendered = _DEFAULT_TEXT.copy() if as_text else _render_defaults()
    rendered["name"] = spec.name
    rendered["schedule_in_words"], rendered["schedule"] = (_when_text if as_text else _render_when)(spec.schedule)
    rendered["target"] = render_target(spec.target)
    rendered["payload"] = spec.payload if as_text else msgspec.json.decode(spec.payload)
    rendered["pool"] = spec.pool
    rendered["priority"] = spec.priority
    rendered["labels"] = spec.labels
    policies = structs.astuple(spec)[_FIRST_POLICY:]
    if policies != _DEFAULTS:
        _write(policies, rendered, as_text=as_text)
    return rendered


def _write(policies: tuple[Any, ...], rendered: Json, *, as_text: bool) -> None:
    """Write the policies that are not the defaults, which are there already."""
    for value, (name, default, write) in zip(policies, _TEXT_POLICIES if as_text else _POLICIES, strict=True):
        if value is default:
            continue
        if name != "limits":
            rendered[name] = write(value)
            continue
        limits = zip(structs.astuple(value), _TEXT_LIMITS if as_text else _LIMITS, strict=True)
        rendered.update((name, write(limit)) for limit, (name, default, write) in limits if limit is not default)


def _render_defaults() -> Json:
    """All fields of a job in their order: policies and limits with their defaults, the others None."""
    rendered: Json = {**dict.fromkeys(JobOut.__annotations__)}
    del rendered["warnings"], rendered["declared"]
    rendered.update((name, to_json(default)) for name, default, _ in (*_POLICIES, *_LIMITS) if name != "limits")
    return rendered


@lru_cache(maxsize=1024)
def _shared_text(policy: Retry | Rate) -> Raw:
    return Raw(_ENCODER.encode(to_document(policy)))


def render_schedule(schedule: Schedule) -> ScheduleOut:
    rules: Json = {
        **_render_rule(schedule.when),
        "include": [_render_rule(rule) for rule in schedule.include],
        "exclude": [_render_rule(rule) for rule in schedule.exclude],
    }
    return cast(
        "ScheduleOut", {**rules, **to_document(schedule, without=("when", "include", "exclude", "is_offset_given"))}
    )


def _render_rule(rule: When) -> RuleOut:
    match rule:
        case Cron(expression=expression, timezone=timezone, dst=dst):
            return {"cron": expression, "timezone": timezone, "dst": to_json(dst)}
        case Rrule(text=text, timezone=timezone, dst=dst):
            rendered: RuleOut = {"rrule": text, "timezone": timezone, "dst": to_json(dst)}
            return rendered if begins_of(text) is not None else {**rendered, "anchor_at": to_json(_began(rule))}
        case Interval(every_s=every_s, anchor_at=anchor_at):
            return {"every": as_written(every_s), "anchor_at": to_json(anchor_at)}
        case Once(at=at, timezone=timezone):
            return {"at": to_json(at)} if timezone == "UTC" else {"at": to_json(at), "timezone": timezone}
        case OnEvent():
            return cast("RuleOut", {"event": render_event(rule)})
    assert_never(rule)


def _began(rrule: Rrule) -> datetime:
    """An instant at which the zone's clock shows `begins`; there is one, because `begins` was made of one."""
    return rrule.begins.replace(tzinfo=zone_info(rrule.timezone))


def _render_when(schedule: Schedule | None) -> tuple[str, ScheduleOut | None]:
    return ("Once, now", None) if schedule is None else (in_words(schedule), render_schedule(schedule))


def _when_text(schedule: Schedule | None) -> tuple[str, Raw]:
    """Schedules with lists or a calendar are not remembered: they may have 300 kB each."""
    if schedule is None or schedule.include or schedule.exclude or schedule.calendar is not None:
        return _new_when_text(schedule)
    return _remembered_when_text(schedule)


def _new_when_text(schedule: Schedule | None) -> tuple[str, Raw]:
    words, rendered = _render_when(schedule)
    return words, Raw(_ENCODER.encode(rendered))


def _written_fields(kind: type[Struct], first: int = 0) -> tuple[WrittenField, ...]:
    return tuple(
        (field.name.removesuffix("_s"), field.default, as_written if field.name.endswith("_s") else to_json)
        for field in structs.fields(kind)[first:]
    )


def _with_shared_text(fields: tuple[WrittenField, ...]) -> tuple[WrittenField, ...]:
    shared = {"retry", "rate", "key_rate"}
    return tuple((name, default, _shared_text if name in shared else write) for name, default, write in fields)


_ENCODER: Final = msgspec.json.Encoder()
_FIRST_POLICY: Final = JobSpec.__struct_fields__.index("retry")
_POLICIES: Final = _written_fields(JobSpec, _FIRST_POLICY)
"""How a job is run: most jobs have the defaults. They are written by their names."""
_TEXT_POLICIES: Final = _with_shared_text(_POLICIES)
_LIMITS: Final = tuple(
    ("concurrency_key" if name == "key" else name, default, write) for name, default, write in _written_fields(Limits)
)
"""Limits are flat in a document."""
_TEXT_LIMITS: Final = _with_shared_text(_LIMITS)
_DEFAULTS: Final = tuple(default for _, default, _ in _POLICIES)
_DEFAULT_TEXT: Final = {**_render_defaults(), "retry": _shared_text(Retry())}
_remembered_when_text: Final = lru_cache(maxsize=MAX_BATCH)(_new_when_text)
