"""Rows of the store as the API shows them."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import structs

from ondot.api.responses import (
    AttemptOut,
    ExecutionDetail,
    ExecutionOut,
    ProgressOut,
    priority_class_out,
)
from ondot.api.shown_json import shown_json
from ondot.document.render import JobOut, render_job
from ondot.flow.new_jobs import Accepted
from ondot.model.execution import Outcome, PriorityClass, State
from ondot.model.job import JobSpec
from ondot.model.workflow.graph import compile_graph
from ondot.model.workflow.spec import WorkflowTarget
from ondot.store.executions import AttemptRow, ExecutionRow

LISTED_PAYLOAD_BYTES: Final = 16 * 1024
"""A list leaves out longer payloads of jobs: a thousand of a megabyte would be a gigabyte."""


_ENCODER: Final = msgspec.json.Encoder()


Warnings = Mapping[int, Sequence[Any]]
"""What the creator should know of each job, by its place in the batch."""


def created_job_text(jobs: list[Accepted], warnings: Warnings = MappingProxyType({})) -> str:
    """The answer to the creation of one job. A test compares it with what FastAPI makes of `render_job`."""
    return _ENCODER.encode(_render_created(jobs, warnings)[0]).decode()


def created_batch_text(jobs: list[Accepted], warnings: Warnings = MappingProxyType({})) -> str:
    """The answer to a batch: a megabyte for a thousand jobs, which through pydantic took longer than storing them."""
    return _ENCODER.encode({"items": _render_created(jobs, warnings)}).decode()


def _render_created(jobs: list[Accepted], warnings: Warnings) -> list[JobOut]:
    items = [render_job(job, job.created_at, as_text=True) for job in jobs]
    for place, said in warnings.items():
        items[place]["warnings"] = [*items[place].get("warnings", ()), *said]
    return items


def execution_out(row: ExecutionRow, spec: JobSpec | None, *, whole: bool = False) -> ExecutionOut:
    """`spec` is that of the version it runs, None if it is gone. `whole`: with its payload, however long."""
    progress = step = None
    if row.step_no is not None and spec is not None and isinstance(spec.target, WorkflowTarget):
        graph = compile_graph(spec.target)
        step, own = graph.names[row.step_no], graph.steps[row.step_no].payload
        spec = spec if own is None else structs.replace(spec, payload=own)
    if row.progress is not None or row.progress_message is not None:
        progress = ProgressOut(fraction=row.progress, message=row.progress_message)
    return ExecutionOut(
        id=row.id,
        job_id=row.job_id,
        job_version=row.job_version,
        job_name=spec.name if spec else None,
        state=row.state,
        origin=row.origin,
        fire_at=row.fire_at,
        ready_at=row.ready_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        attempt=row.attempt_no,
        failures=row.failures,
        losses=row.losses,
        worker_id=row.worker_id,
        pool=row.pool,
        priority_class=priority_class_out(PriorityClass(row.priority_class)),
        payload=shown_json(_payload(row, spec, whole=whole)),
        result=shown_json(row.result),
        error=row.error,
        reason=row.reason,
        progress=progress,
        cancel_requested_at=row.cancel_at,
        start_by=row.start_by,
        replay_of=row.replay_of,
        run_id=row.run_id,
        step=step,
        item=row.item_no,
        trace_id=row.find_trace_id(spec),
    )


def _payload(row: ExecutionRow, spec: JobSpec | None, *, whole: bool) -> Any:
    """What the target was sent: the execution's own payload, or that of its job's version."""
    if row.payload is not None or spec is None or not (whole or len(bytes(spec.payload)) <= LISTED_PAYLOAD_BYTES):
        return row.payload
    return msgspec.json.decode(spec.payload)


def execution_detail(
    row: ExecutionRow, spec: JobSpec | None, attempts: list[AttemptRow], event_id: UUID | None = None
) -> ExecutionDetail:
    """With all attempts: failed ones are stored, one that runs or has succeeded is part of the execution's row."""
    shown = attempts_out(attempts)
    if row.state in {State.RUNNING, State.SUCCEEDED}:
        shown.append(
            AttemptOut(
                attempt=row.attempt_no,
                outcome=Outcome.SUCCEEDED if row.state is State.SUCCEEDED else None,
                worker_id=row.worker_id,
                started_at=row.started_at,
                ended_at=row.ended_at,
                error=None,
            )
        )
    execution = execution_out(row, spec, whole=True)
    return ExecutionDetail(**execution.model_dump(), attempts=shown, event_id=event_id)


def attempts_out(attempts: list[AttemptRow]) -> list[AttemptOut]:
    return [
        AttemptOut(
            attempt=attempt.attempt_no,
            outcome=attempt.outcome,
            worker_id=attempt.worker_id,
            started_at=attempt.started_at,
            ended_at=attempt.ended_at,
            error=attempt.error,
        )
        for attempt in attempts
    ]
