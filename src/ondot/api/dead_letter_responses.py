"""Answers about dead letters: one, groups of similar ones, results, and the progress of an operation."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec
from pydantic import BaseModel, Field

from ondot.api.responses import AttemptOut, Page
from ondot.api.views import attempts_out
from ondot.flow.dead_letters import LetterDone, Result
from ondot.model.bulk import BulkState
from ondot.model.execution import Origin, State
from ondot.model.fingerprint import UNKNOWN
from ondot.model.ids import JobId
from ondot.model.job import JobSpec
from ondot.model.workflow.graph import compile_graph
from ondot.model.workflow.spec import WorkflowTarget
from ondot.store.bulk import BulkRow
from ondot.store.dead_letters import LetterGroup, LetterRow
from ondot.store.executions import AttemptRow


class LetterOut(BaseModel):
    """A FAILED execution that waits for a person, or has been resolved."""

    execution_id: UUID
    job_id: UUID
    job_version: int
    job_name: str | None
    state: Literal["open", "replayed", "discarded", "handled"]
    failed_at: datetime
    reason: str | None = Field(description="Why it was not retried.")
    fingerprint: str = Field(description="Similar errors have the same one.")
    error: Any = Field(description="The error of the last attempt; lists leave its `detail` out.")
    pool: str | None = Field(description="null, like the next three, if its history is no longer kept.")
    origin: Origin | None
    fire_at: datetime | None
    attempts_made: int | None
    resolved_at: datetime | None
    resolved_by: str | None
    resolved_reason: str | None
    replay_id: UUID | None = Field(description="The execution that runs it again.")
    run_id: UUID | None = Field(default=None, description="Of a step: its run.")
    step: str | None = Field(default=None, description="Of a step: its name.")


class LetterDetail(LetterOut):
    """With the payload of a replay, and all attempts."""

    payload: Any = Field(description="The payload it ran with: its own, or its job's.")
    replay_state: State | None = Field(description="The state of the replay.")
    attempts: list[AttemptOut]


class LetterList(Page[LetterOut]):
    pass


class LettersJob(BaseModel):
    id: UUID
    name: str | None


class LetterGroupOut(BaseModel):
    """Open letters with similar errors."""

    fingerprint: str
    count: int
    first_failed_at: datetime
    last_failed_at: datetime
    sample_execution_id: UUID
    sample_error: Any = Field(description="The error of the newest letter.")
    job_count: int
    jobs: list[LettersJob] = Field(description="Some of their jobs.")


class LetterGroupList(BaseModel):
    items: list[LetterGroupOut]


class LetterDoneOut(BaseModel):
    id: UUID
    result: Result
    replay_id: UUID | None = Field(description="The execution that runs it again.")
    detail: str | None = Field(description="Why it was not changed, and what to do.")


class LettersDone(BaseModel):
    """The result for each named letter, in the order of the request."""

    done: int
    refused: int
    items: list[LetterDoneOut]


class LetterCount(BaseModel):
    """A dry run."""

    dry_run: Literal[True] = True
    count: int = Field(description="Open letters that would be changed.")


class OperationOut(BaseModel):
    """An operation on all letters that matched when it started, and its progress."""

    id: UUID
    action: Literal["replay", "discard"]
    state: BulkState
    total: int = Field(description="Letters that matched when it started.")
    done: int = Field(description="Letters that this operation has replayed or discarded so far.")
    filter: dict[str, Any]
    rate: float = Field(description="Letters a second.")
    version: Literal["same", "current"]
    edited_payload: bool
    reason: str | None
    actor: str
    created_at: datetime
    ended_at: datetime | None


class OperationList(Page[OperationOut]):
    pass


def letter_out(row: LetterRow, spec: JobSpec | None) -> LetterOut:
    return LetterOut(
        execution_id=row.execution_id,
        job_id=row.job_id,
        job_version=row.job_version,
        job_name=spec.name if spec else None,
        state=row.resolution or "open",
        failed_at=row.failed_at,
        reason=row.reason,
        fingerprint=(row.error or {}).get("fingerprint") or UNKNOWN,
        error=row.error,
        pool=row.pool,
        origin=row.origin,
        fire_at=row.fire_at,
        attempts_made=row.attempt_no,
        resolved_at=row.resolved_at,
        resolved_by=row.resolved_by,
        resolved_reason=row.resolved_reason,
        replay_id=row.replay_id,
        run_id=row.run_id,
        step=_step_of(row, spec),
    )


def _step_of(row: LetterRow, spec: JobSpec | None) -> str | None:
    if row.step_no is None or spec is None or not isinstance(spec.target, WorkflowTarget):
        return None
    return compile_graph(spec.target).names[row.step_no]


def letter_detail(
    row: LetterRow, spec: JobSpec | None, attempts: list[AttemptRow], replay_state: State | None
) -> LetterDetail:
    payload = row.payload.encode() if row.payload is not None else bytes(spec.payload) if spec else b"null"
    return LetterDetail(
        **letter_out(row, spec).model_dump(),
        payload=msgspec.json.decode(payload),
        replay_state=replay_state,
        attempts=attempts_out(attempts),
    )


def group_out(group: LetterGroup, names: Mapping[JobId, str]) -> LetterGroupOut:
    return LetterGroupOut(
        fingerprint=group.fingerprint,
        count=group.count,
        first_failed_at=group.first_failed_at,
        last_failed_at=group.last_failed_at,
        sample_execution_id=group.sample_id,
        sample_error=group.sample_error,
        job_count=group.job_count,
        jobs=[LettersJob(id=id_, name=names.get(id_)) for id_ in group.job_ids],
    )


def done_out(entries: list[LetterDone]) -> LettersDone:
    done = sum(entry.is_done for entry in entries)
    items = [
        LetterDoneOut(id=entry.id, result=entry.result, replay_id=entry.replay_id, detail=entry.detail)
        for entry in entries
    ]
    return LettersDone(done=done, refused=len(entries) - done, items=items)


def operation_out(row: BulkRow) -> OperationOut:
    return OperationOut(
        id=row.id,
        action="replay" if row.action == "replay" else "discard",
        state=row.state,
        total=row.total,
        done=row.done,
        filter=msgspec.to_builtins(row.filter),
        rate=row.per_s,
        version="current" if row.current_version else "same",
        edited_payload=row.own_payload,
        reason=row.reason,
        actor=row.actor,
        created_at=row.created_at,
        ended_at=row.ended_at,
    )
