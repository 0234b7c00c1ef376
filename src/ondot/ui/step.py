"""`/runs/{run}/steps/{number}`: one step of a run, alone or beside the run's graph (W9).

It shows the state with its reason, what the step depends on, its generations or the items of its map, and the payload
and result of the latest. This module only reads; the buttons use the API.
"""

import asyncio
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final
from uuid import UUID

import msgspec

from ondot.model.errors import NotFound
from ondot.model.ids import ExecutionId, TenantNo
from ondot.model.workflow.graph import Graph, compile_graph
from ondot.model.workflow.spec import Approve, StepSpec
from ondot.store.database import Database
from ondot.store.executions import ExecutionRow, get_execution
from ondot.store.run_reads import PastStep, RunRow, ShownStep, get_run, get_step, list_past_steps, list_runs
from ondot.store.run_views import (
    MapCounts,
    RunExecution,
    StepExecution,
    ThinStep,
    list_maps,
    list_step_executions,
)
from ondot.store.step_waits import WaitRow, find_wait
from ondot.ui.execution import Error, Text, format_json, format_result, read_error
from ondot.ui.run_picture import CHILDREN_SHOWN, find_spec, newest_children, workflow_of
from ondot.ui.run_states import kind_of, shown_state, target_of, words_of
from ondot.words.job import one_line, took, zone_of_job

EXECUTIONS_SHOWN: Final = 50
NEIGHBOURS_SHOWN: Final = 30
DATE: Final = datetime(2000, 1, 1, tzinfo=UTC)
RULES: Final = {
    "success": "all parents succeeded",
    "no_failure": "no parent failed and at least one succeeded",
    "failure": "at least one parent failed",
    "ended": "all parents have ended, whatever their state",
}


@dataclass(frozen=True, slots=True)
class Line:
    """A generation of the step, or an item of its map."""

    id: UUID
    item: int | None
    state: str
    started_at: datetime | None
    took: str | None
    attempts: int
    message: str
    is_current: bool


@dataclass(frozen=True, slots=True)
class StepView:
    now: datetime
    run_id: UUID
    job_id: UUID
    job_name: str
    zone: str | None
    run_state: str
    is_live: bool
    number: int
    name: str
    kind: str
    target: str
    rule: str
    condition: str | None
    is_final: bool
    state: str
    words: str
    reason: str | None
    generation: int
    released_at: datetime | None
    ended_at: datetime | None
    parents: tuple[tuple[int, str], ...]
    parent_count: int
    children: tuple[tuple[int, str], ...]
    child_count: int
    items: MapCounts | None
    is_map: bool
    lines: tuple[Line, ...]
    past: tuple[PastStep, ...]
    child_run: UUID | None
    wait: WaitRow | None
    execution_id: UUID | None
    payload: Text | None
    result: Text | None
    error: Error | None

    @property
    def is_approval(self) -> bool:
        return self.state == "APPROVAL"

    @property
    def mark(self) -> str:
        return sha256(repr(replace(self, now=DATE)).encode()).hexdigest()[:12]


async def read_step(database: Database, tenant_no: TenantNo, run_id: UUID, number: int) -> StepView:
    """Raises NotFound."""
    now = database.clock.now()
    step: ShownStep | None = None
    execution: ExecutionRow | None = None
    lines: list[StepExecution] = []
    past: list[PastStep] = []
    children: list[RunRow] = []
    maps: dict[int, MapCounts] = {}
    wait: WaitRow | None = None
    async with database.reading(tenant_no) as connection:
        row = await get_execution(connection, tenant_no, ExecutionId(run_id))
        if row is None:
            raise NotFound(f"There is no run {run_id}.")
        run = await get_run(connection, tenant_no, run_id)
        job_id, version = (run.job_id, run.job_version) if run else (row.job_id, row.job_version)
        spec = await find_spec(database, connection, job_id, version)
        graph = compile_graph(workflow_of(spec, f"run {run_id}"))
        if number >= len(graph.names):
            raise NotFound(f"The run {run_id} has no step with the number {number}.")
        if run is not None:
            step = await get_step(connection, tenant_no, run_id, number)
            lines = await list_step_executions(connection, tenant_no, run, number, now, EXECUTIONS_SHOWN)
            past = await list_past_steps(connection, tenant_no, run_id, number)
            children = await list_runs(connection, tenant_no, limit=CHILDREN_SHOWN, parent_run_id=run_id)
            maps = await list_maps(connection, tenant_no, run_id)
            if step is not None and step.execution_id is not None:
                execution = await get_execution(connection, tenant_no, step.execution_id)
                wait = await find_wait(connection, tenant_no, run_id, step.execution_id)
    assert spec is not None
    state = _state(graph.steps[number], step, execution)
    run_state = run.state.value if run else row.state.value
    # A payload or a result may have megabytes: formatting them must not block other requests.
    payload, result = await asyncio.to_thread(_texts, graph.steps[number], step, execution)
    return StepView(
        now=now,
        run_id=run_id,
        job_id=job_id,
        job_name=spec.name,
        zone=zone_of_job(spec),
        run_state=run_state,
        is_live=row.ended_at is None,
        number=number,
        name=graph.names[number],
        kind=kind_of(graph.steps[number]),
        target=target_of(graph.steps[number]),
        rule=RULES[graph.steps[number].when],
        condition=_condition(graph.steps[number]),
        is_final=graph.steps[number].is_final,
        state=state,
        words=words_of(state),
        reason=step.reason if step else None,
        generation=step.generation if step else 0,
        released_at=step.released_at if step else None,
        ended_at=step.ended_at if step else None,
        parents=_named(graph, graph.parents[number]),
        parent_count=len(graph.parents[number]),
        children=_named(graph, graph.children[number]),
        child_count=len(graph.children[number]),
        items=maps.get(number),
        is_map=graph.steps[number].map is not None,
        lines=tuple(_line(line, step) for line in lines),
        past=tuple(past),
        child_run=newest_children(children).get(number),
        wait=wait,
        execution_id=execution.id if execution else None,
        payload=payload,
        result=result,
        error=read_error(execution.error) if execution else None,
    )


def _state(spec: StepSpec, step: ShownStep | None, execution: ExecutionRow | None) -> str:
    if step is None:
        return "WAITING"
    thin = ThinStep(
        step.step_no,
        step.state.value,
        step.reason,
        step.execution_id,
        step.generation,
        step.released_at,
        step.ended_at,
    )
    known = (
        {}
        if execution is None
        else {
            execution.id: RunExecution(
                execution.id, step.step_no, execution.state.value, execution.started_at, execution.attempt_no
            )
        }
    )
    return shown_state(spec, thin, known)


def _texts(spec: StepSpec, step: ShownStep | None, execution: ExecutionRow | None) -> tuple[Text | None, Text | None]:
    payload = None
    if execution is not None and execution.payload is not None:
        payload = format_json(execution.payload)
    elif spec.payload is not None and not isinstance(spec.target, Approve):
        payload = format_json(msgspec.json.decode(spec.payload))
    found = execution.result if execution is not None and execution.result is not None else step and step.result
    return payload, None if found is None else format_result(found)


def _condition(spec: StepSpec) -> str | None:
    return None if spec.condition is None else bytes(spec.condition).decode()


def _named(graph: Graph, numbers: tuple[int, ...]) -> tuple[tuple[int, str], ...]:
    return tuple((number, graph.names[number]) for number in numbers[:NEIGHBOURS_SHOWN])


def _line(line: StepExecution, step: ShownStep | None) -> Line:
    ran_s = (line.ended_at - line.started_at).total_seconds() if line.ended_at and line.started_at else None
    message = str((line.error or {}).get("message") or line.reason or "")
    return Line(
        id=line.id,
        item=line.item_no,
        state=line.state,
        started_at=line.started_at,
        took=None if ran_s is None else took(ran_s),
        attempts=line.attempt_no,
        message="" if line.state == "SUCCEEDED" else one_line(message)[:300],
        is_current=step is not None and step.execution_id == line.id,
    )
