"""A run as its graph and its timeline draw it (W9): two short documents for the page's scripts.

The shape has names and parents by number and never changes with a version, so that a browser keeps it. The steps have
a letter for each state and the milliseconds since the run's start: about 20 bytes for a step, read again while the run
is live.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec

from ondot.model.errors import NotFound
from ondot.model.ids import ExecutionId, JobId, TenantNo
from ondot.model.job import JobSpec
from ondot.model.workflow.critical_path import find_critical_path
from ondot.model.workflow.graph import Graph, compile_graph
from ondot.model.workflow.spec import WorkflowTarget
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.executions import get_execution
from ondot.store.jobs import get_job
from ondot.store.run_reads import RunRow, get_run, list_runs
from ondot.store.run_views import (
    EarlyAttempt,
    MapCounts,
    RunExecution,
    ThinStep,
    list_early_attempts,
    list_maps,
    list_run_executions,
    list_thin_steps,
)
from ondot.ui.run_states import LETTERS, by_id, kind_of, shown_state

RETRIED_SHOWN: Final = 500
"""Executions whose earlier attempts are drawn."""
CHILDREN_SHOWN: Final = 1000
MILLISECOND: Final = timedelta(milliseconds=1)


def workflow_of(spec: JobSpec | None, what: str) -> WorkflowTarget:
    """Raises NotFound if it is no workflow, or its spec is gone."""
    if spec is None or not isinstance(spec.target, WorkflowTarget):
        raise NotFound(f"There is no workflow of {what}.")
    return spec.target


async def find_spec(database: Database, connection: Connection, job_id: JobId, version: int) -> JobSpec | None:
    """The spec of a version. The caller has read a row of its tenant that names it."""
    specs = await database.specs.find(connection, [(job_id, version)])
    return specs.get((job_id, version))


async def read_shape(database: Database, tenant_no: TenantNo, job_id: JobId, version: int) -> bytes:
    """Names, parents, kinds, and which steps are maps. Raises NotFound."""
    async with database.reading(tenant_no) as connection:
        if await get_job(connection, tenant_no, job_id) is None:
            raise NotFound(f"There is no job {job_id}.")
        spec = await find_spec(database, connection, job_id, version)
    target = workflow_of(spec, f"job {job_id} in version {version}")
    return await asyncio.to_thread(lambda: _encode_shape(compile_graph(target)))


async def read_run_steps(database: Database, tenant_no: TenantNo, run_id: UUID) -> bytes:
    """The states and times of all steps. Raises NotFound."""
    now = database.clock.now()
    async with database.reading(tenant_no) as connection:
        run = await get_run(connection, tenant_no, run_id)
        if run is None:
            row = await get_execution(connection, tenant_no, ExecutionId(run_id))
            if row is None:
                raise NotFound(f"There is no run {run_id}.")
            spec = await find_spec(database, connection, row.job_id, row.job_version)
            graph = compile_graph(workflow_of(spec, f"run {run_id}"))
            return _encode_steps(graph, row.state.value, None, row.ended_at, now, [], [], {}, {}, [])
        spec = await find_spec(database, connection, run.job_id, run.job_version)
        steps = await list_thin_steps(connection, tenant_no, run_id)
        executions = await list_run_executions(connection, tenant_no, run, now)
        maps = await list_maps(connection, tenant_no, run_id)
        children = await list_runs(connection, tenant_no, limit=CHILDREN_SHOWN, parent_run_id=run_id)
        retried = [one.id for one in executions if one.attempt_no > 1][:RETRIED_SHOWN]
        early = await list_early_attempts(connection, tenant_no, run, retried, now) if retried else []
    graph = compile_graph(workflow_of(spec, f"run {run_id}"))
    return await asyncio.to_thread(
        _encode_steps,
        graph,
        run.state.value,
        run.started_at,
        run.ended_at,
        now,
        steps,
        executions,
        maps,
        newest_children(children),
        early,
    )


def newest_children(children: Sequence[RunRow]) -> dict[int, ExecutionId]:
    """The newest run of each sub-workflow, by the number of its step; not of items. `children`: newest first."""
    found: dict[int, ExecutionId] = {}
    for child in children:
        if child.parent_step_no is not None and child.parent_item_no is None:
            found.setdefault(child.parent_step_no, child.id)
    return found


def _encode_shape(graph: Graph) -> bytes:
    return msgspec.json.encode(
        {
            "names": graph.names,
            "parents": graph.parents,
            "kinds": [kind_of(step) for step in graph.steps],
            "maps": [number for number, step in enumerate(graph.steps) if step.map is not None],
            "final": graph.finals,
        }
    )


def _encode_steps(
    graph: Graph,
    state: str,
    start_at: datetime | None,
    end_at: datetime | None,
    now: datetime,
    steps: Sequence[ThinStep],
    executions: Sequence[RunExecution],
    maps: dict[int, MapCounts],
    children: dict[int, ExecutionId],
    early: Sequence[EarlyAttempt],
) -> bytes:
    origin_at = start_at or now

    def since(at: datetime | None) -> int | None:
        return None if at is None else max((at - origin_at) // MILLISECOND, 0)

    known, by_number = by_id(executions), {step.step_no: step for step in steps}
    states: list[str] = []
    times: list[tuple[int | None, int | None, int | None]] = []
    for number, spec in enumerate(graph.steps):
        step = by_number.get(number)
        states.append(LETTERS[shown_state(spec, step, known)])
        execution = known.get(step.execution_id) if step and step.execution_id else None
        started_at = execution.started_at if execution else step.released_at if step else None
        times.append((since(step.released_at), since(started_at), since(step.ended_at)) if step else (None, None, None))
    ran = {step.step_no: (step.released_at, step.ended_at) for step in steps}
    return msgspec.json.encode(
        {
            "state": state,
            "is_live": end_at is None,
            "start_ms": None if start_at is None else round(start_at.timestamp() * 1000),
            "now": since(end_at or now),
            "states": "".join(states),
            "released": [one[0] for one in times],
            "started": [one[1] for one in times],
            "ended": [one[2] for one in times],
            "generations": {str(step.step_no): step.generation for step in steps if step.generation > 1},
            "early": [
                [known[one.execution_id].step_no, since(one.started_at), since(one.ended_at)]
                for one in early
                if one.started_at is not None
            ],
            "maps": {str(no): [one.total, one.succeeded, one.failed, one.active] for no, one in maps.items()},
            "children": {str(no): str(child) for no, child in children.items()},
            "path": find_critical_path(graph.parents, ran, graph.finals),
        }
    )
