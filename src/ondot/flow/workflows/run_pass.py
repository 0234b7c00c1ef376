"""One pass over a run: the transaction that has its row locked, what it has read, and what follows from it.

A pass reads the rows that it needs, changes them in memory, and writes each once. Wake-ups and advances of other runs
are sent after the commit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from ondot.flow.dispatch import Dispatcher
from ondot.model.execution import PriorityClass
from ondot.model.gates import Limits, encode_stages
from ondot.model.ids import ExecutionId, PoolNo
from ondot.model.job import JobSpec
from ondot.model.workflow.graph import Graph, compile_graph
from ondot.model.workflow.progress import Progress, StepRow
from ondot.model.workflow.spec import WorkflowTarget
from ondot.model.workflow.states import RunState, StepState
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.passes import NewExecution, write_pass
from ondot.store.runs import RunRow
from ondot.store.steps import find_steps

BATCH: Final = 1_000
"""Executions made by one statement."""


@dataclass(slots=True)
class Effects:
    """What to do after the commit."""

    wakes: dict[PoolNo, datetime] = field(default_factory=dict)
    runs: set[UUID] = field(default_factory=set)
    """Other runs, or jobs, that have arrivals now."""

    def wake(self, pool_no: PoolNo | None, at: datetime) -> None:
        if pool_no is not None:
            self.wakes[pool_no] = min(at, self.wakes.get(pool_no, at))

    def wake_all(self, pools: Mapping[PoolNo, datetime]) -> None:
        for pool_no, at in pools.items():
            self.wake(pool_no, at)

    def send(self, dispatcher: Dispatcher) -> None:
        dispatcher.wake_here_first(self.wakes.items())


@dataclass(slots=True)
class RunPass:
    database: Database
    connection: Connection
    run: RunRow
    spec: JobSpec
    target: WorkflowTarget
    graph: Graph
    progress: Progress
    objects: Mapping[ExecutionId, str] = field(default_factory=dict)
    """Large results that were read before the transaction."""
    effects: Effects = field(default_factory=Effects)
    released: set[int] = field(default_factory=set)
    """Steps that got a new generation in this pass."""
    new: list[NewExecution] = field(default_factory=list)
    """Executions of steps that are to be made: those of all runs that a transaction advances in one statement."""
    payload: object | None = None
    """The payload of the run, decoded, once it was needed."""

    @property
    def may_release(self) -> bool:
        """Steps start while the run runs and is not paused; `finally` steps while it ends."""
        return self.run.state is RunState.ENDING or (self.run.state is RunState.RUNNING and not self.run.is_paused)

    @property
    def ordinary(self) -> list[int]:
        """All steps but `finally` ones."""
        return [no for no, step in enumerate(self.graph.steps) if not step.is_final]

    def class_of(self, own: PriorityClass) -> int:
        """Work of a run that catches up does not come before work that is due now."""
        return int(PriorityClass.CATCH_UP if self.run.priority_class == PriorityClass.CATCH_UP else own)

    def stages_of(self, no: int, limits: Limits | None) -> str | None:
        """The gates of a step's executions: over all runs of the workflow, and separate from those of its runs."""
        return encode_stages(limits, self.run.tenant_no, f"{self.run.job_id}/{self.graph.names[no]}")

    async def load(self, step_nos: set[int]) -> None:
        """Read rows that the pass does not have yet."""
        if missing := step_nos - self.progress.rows.keys():
            found = await find_steps(self.connection, [(self.run.id, no) for no in missing])
            self.progress.load(found.get(self.run.id, ()))
        if lacking := step_nos - self.progress.rows.keys():
            raise LookupError(f"The run {self.run.id} has no steps {sorted(lacking)[:10]}.")

    def count(self) -> None:
        """Add what the pass has moved to the run's counts."""
        run, counts = self.run, self.progress.counts
        run.waiting += counts.pop(StepState.WAITING, 0)
        run.active += counts.pop(StepState.RELEASED, 0)
        run.succeeded += counts.pop(StepState.SUCCEEDED, 0)
        run.failed += counts.pop(StepState.FAILED, 0) + counts.pop(StepState.CANCELLED, 0)
        run.skipped += counts.pop(StepState.SKIPPED, 0)
        run.blocked += counts.pop(StepState.BLOCKED, 0)

    async def make_executions(self) -> None:
        """Make those of steps that were released, before anything looks for them."""
        await _make_executions(self.connection, [self], leave=0)

    async def write(self) -> None:
        """Write what has changed."""
        await write_passes(self.connection, [self])


async def write_passes(connection: Connection, passes: Sequence[RunPass]) -> None:
    """Write what has changed in several runs, in one statement: the step that follows waits for each."""
    new = await _make_executions(connection, passes, leave=BATCH)
    changed: list[tuple[ExecutionId, StepRow, bool]] = []
    for work in passes:
        work.count()
        work.run.superseded += work.progress.superseded
        work.progress.superseded = 0
        changed += [(work.run.id, row, row.step_no in work.released) for row in work.progress.list_changed()]
    woken = await write_pass(connection, executions=new, steps=changed, runs=[work.run for work in passes])
    passes[0].effects.wake_all(woken)


async def _make_executions(
    connection: Connection, passes: Sequence[RunPass], *, leave: int
) -> list[tuple[RunRow, NewExecution]]:
    """Make the new executions, in batches; returns those that it left, at most so many."""
    new = [(work.run, execution) for work in passes for execution in work.new]
    for work in passes:
        work.new.clear()
    while len(new) > leave:
        passes[0].effects.wake_all(await write_pass(connection, executions=new[:BATCH]))
        new = new[BATCH:]
    return new


async def open_pass(
    database: Database, connection: Connection, run: RunRow, objects: Mapping[ExecutionId, str] | None = None
) -> RunPass | None:
    """None: the run's definition cannot be read any more."""
    version = (run.job_id, run.job_version)
    spec = (await database.specs.find(connection, [version])).get(version)
    if spec is None or not isinstance(spec.target, WorkflowTarget):
        return None
    graph = compile_graph(spec.target)
    progress = Progress(graph, is_ending=run.state is RunState.ENDING)
    return RunPass(database, connection, run, spec, spec.target, graph, progress, objects or {})
