"""Answers of the API: executions, their status, previews and lists. A job is rendered by `document.render`.

Instants are RFC 3339 with `Z`.
"""

from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar
from uuid import UUID

from pydantic import BaseModel, Field

from ondot.document.render import JobOut, WorkflowRow
from ondot.model.execution import Origin, Outcome, PriorityClass, State
from ondot.model.job import JobState
from ondot.model.schedule import Preview, Remark


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
    payload: Any = Field(
        default=None,
        description="What is sent to the target: its own payload, or its job's. A list leaves out a job's payload of "
        "more than 16 KiB: get the execution.",
    )
    result: Any = None
    error: Any = None
    reason: str | None = None
    progress: ProgressOut | None = None
    cancel_requested_at: datetime | None = Field(default=None, description="When it was asked to end, if it runs.")
    start_by: datetime | None = Field(default=None, description="Its start deadline; null once it has ended.")
    replay_of: UUID | None = Field(default=None, description="The execution that it runs again.")
    run_id: UUID | None = Field(default=None, description="The run of which it is a step.")
    step: str | None = Field(default=None, description="The name of the step.")
    item: int | None = Field(default=None, description="The number of its item, if the step is mapped.")
    trace_id: str | None = Field(default=None, description="The id of its trace: its caller's, its run's or its own.")


class ExecutionDetail(ExecutionOut):
    """One execution, with its history."""

    attempts: list[AttemptOut]
    event_id: UUID | None = Field(default=None, description="The event that started it: GET /v1/events/{id}.")


class SkippedRange(BaseModel):
    """Fires that will not run, from the first to the last."""

    from_at: datetime
    to_at: datetime
    reason: str = Field(examples=["misfire", "coalesced", "paused"])
    count: int | None = Field(description="null: too many to count.")


Item = TypeVar("Item")


class Page(BaseModel, Generic[Item]):
    items: list[Item]
    next_cursor: str | None = Field(description="Send it as `cursor` for the next page; null on the last.")


class SkippedFires(SkippedRange):
    """Fires of a job that did not run."""

    job_id: UUID
    job_name: str | None
    recorded_at: datetime
    is_backfilled: bool = Field(description="A later backfill covers them.")
    what_to_do: str | None = Field(description="The command that runs them.")


class SkippedList(Page[SkippedFires]):
    pass


class JobDetail(JobOut):
    """One job, with its latest executions and its latest skipped fires."""

    latest_executions: list[ExecutionOut]
    skipped_fires: list[SkippedRange]


class StatusOut(BaseModel):
    job_id: UUID
    state: JobState = Field(description="The state of the job.")
    status: State | None = Field(description="The state of its latest execution; null before the first.")
    last_run: datetime | None = Field(description="When its latest execution started; it may have ended.")
    next_run: datetime | None
    retry_count: int
    created_by: UUID | None = Field(
        description="The key or user that created a one-time job, if one was used; other jobs are in the audit log."
    )


class FireOut(BaseModel):
    fire_at: datetime
    local: str
    remark: Remark | None


class JobFireOut(FireOut):
    """A fire of a job; with jitter or spread it starts later than it is due."""

    ready_at: datetime | None = Field(default=None, description="When it may start, if that is later.")


class SkippedOut(BaseModel):
    local: str
    reason: str


class PreviewOut(BaseModel):
    in_words: str
    fires: list[FireOut]
    skipped: list[SkippedOut]


class NextOut(BaseModel):
    """The next fires of a job."""

    in_words: str
    fires: list[JobFireOut]
    skipped: list[SkippedOut]


class Deleted(BaseModel):
    deleted: bool = True


class Started(BaseModel):
    """The execution that a run-now created."""

    execution_id: UUID
    job_id: UUID


class LogOut(BaseModel):
    attempt: int
    at: datetime
    stream: str = Field(examples=["stdout"])
    line: str


class LogList(BaseModel):
    items: list[LogOut]
    next_cursor: str = Field(
        description="Send it as `cursor` for the lines after these, including lines that are not written yet."
    )
    ended: bool = Field(description="Whether these are the last lines.")


SEARCHED_THROUGH = (
    "If the time of a search was up before the page was full: everything newer than this instant was searched. "
    "Pass `next_cursor` to go on."
)


class JobList(Page[JobOut]):
    searched_through: datetime | None = Field(default=None, description=SEARCHED_THROUGH)


class WorkflowList(Page[WorkflowRow]):
    pass


class ExecutionList(Page[ExecutionOut]):
    searched_through: datetime | None = Field(default=None, description=SEARCHED_THROUGH)
    see: str | None = Field(default=None, description="Where to look, if the executions are kept elsewhere.")


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


def preview_out(preview: Preview) -> PreviewOut:
    return PreviewOut(
        in_words=preview.in_words,
        fires=[FireOut(fire_at=f.fire_at, local=f.local, remark=f.remark) for f in preview.fires],
        skipped=[SkippedOut(local=s.local, reason=s.reason) for s in preview.skipped],
    )


def next_out(preview: Preview, jitter: timedelta | None) -> NextOut:
    """The fires of a job; with `jitter` they start this much later."""
    shown = preview_out(preview)
    fires = [
        JobFireOut(**fire.model_dump())
        if jitter is None
        else JobFireOut(**fire.model_dump(), ready_at=fire.fire_at + jitter)
        for fire in shown.fires
    ]
    return NextOut(in_words=shown.in_words, fires=fires, skipped=shown.skipped)


def priority_class_out(priority_class: PriorityClass) -> str:
    return priority_class.name.lower()
