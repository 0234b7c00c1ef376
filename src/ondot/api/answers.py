"""What goes out: jobs, executions, their status, previews and lists, as FastAPI shows and checks them.

Durations go out in seconds, instants in RFC 3339 with `Z`, and a spec in the contract's long form whatever it
came in as: a spec that was read can be sent again and means the same.
"""

from datetime import UTC, datetime
from typing import Any, Generic, TypeVar, assert_never
from uuid import UUID

import msgspec
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from ondot.model.duration import as_written
from ondot.model.execution import Origin, Outcome, PriorityClass, State
from ondot.model.job import FunctionTarget, HttpTarget, JobSpec, JobState, Priority, ShellTarget, TargetSpec
from ondot.model.retry import Backoff, Retry
from ondot.model.schedule import Calendar, Cron, Interval, Once, Preview, Remark, Schedule, in_words

Seconds = int | float


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
    business_days: bool
    blackouts: list[BlackoutOut]


class ScheduleOut(TypedDict, total=False):
    """One of `cron`, `every`, `at`, and what goes with it."""

    cron: str
    timezone: str
    dst: DstOut
    every: Seconds
    anchor_at: str
    at: str
    jitter: Seconds
    start_at: str | None
    end_at: str | None
    max_fires: int | None
    misfire: MisfireOut
    calendar: CalendarOut | None


class HttpOut(TypedDict):
    url: str
    method: str
    headers: dict[str, str]


class ShellOut(TypedDict):
    command: list[str]


class TargetOut(TypedDict, total=False):
    """One of `http`, `function`, `shell`."""

    http: HttpOut
    function: str
    shell: ShellOut


class RetryOut(TypedDict):
    max_retries: int
    backoff: Backoff
    initial: Seconds
    factor: Seconds
    max: Seconds
    jitter: bool
    delays: list[Seconds]
    max_worker_losses: int


class SpecOut(TypedDict):
    name: str
    key: str | None
    schedule: ScheduleOut | None
    target: TargetOut
    payload: Any
    pool: str
    priority: Priority
    labels: dict[str, str]
    retry: RetryOut
    timeout: Seconds
    overlap: str
    concurrency_key: str | None
    depends_on: list[str]


class JobOut(BaseModel):
    id: UUID
    name: str
    state: JobState
    key: str | None
    version: int
    next_fire_at: datetime | None = Field(description="The earliest fire not yet due, planned or not.")
    schedule_in_words: str
    schedule: ScheduleOut | None
    target: TargetOut
    payload: Any
    pool: str
    priority: Priority
    labels: dict[str, str]
    retry: RetryOut
    timeout: Seconds
    overlap: str
    concurrency_key: str | None
    depends_on: list[str]
    created_at: datetime
    updated_at: datetime


class AttemptOut(BaseModel):
    attempt: int
    outcome: Outcome | None = Field(description="null while it runs.")
    worker_id: UUID | None
    started_at: datetime | None
    ended_at: datetime | None
    error: Any


class ProgressOut(BaseModel):
    fraction: float | None
    message: str | None


class ExecutionOut(BaseModel):
    id: UUID
    job_id: UUID
    job_version: int
    job_name: str | None = None
    state: State
    origin: Origin
    fire_at: datetime
    ready_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    attempt: int = Field(description="The number of the latest attempt; 0 before the first.")
    failures: int
    losses: int
    worker_id: UUID | None
    pool: str
    priority_class: str = Field(examples=["normal"])
    payload: Any = None
    result: Any = None
    error: Any = None
    reason: str | None = None
    progress: ProgressOut | None = None


class ExecutionDetail(ExecutionOut):
    """One execution, with its history."""

    attempts: list[AttemptOut]


class SkippedRange(BaseModel):
    """Fires that will not run, from the first to the last of them."""

    from_at: datetime
    to_at: datetime
    reason: str = Field(examples=["misfire", "coalesced", "paused"])
    count: int | None = Field(description="null: more than were counted.")


class JobDetail(JobOut):
    """One job, with its latest executions and the latest fires that were skipped."""

    latest_executions: list[ExecutionOut]
    skipped_fires: list[SkippedRange]


class StatusOut(BaseModel):
    job_id: UUID
    state: JobState = Field(description="The state of the job.")
    status: State | None = Field(description="The state of its latest execution; null before the first.")
    last_run: datetime | None
    next_run: datetime | None
    retry_count: int


class FireOut(BaseModel):
    fire_at: datetime
    local: str
    remark: Remark | None


class SkippedOut(BaseModel):
    local: str
    reason: str


class PreviewOut(BaseModel):
    in_words: str
    fires: list[FireOut]
    skipped: list[SkippedOut]


class Deleted(BaseModel):
    deleted: bool = True


class Started(BaseModel):
    """The execution that a run-now made."""

    execution_id: UUID
    job_id: UUID


class LogOut(BaseModel):
    attempt: int
    at: datetime
    stream: str = Field(examples=["stdout"])
    line: str


class LogList(BaseModel):
    items: list[LogOut]
    next_cursor: str = Field(description="Give it as `cursor` for the lines after these, also those still to come.")
    ended: bool = Field(description="Whether these were the last lines there will be.")


Item = TypeVar("Item")


class Page(BaseModel, Generic[Item]):
    items: list[Item]
    next_cursor: str | None = Field(description="Give it as `cursor` for the next page; null on the last.")


class JobList(Page[JobOut]):
    pass


class ExecutionList(Page[ExecutionOut]):
    pass


class JobBatch(BaseModel):
    """The jobs of a batch, in the order in which they were sent."""

    items: list[JobOut]


class Problem(BaseModel):
    """RFC 9457, for the OpenAPI document."""

    type: str = Field(examples=["urn:ondot:problem:invalid-body"])
    title: str
    status: int
    detail: str
    instance: str | None = None
    errors: list[dict[str, str]] | None = Field(default=None, examples=[[{"pointer": "/schedule/cron", "detail": "…"}]])


def job_out(
    spec: JobSpec,
    *,
    id: UUID,  # noqa: A002 - the field's name
    state: JobState,
    version: int,
    next_fire_at: datetime | None,
    created_at: datetime,
    updated_at: datetime,
) -> JobOut:
    return JobOut(
        **spec_out(spec),
        id=id,
        state=state,
        version=version,
        next_fire_at=next_fire_at,
        schedule_in_words=in_words(spec.schedule) if spec.schedule is not None else "Once, now",
        created_at=created_at,
        updated_at=updated_at,
    )


def spec_out(spec: JobSpec) -> SpecOut:
    return {
        "name": spec.name,
        "key": spec.key,
        "schedule": schedule_out(spec.schedule) if spec.schedule is not None else None,
        "target": target_out(spec.target),
        "payload": msgspec.json.decode(spec.payload),
        "pool": spec.pool,
        "priority": spec.priority,
        "labels": spec.labels,
        "retry": retry_out(spec.retry),
        "timeout": as_written(spec.timeout_s),
        "overlap": "allow",
        "concurrency_key": None,
        "depends_on": [],
    }


def schedule_out(schedule: Schedule) -> ScheduleOut:
    misfire = schedule.misfire
    return {
        **_when_out(schedule),
        "jitter": as_written(schedule.jitter_s),
        "start_at": instant_out(schedule.start_at),
        "end_at": instant_out(schedule.end_at),
        "max_fires": schedule.max_fires,
        "misfire": {
            "policy": misfire.policy,
            "grace": as_written(misfire.grace_s),
            "window": as_written(misfire.window_s),
            "limit": misfire.limit,
        },
        "calendar": calendar_out(schedule.calendar) if schedule.calendar is not None else None,
    }


def calendar_out(calendar: Calendar) -> CalendarOut:
    return {
        "exclude_holidays": calendar.exclude_holidays,
        "exclude_dates": list(calendar.exclude_dates),
        "business_days": calendar.business_days,
        "blackouts": [
            {"from_at": _rfc_3339(blackout.from_at), "to_at": _rfc_3339(blackout.to_at)}
            for blackout in calendar.blackouts
        ],
    }


def _when_out(schedule: Schedule) -> ScheduleOut:
    match schedule.when:
        case Cron(expression=expression, timezone=timezone, dst=dst):
            return {"cron": expression, "timezone": timezone, "dst": {"gap": dst.gap, "fold": dst.fold}}
        case Interval(every_s=every_s, anchor_at=anchor_at):
            return {"every": as_written(every_s), "anchor_at": _rfc_3339(anchor_at)}
        case Once(at=at):
            return {"at": _rfc_3339(at)}
    assert_never(schedule.when)


def target_out(target: TargetSpec) -> TargetOut:
    match target:
        case HttpTarget(url=url, method=method, headers=headers):
            return {"http": {"url": url, "method": method, "headers": headers}}
        case FunctionTarget(name=name):
            return {"function": name}
        case ShellTarget(command=command):
            return {"shell": {"command": list(command)}}
    assert_never(target)


def retry_out(retry: Retry) -> RetryOut:
    return {
        "max_retries": retry.max_retries,
        "backoff": retry.backoff,
        "initial": as_written(retry.initial_s),
        "factor": as_written(retry.factor),
        "max": as_written(retry.max_s),
        "jitter": retry.jitter,
        "delays": [as_written(delay_s) for delay_s in retry.delays_s],
        "max_worker_losses": retry.max_worker_losses,
    }


def preview_out(preview: Preview) -> PreviewOut:
    return PreviewOut(
        in_words=preview.in_words,
        fires=[FireOut(fire_at=f.fire_at, local=f.local, remark=f.remark) for f in preview.fires],
        skipped=[SkippedOut(local=s.local, reason=s.reason) for s in preview.skipped],
    )


def priority_class_out(priority_class: PriorityClass) -> str:
    return priority_class.name.lower()


def instant_out(at: datetime | None) -> str | None:
    return None if at is None else _rfc_3339(at)


def _rfc_3339(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")
