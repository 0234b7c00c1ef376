"""`/v1/executions/{id}/explain` and `/v1/jobs/{id}/explain` (E17): why it is not running, and when it may start.

Each reason has the fields of `ReasonOut`, and also the facts of its code (docs/reference/api.md lists them).
"""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Path
from pydantic import BaseModel, ConfigDict, Field

from ondot.api.dependencies import CallerDep, RequestServices, needs
from ondot.api.parameters import ExecutionPath, Instant, JobPath, check_instant, id_in_path, only_known_parameters
from ondot.api.responses import SkippedRange
from ondot.flow.explain import explain_execution, explain_job, explain_step
from ondot.model.access import Right
from ondot.model.explain_facts import Code, Explanation
from ondot.model.explain_fire import FireCode, FireExplanation
from ondot.model.ids import ExecutionId, JobId

RunId = Annotated[UUID, Depends(id_in_path("run"))]
StepName = Annotated[str, Path(alias="name", max_length=200, description="The name of the step.")]

router = APIRouter(dependencies=[Depends(only_known_parameters)])


class ReasonOut(BaseModel):
    """One reason to wait, with the facts of its code as further fields."""

    model_config = ConfigDict(extra="allow")

    code: Code
    message: str
    until: datetime | None = Field(description="When the reason ends; null if it is not known.")
    what_to_do: str | None


class ExplanationOut(BaseModel):
    id: UUID
    state: str
    summary: str = Field(description="In a sentence, for people.")
    may_start_at: datetime | None = Field(description="The earliest start; null if it is not known.")
    reasons: list[ReasonOut] = Field(description="The most decisive first.")
    now: datetime = Field(description="By the database's clock.")


class FireExplanationOut(BaseModel):
    """The outcome of the fire at an instant, with the facts of its code as further fields."""

    model_config = ConfigDict(extra="allow")

    at: datetime
    code: FireCode
    message: str
    fire_at: datetime | None = Field(description="The fire at that instant; null if there is none.")


class JobExplanationOut(ExplanationOut):
    live: int = Field(description="Executions that have not ended, counted up to 10,000.")
    executions: list[ExplanationOut] = Field(description="The oldest of them.")
    skipped_fires: list[SkippedRange] = Field(description="The latest ranges of fires that will not run.")
    fire: FireExplanationOut | None = Field(description="Only with `at`.")


@router.get(
    "/executions/{id}/explain",
    dependencies=[needs(Right.JOBS_READ, by_pool=True)],
    tags=["executions"],
    response_model=ExplanationOut,
)
async def explain_one_execution(services: RequestServices, caller: CallerDep, id_: ExecutionPath) -> ExplanationOut:
    """Why this execution is not running: what it waits for, until when, and what to do about it."""
    explanation = await explain_execution(
        services.database, caller.tenant_no, ExecutionId(id_), names_others=caller.is_owner
    )
    return ExplanationOut(**_explanation_fields(explanation))


@router.get(
    "/runs/{id}/steps/{name}/explain",
    dependencies=[needs(Right.JOBS_READ)],
    tags=["runs"],
    response_model=ExplanationOut,
)
async def explain_step_of_run(
    services: RequestServices, caller: CallerDep, id_: RunId, name: StepName
) -> ExplanationOut:
    """Why this step of a run does not run: the steps that it waits for, or that failed above it. The run itself:
    `GET /v1/executions/{id}/explain`."""
    explanation = await explain_step(services.database, caller.tenant_no, ExecutionId(id_), name)
    return ExplanationOut(**_explanation_fields(explanation))


@router.get(
    "/jobs/{id}/explain",
    dependencies=[needs(Right.JOBS_READ, by_pool=True)],
    tags=["jobs"],
    response_model=JobExplanationOut,
)
async def explain_one_job(
    services: RequestServices, caller: CallerDep, id_: JobPath, at: Instant = None
) -> JobExplanationOut:
    """Why this job is not running; with `at`, the outcome of the fire at that instant."""
    found = await explain_job(
        services.database, caller.tenant_no, JobId(id_), check_instant("at", at), names_others=caller.is_owner
    )
    return JobExplanationOut(
        **_explanation_fields(found.job),
        live=found.live,
        executions=[ExplanationOut(**_explanation_fields(one)) for one in found.executions],
        skipped_fires=[
            SkippedRange(from_at=entry.from_at, to_at=entry.to_at, reason=entry.reason, count=entry.count)
            for entry in found.skipped
        ],
        fire=None if found.fire is None else _fire_out(found.fire),
    )


def _fire_out(fire: FireExplanation) -> FireExplanationOut:
    return FireExplanationOut(at=fire.at, code=fire.code, message=fire.message, fire_at=fire.fire_at, **fire.facts)


def _explanation_fields(explanation: Explanation) -> dict[str, Any]:
    return {
        "id": explanation.id,
        "state": explanation.state,
        "summary": explanation.summary,
        "may_start_at": explanation.may_start_at,
        "reasons": [
            ReasonOut(
                code=reason.code,
                message=reason.message,
                until=reason.until,
                what_to_do=reason.what_to_do,
                **reason.facts,
            )
            for reason in explanation.reasons
        ],
        "now": explanation.now,
    }
