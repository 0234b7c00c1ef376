"""Runs and steps as the API shows them (W3, W8): rows of the store, joined with what their workflow says."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from ondot.api.shown_json import shown_json
from ondot.document.runs import (
    GenerationOut,
    MapOut,
    ParentOut,
    RepairOut,
    RunChange,
    RunDetail,
    RunOut,
    StepCounts,
    StepDetail,
    StepOut,
)
from ondot.flow.workflows.repair import Repaired
from ondot.model.ids import ExecutionId
from ondot.model.job import JobSpec
from ondot.model.workflow.critical_path import find_critical_path
from ondot.model.workflow.graph import Graph, compile_graph
from ondot.model.workflow.spec import StepSpec, WorkflowTarget
from ondot.model.workflow.states import RunState, StepState
from ondot.model.workflow.verdict import find_unhandled
from ondot.store.executions import ExecutionRow
from ondot.store.maps import MapRow
from ondot.store.run_reads import PastStep, RepairRow, RunRow, ShownStep, StepExecution, StepTimes

Executions = Mapping[ExecutionId, StepExecution]

_NONE = StepCounts(waiting=0, running=0, succeeded=0, failed=0, skipped=0, blocked=0)


def graph_of(spec: JobSpec | None) -> Graph | None:
    """None: the version is gone, or is no workflow."""
    return compile_graph(spec.target) if spec is not None and isinstance(spec.target, WorkflowTarget) else None


def run_out(run: RunRow, execution: ExecutionRow | None, spec: JobSpec | None) -> RunOut:
    """`execution`: the run's own; None: its history was dropped."""
    parent = None
    if run.parent_run_id is not None:
        parent = ParentOut(run_id=run.parent_run_id, step_no=run.parent_step_no, item=run.parent_item_no)
    return RunOut(
        id=run.id,
        job_id=run.job_id,
        job_name=spec.name if spec else None,
        job_version=run.job_version,
        state=run.state,
        verdict=run.verdict,
        reason=run.reason,
        is_paused=run.is_paused,
        origin=execution.origin if execution else None,
        fire_at=execution.fire_at if execution else None,
        started_at=run.started_at,
        blocked_at=run.blocked_at,
        ended_at=run.ended_at,
        rerun_of=run.rerun_of,
        parent=parent,
        counts=StepCounts(
            waiting=run.waiting,
            running=run.active,
            succeeded=run.succeeded,
            failed=run.failed,
            skipped=run.skipped,
            blocked=run.blocked,
        ),
        superseded=run.superseded,
    )


def waiting_run_out(execution: ExecutionRow, spec: JobSpec | None) -> RunOut:
    """A run that no worker has started yet, or that ended before it started."""
    graph = graph_of(spec)
    waiting = len(graph.steps) - len(graph.finals) if graph and execution.ended_at is None else 0
    ended = {"SUCCEEDED": RunState.SUCCEEDED, "FAILED": RunState.FAILED}.get(execution.state, RunState.CANCELLED)
    return RunOut(
        id=execution.id,
        job_id=execution.job_id,
        job_name=spec.name if spec else None,
        job_version=execution.job_version,
        state=RunState.PENDING if execution.ended_at is None else ended,
        verdict=None,
        reason=execution.reason,
        is_paused=False,
        origin=execution.origin,
        fire_at=execution.fire_at,
        started_at=None,
        blocked_at=None,
        ended_at=execution.ended_at,
        rerun_of=None,
        parent=None,
        counts=_NONE.model_copy(update={"waiting": waiting}),
        superseded=0,
    )


def run_detail(
    shown: RunOut,
    graph: Graph | None,
    payload: object,
    times: Sequence[StepTimes],
    steps: Sequence[StepOut],
    next_cursor: str | None,
    repairs: Sequence[RepairRow],
) -> RunDetail:
    failed: list[str] = []
    path: list[str] = []
    if graph is not None and times:
        states = {step.step_no: step.state for step in times}
        failed = [graph.names[no] for no in find_unhandled(graph, states)]
        ran = {
            step.step_no: (step.released_at if runs(step.state) else None, step.ended_at)
            for step in times
            if runs(step.state) and not (step.state is StepState.CANCELLED and step.released_at is None)
        }
        path = [graph.names[no] for no in find_critical_path(graph.parents, ran, graph.finals)]
    return RunDetail(
        **shown.model_dump(),
        payload=payload,
        failed_steps=failed,
        critical_path=path,
        steps=list(steps),
        next_cursor=next_cursor,
        repairs=[repair_out(row) for row in repairs],
    )


def runs(state: StepState) -> bool:
    """Whether a step in this state has started in its latest generation. A step that waits may have run before."""
    return state not in {StepState.WAITING, StepState.SKIPPED, StepState.BLOCKED}


def step_out(
    step: ShownStep,
    graph: Graph,
    started_at: datetime | None,
    executions: Executions,
    states: Mapping[int, StepState],
    items: MapRow | None = None,
) -> StepOut:
    """`started_at`: of the run. `states`: of the parents of steps that wait. `items`: of a mapped step."""
    spec, has_run = graph.steps[step.step_no], runs(step.state)
    execution = executions.get(step.execution_id) if step.execution_id is not None else None
    call = execution if has_run else None
    released_at = step.released_at if has_run else None
    ended_at = step.ended_at
    is_own = step.result_bytes is not None
    call_started_at = call.started_at if call is not None else None
    waits_for = []
    if step.state is StepState.WAITING:
        open_states = {StepState.WAITING, StepState.RELEASED}
        waits_for = [graph.names[no] for no in graph.parents[step.step_no] if states.get(no) in open_states]
    return StepOut(
        name=graph.names[step.step_no],
        state=step.state,
        # The reason of a step that waits is a note about a parent, for the case that it is skipped or blocked.
        reason=None if step.state is StepState.WAITING else step.reason,
        kind=kind_of(spec),
        depends_on=[graph.names[no] for no in graph.parents[step.step_no]],
        when=spec.when,
        is_final=spec.is_final,
        generation=step.generation,
        execution_id=step.execution_id,
        execution_state=call.state if call is not None else None,
        attempt=call.attempt_no if call is not None else None,
        waits_for=waits_for,
        is_stopping=step.state is StepState.WAITING and step.execution_id is not None,
        released_at=released_at,
        started_at=call_started_at,
        ended_at=ended_at,
        blocked_s=_seconds(started_at, released_at),
        queued_s=_seconds(released_at, call_started_at),
        running_s=_seconds(call_started_at, ended_at),
        result=shown_json(step.result if is_own or call is None else call.result),
        result_bytes=step.result_bytes if is_own or call is None else call.result_bytes,
        # A step that was set by hand keeps the execution that failed, but not its error.
        error=call.error if call is not None and step.state is not StepState.SUCCEEDED else None,
        map=None if items is None else map_out(items, step, spec),
    )


def map_out(items: MapRow, step: ShownStep, spec: StepSpec) -> MapOut:
    counts, concurrency = items.counts, items.concurrency
    if concurrency is None and spec.map is not None:
        concurrency = spec.map.concurrency
    has_ended = step.state not in {StepState.WAITING, StepState.RELEASED}
    return MapOut(
        total=counts.total,
        waiting=0 if has_ended else counts.total - counts.active - counts.succeeded - counts.failed,
        running=counts.active,
        succeeded=counts.succeeded,
        failed=counts.failed,
        concurrency=concurrency,
    )


def step_detail(
    shown: StepOut, run_id: ExecutionId, step: ShownStep, past: Sequence[PastStep], executions: Executions
) -> StepDetail:
    generations = []
    for entry in past:
        execution = executions.get(entry.execution_id) if entry.execution_id is not None else None
        generations.append(
            GenerationOut(
                generation=entry.generation,
                state=entry.state if execution is None else execution.state,
                reason=entry.reason,
                execution_id=entry.execution_id,
                released_at=entry.released_at,
                started_at=None if execution is None else execution.started_at,
                ended_at=entry.ended_at,
                replaced_by=entry.repair_id,
            )
        )
    if runs(step.state) and step.generation:
        generations.append(
            GenerationOut(
                generation=step.generation,
                state=step.state,
                reason=step.reason,
                execution_id=step.execution_id,
                released_at=step.released_at,
                started_at=shown.started_at,
                ended_at=step.ended_at,
                replaced_by=None,
            )
        )
    return StepDetail(**shown.model_dump(), run_id=run_id, generations=generations)


def repair_out(row: RepairRow) -> RepairOut:
    return RepairOut(id=row.id, at=row.at, action=row.action, actor=row.actor, reason=row.reason, steps=list(row.steps))


def repaired_out(done: Repaired) -> RunChange:
    return RunChange(
        run_id=done.run_id,
        action="rerun" if done.rerun_of else "retry" if done.action == "from" else done.action,
        dry_run=done.repair_id is None,
        state=done.state,
        runs_again=list(done.again),
        stops=list(done.stopped),
        set_by_hand=done.set_by_hand,
        job_version=done.job_version,
        repair_id=done.repair_id,
        rerun_of=done.rerun_of,
    )


def kind_of(step: StepSpec) -> str:
    if step.target is None:
        return "join"
    tag = type(step.target).__struct_config__.tag
    assert isinstance(tag, str)
    return tag


def _seconds(from_at: datetime | None, to_at: datetime | None) -> float | None:
    return None if from_at is None or to_at is None else max((to_at - from_at).total_seconds(), 0.0)
