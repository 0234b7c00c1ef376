"""Runs of workflows as people read and repair them (W3, W8): the bodies of repairs, and runs and steps as answers."""

from datetime import datetime
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from pydantic import BaseModel, Field

from ondot.document.errors import invalid_body
from ondot.document.fields import Body, PlainText
from ondot.document.reading import encode_payload_text, read_form
from ondot.model.errors import Fault
from ondot.model.execution import Origin
from ondot.model.workflow.spec import MAX_STEPS
from ondot.model.workflow.states import RunState, StepState

Reason = Annotated[PlainText | None, Field(description="Why; kept in the audit log.", examples=["the API is back"])]
StepName = Annotated[str, Field(min_length=1, max_length=200)]
Steps = Annotated[list[StepName], Field(min_length=1, max_length=MAX_STEPS)]

_A_RETRY: Final = 'for example {"steps": ["load"]} or {"from": ["extract"]}'


class RunRetryBody(Body):
    """Which steps of a run run again."""

    steps: Steps | None = Field(
        default=None,
        description="These steps, which failed or run, and what follows from them. Default: all that failed and whose "
        "failure was not handled.",
        examples=[["load"]],
    )
    from_: Steps | None = Field(
        default=None,
        alias="from",
        description="These steps and everything below them, whether they failed or not.",
        examples=[["extract"]],
    )
    payload: Any = Field(default=None, description="The payload of the named steps from now on, taken as it is.")
    version: Literal["same", "latest"] = Field(
        default="same",
        description="The version of the workflow: that of the run, or the latest one, which is refused if a step above "
        "one that runs again differs in it.",
    )
    dry_run: bool = Field(default=False, description="Only show what would happen.")
    reason: Reason = None


class RerunBody(RunRetryBody):
    """Which steps of an ended run a new run executes again. It takes over the outcomes of all others."""

    steps: Steps | None = Field(
        default=None,
        description="These steps, which failed, and what follows from them. Default: all that failed and whose failure "
        "was not handled; if none did, all steps.",
        examples=[["load"]],
    )


class SkipBody(Body):
    """A failed step that counts as skipped."""

    step: StepName = Field(description="The name of the step.", examples=["load"])
    dry_run: bool = Field(default=False, description="Only show what would happen.")
    reason: Reason = None


class ResultBody(Body):
    """A failed step that counts as succeeded, with this result."""

    step: StepName = Field(description="The name of the step.", examples=["load"])
    result: Any = Field(default=None, description="Its result: any JSON.", examples=[{"rows": 12}])
    dry_run: bool = Field(default=False, description="Only show what would happen.")
    reason: Reason = None


class RunChangeBody(Body):
    """Give up, pause, resume or cancel a run."""

    dry_run: bool = Field(default=False, description="Only show what would happen.")
    reason: Reason = None


def retry_run_request(raw: object) -> RunRetryBody:
    return _check_names(RunRetryBody() if raw is None else read_form(RunRetryBody, raw, _A_RETRY))


def rerun_request(raw: object) -> RunRetryBody:
    return _check_names(RerunBody() if raw is None else read_form(RerunBody, raw, _A_RETRY))


def _check_names(body: RunRetryBody) -> RunRetryBody:
    faults = []
    if body.steps is not None and body.from_ is not None:
        faults.append(Fault("/from", "`steps` and `from` exclude each other; give one of them."))
    if "payload" in body.model_fields_set and body.steps is None and body.from_ is None:
        faults.append(Fault("/payload", "A `payload` is for named steps: name them in `steps` or `from`."))
    if faults:
        raise invalid_body(faults, all_of_schedule=False)
    return body


def skip_request(raw: object) -> SkipBody:
    return read_form(SkipBody, raw, 'for example {"step": "load", "reason": "not needed today"}')


def result_request(raw: object) -> ResultBody:
    return read_form(ResultBody, raw, 'for example {"step": "load", "result": {"rows": 12}}')


def run_change_request(raw: object) -> RunChangeBody:
    return RunChangeBody() if raw is None else read_form(RunChangeBody, raw, 'for example {"reason": "not needed"}')


def payload_text(body: RunRetryBody) -> str | None:
    """The payload that a body has, as JSON; None: it has none. null is a payload too."""
    return encode_payload_text(body.payload, "").decode() if "payload" in body.model_fields_set else None


def result_text(body: ResultBody) -> str:
    return encode_payload_text(body.result, "").decode()


class StepCounts(BaseModel):
    """How many steps are in which state, without `finally` steps."""

    waiting: int
    running: int = Field(description="Released: queued or running.")
    succeeded: int
    failed: int
    skipped: int
    blocked: int


class ParentOut(BaseModel):
    """The step of another run that started this one."""

    run_id: UUID
    step_no: int | None
    item: int | None


class MapOut(BaseModel):
    """The items of a mapped step."""

    total: int
    waiting: int
    running: int
    succeeded: int
    failed: int
    concurrency: int | None = None


class StepOut(BaseModel):
    """One step of a run, in its latest generation."""

    name: str
    state: StepState
    reason: str | None
    kind: str = Field(examples=["http", "function", "shell", "join", "wait", "approve", "sub_workflow"])
    depends_on: list[str]
    when: str
    is_final: bool = Field(description="A `finally` step.")
    generation: int = Field(description="How often it was started; 0: never.")
    execution_id: UUID | None
    execution_state: str | None = Field(description="The state of its execution: PENDING is queued.")
    attempt: int | None
    waits_for: list[str] = Field(description="Parents that have not ended, of a step that waits.")
    is_stopping: bool = Field(description="It runs again when its generation before, which is cancelled, has ended.")
    released_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    blocked_s: float | None = Field(description="From the start of the run until its parents had ended.")
    queued_s: float | None = Field(description="From then until its latest attempt started.")
    running_s: float | None
    result: Any = Field(default=None, description="A list leaves out results of more than 16 KiB: get the step.")
    result_bytes: int | None = None
    error: Any = None
    map: MapOut | None = None


class GenerationOut(BaseModel):
    """A generation of a step."""

    generation: int
    state: str
    reason: str | None
    execution_id: UUID | None
    released_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    replaced_by: UUID | None = Field(description="The repair that replaced it; null: it is the latest.")


class StepDetail(StepOut):
    """One step, with all its generations, oldest first."""

    run_id: UUID
    generations: list[GenerationOut]


class RepairOut(BaseModel):
    """What a person did to a run."""

    id: UUID
    at: datetime
    action: str = Field(examples=["retry", "skip", "result", "pause"])
    actor: str
    reason: str | None
    steps: list[str]


class RunOut(BaseModel):
    """A run of a workflow: one execution of its job."""

    id: UUID
    job_id: UUID
    job_name: str | None
    job_version: int
    state: RunState
    verdict: str | None = Field(description="How it will end, while its `finally` steps run.")
    reason: str | None
    is_paused: bool
    origin: Origin | None
    fire_at: datetime | None
    started_at: datetime | None
    blocked_at: datetime | None
    ended_at: datetime | None
    rerun_of: UUID | None
    parent: ParentOut | None
    counts: StepCounts
    superseded: int = Field(description="Ends of executions that a repair had replaced.")


class RunDetail(RunOut):
    """One run with its steps."""

    payload: Any
    failed_steps: list[str] = Field(description="Steps that failed and whose failure was not handled.")
    critical_path: list[str] = Field(description="The chain of steps that decided how long it took.")
    steps: list[StepOut] = Field(description="The first 1,000; `next_cursor` leads to the others.")
    next_cursor: str | None = Field(description="Send it as `cursor` to `…/steps` for the steps after these.")
    repairs: list[RepairOut] = Field(description="The latest 100, newest first.")


class RunChange(BaseModel):
    """What a repair or another change of a run did, or would do."""

    run_id: UUID = Field(description="The run that was changed. Of a rerun: the new run, or the old one of a dry run.")
    action: str
    dry_run: bool
    rerun_of: UUID | None = Field(default=None, description="Of a rerun: the run that it runs again.")
    state: RunState = Field(description="The state of the run afterwards.")
    runs_again: list[str] = Field(description="Steps that were reset: they run if their rule says so.")
    stops: list[str] = Field(description="Those of them that run now: they are cancelled first.")
    set_by_hand: dict[str, StepState] = Field(default_factory=dict)
    job_version: int
    repair_id: UUID | None = Field(default=None, description="null for a dry run.")
