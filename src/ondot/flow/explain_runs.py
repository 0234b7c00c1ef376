"""Explain of runs and steps (E17, W3): reads what `model.explain_run` decides by. Bounded, however large the run is."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from difflib import get_close_matches
from typing import Any

import msgspec

from ondot.model.errors import NotFound
from ondot.model.explain_facts import Explanation
from ondot.model.explain_run import SHOWN, RunFacts, StepFacts, explain_run, explain_step
from ondot.model.ids import ExecutionId, TenantNo
from ondot.model.job import JobSpec
from ondot.model.workflow.graph import Graph, compile_graph
from ondot.model.workflow.spec import SubWorkflow, Wait, WorkflowTarget
from ondot.model.workflow.states import ENDED_RUNS, RunState, StepState
from ondot.model.workflow.verdict import find_unhandled
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.maps import find_maps
from ondot.store.run_reads import (
    RunRow,
    ShownStep,
    find_step_executions,
    get_run,
    get_step,
    list_runs,
    list_step_times,
)
from ondot.store.step_waits import find_waits

Explain = Callable[[Sequence[ExecutionId]], Awaitable[list[Explanation]]]
"""Explains executions, on the same connection."""

_FAILURES = frozenset({StepState.FAILED, StepState.CANCELLED})
_OPEN = frozenset({StepState.WAITING, StepState.RELEASED})


class RunReader:
    """One run, on one connection."""

    def __init__(
        self,
        database: Database,
        connection: Connection,
        tenant_no: TenantNo,
        run: RunRow,
        spec: JobSpec,
        explain: Explain,
    ) -> None:
        assert isinstance(spec.target, WorkflowTarget)
        self._database = database
        self._connection = connection
        self._tenant_no = tenant_no
        self._run = run
        self._spec = spec
        self._target = spec.target
        self._explain = explain
        self.graph: Graph = compile_graph(spec.target)

    async def read(self, *, failed_above: Collection[int] | None = None) -> RunFacts:
        """`failed_above`: only failures of these steps; None: all that nothing handled."""
        run, target = self._run, self._target
        times = await list_step_times(self._connection, self._tenant_no, run.id)
        states = {entry.step_no: entry.state for entry in times}
        unhandled = find_unhandled(self.graph, states)
        failed = [no for no in unhandled if failed_above is None or no in failed_above]
        is_ending = run.state is RunState.ENDING
        active = [
            no
            for no, state in states.items()
            if state is StepState.RELEASED and self.graph.steps[no].is_final is is_ending
        ]
        blocked_at, started_at = run.blocked_at, run.started_at
        return RunFacts(
            id=run.id,
            state=run.state,
            verdict=run.verdict,
            reason=run.reason,
            is_paused=run.is_paused,
            blocked_until=blocked_at + timedelta(seconds=target.blocked_for_s) if blocked_at else None,
            ends_at=started_at + timedelta(seconds=self._spec.timeout_s)
            if started_at and self._spec.timeout_s
            else None,
            total=len(self.graph.steps) - len(self.graph.finals),
            ended=run.succeeded + run.failed + run.skipped,
            blocked=run.blocked,
            active_count=len(active),
            failed_count=len(failed),
            active=await self.read_steps(active[:SHOWN]),
            failed=await self.read_steps(failed[:SHOWN]),
            now=self._database.clock.now(),
        )

    async def read_steps(self, numbers: Sequence[int]) -> list[StepFacts]:
        """A few steps, with what they wait for."""
        rows = [row for no in numbers if (row := await get_step(self._connection, self._tenant_no, self._run.id, no))]
        ids = [row.execution_id for row in rows if row.execution_id is not None]
        executions = await find_step_executions(self._connection, self._tenant_no, ids)
        released = [row for row in rows if row.state is StepState.RELEASED and row.execution_id is not None]
        waits = await find_waits(
            self._connection, self._tenant_no, self._run.id, [id_ for row in released if (id_ := row.execution_id)]
        )
        maps = await find_maps(self._connection, self._tenant_no, self._run.id, [row.step_no for row in rows])
        live = [id_ for row in released if (id_ := row.execution_id) is not None and id_ in executions]
        explained = {one.id: one for one in await self._explain(live)}
        children = await self._find_children(rows)
        facts = []
        for row in rows:
            step = self.graph.steps[row.step_no]
            wait = waits.get(row.execution_id) if row.execution_id is not None else None
            execution = executions.get(row.execution_id) if row.execution_id is not None else None
            mapped = maps.get(row.step_no)
            facts.append(
                StepFacts(
                    self.graph.names[row.step_no],
                    step,
                    row.state,
                    row.reason,
                    items=None if mapped is None or row.state is not StepState.RELEASED else mapped.counts,
                    event=_event_of(step.target),
                    due_at=None if wait is None else wait.due_at,
                    child=children.get(row.step_no),
                    error=None if execution is None else _in_a_line(execution.error),
                    waits=explained.get(row.execution_id) if row.execution_id is not None else None,
                )
            )
        return facts

    async def _find_children(self, rows: Iterable[ShownStep]) -> dict[int, tuple[ExecutionId, str]]:
        if not any(isinstance(self.graph.steps[row.step_no].target, SubWorkflow) for row in rows):
            return {}
        runs = await list_runs(self._connection, self._tenant_no, limit=100, parent_run_id=self._run.id)
        return {
            run.parent_step_no: (run.id, run.state.value)
            for run in reversed(runs)
            if run.parent_step_no is not None and run.state not in ENDED_RUNS
        }

    async def read_open_parents(self, no: int) -> tuple[list[StepFacts], int]:
        """Some of the parents that have not ended, those that run first; and how many there are."""
        times = await list_step_times(self._connection, self._tenant_no, self._run.id)
        states = {entry.step_no: entry.state for entry in times}
        left = [parent for parent in self.graph.parents[no] if states.get(parent) in _OPEN]
        left.sort(key=lambda parent: states[parent] is StepState.WAITING)
        return await self.read_steps(left[:SHOWN]), len(left)


async def find_run(
    database: Database, connection: Connection, tenant_no: TenantNo, run_id: ExecutionId, explain: Explain
) -> RunReader | None:
    """None if there is no such run, or its definition is gone."""
    run = await get_run(connection, tenant_no, run_id)
    if run is None:
        return None
    version = (run.job_id, run.job_version)
    spec = (await database.specs.find(connection, [version])).get(version)
    if spec is None or not isinstance(spec.target, WorkflowTarget):
        return None
    return RunReader(database, connection, tenant_no, run, spec, explain)


async def explain_started_run(reader: RunReader) -> Explanation:
    return explain_run(await reader.read())


async def explain_one_step(reader: RunReader, name: str) -> Explanation:
    graph = reader.graph
    no = graph.numbers.get(name)
    if no is None:
        close = get_close_matches(name[:64], list(graph.names)[:1_000], n=1)
        advice = f" Did you mean `{close[0]}`?" if close else ""
        raise NotFound(f"The run has no step `{name[:64]}`.{advice}")
    [step] = await reader.read_steps([no])
    above = graph.find_ancestors([no])
    run = await reader.read(failed_above=above if step.state is StepState.BLOCKED else {no})
    parents, left = await reader.read_open_parents(no) if step.state is StepState.WAITING else ([], 0)
    return explain_step(replace(run, active=()), step, len(graph.parents[no]), parents, left)


def _event_of(target: object) -> str | None:
    if not isinstance(target, Wait) or target.event is None:
        return None
    event: dict[str, Any] = msgspec.json.decode(target.event)
    return str(event.get("type", ""))


def _in_a_line(error: Any) -> str | None:
    if not isinstance(error, dict):
        return None
    line = str(error.get("message") or error.get("code") or "an error").strip().partition("\n")[0]
    return f"{line[:199]}…" if len(line) > 200 else line
