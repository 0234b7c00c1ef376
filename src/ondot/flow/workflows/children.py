"""Sub-workflows (W8): a step that is a run of another workflow, by its key.

The version is that of the moment when the step starts. The child passes the limits of its own job like a run asked for
by hand, and its end arrives like that of any step. While a child is BLOCKED its step does not move, and its parent is
BLOCKED too once nothing else moves; it goes on when the child does.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from ondot.flow.workflows.fail import Rejection, fail_steps
from ondot.flow.workflows.results import read_payload, read_values
from ondot.flow.workflows.run_pass import RunPass
from ondot.model.execution import CANCEL
from ondot.model.gates import encode_stages
from ondot.model.ids import ExecutionId
from ondot.model.job import JobSpec, JobState
from ondot.model.workflow.maps import is_stuck
from ondot.model.workflow.progress import Arrival
from ondot.model.workflow.spec import MAX_DEPTH, StepSpec, SubWorkflow, WorkflowTarget
from ondot.model.workflow.states import ENDED, StepState
from ondot.model.workflow.values import Unresolved
from ondot.store.children import (
    KeyedJob,
    NewChildren,
    close_children,
    find_children,
    find_workflow,
    report_child,
    request_child_cancels,
)
from ondot.store.children import insert_children as store_children
from ondot.store.endings import end_queued
from ondot.store.jobs import share_jobs
from ondot.store.maps import find_maps

CHILD_BLOCKED = "its child run is BLOCKED"


async def insert_children(
    work: RunPass, no: int, target: SubWorkflow, runs: Mapping[ExecutionId, tuple[int | None, str | None]]
) -> str | None:
    """Make child runs, each with its item_no and payload; returns why they cannot be made, if so."""
    if not runs:
        return None
    found = await _find(work, no, target)
    if isinstance(found, str):
        return found
    job, spec = found
    run = work.run
    pools = await work.database.pools.register(work.connection, {spec.pool})
    children = NewChildren(
        run.id,
        no,
        job.id,
        job.version,
        pools[spec.pool],
        work.class_of(spec.priority_class),
        encode_stages(spec.limits, run.tenant_no, job.id),
        spec.start_deadline_s,
        run.depth + 1,
    )
    rows = [(id_, item_no, payload) for id_, (item_no, payload) in runs.items()]
    for pool_no, ready_at in (await store_children(work.connection, run.tenant_no, children, rows)).items():
        work.effects.wake(pool_no, ready_at)
    return None


async def _find(work: RunPass, no: int, target: SubWorkflow) -> tuple[KeyedJob, JobSpec] | str:
    """The workflow, or a sentence that says why it cannot be started."""
    run, step, key = work.run, work.graph.names[no], target.key
    if run.depth >= MAX_DEPTH:
        return (
            f"Step '{step}' would start the workflow '{key}' at depth {run.depth + 1}, and sub-workflows go"
            f" {MAX_DEPTH} deep. Does '{key}' lead back to itself?"
        )
    job = await find_workflow(work.connection, run.tenant_no, key)
    if job is not None:
        # Then again: a child that follows an acknowledged delete, pause or update obeys it (P10).
        await share_jobs(work.connection, [job.id])
        job = await find_workflow(work.connection, run.tenant_no, key)
    if job is None:
        return f"There is no workflow with the key '{key}', or it is deleted. Create it, then retry step '{step}'."
    if job.state is JobState.PAUSED:
        return f"The workflow '{key}' is paused, so step '{step}' cannot start it. Resume it, then retry the step."
    version = (job.id, job.version)
    spec = (await work.database.specs.find(work.connection, [version])).get(version)
    if spec is None or not isinstance(spec.target, WorkflowTarget):
        return f"The job with the key '{key}' is no workflow, so step '{step}' cannot start it as one."
    return job, spec


async def start_child(work: RunPass, no: int, target: SubWorkflow, payload: str | None) -> None:
    """Start a step that is RELEASED now."""
    id_ = ExecutionId(work.database.clock.new_id())
    work.progress.rows[no].execution_id = id_
    work.released.add(no)
    why = await insert_children(work, no, target, {id_: (None, await payload_of_child(work, no, payload))})
    if why is not None:
        await fail_steps(work, [Rejection(no, why, "not_started")])


async def payload_of_child(work: RunPass, no: int, payload: str | None) -> str | None:
    """What a child gets if its step has no payload: that of its parent's run, unless that is null."""
    if payload is not None:
        return payload
    own = work.graph.steps[no].payload
    value = await read_payload(work) if own is None else msgspec.json.decode(own)
    return None if value is None else msgspec.json.encode(value).decode()


async def fold_children(work: RunPass, arrivals: Sequence[Arrival]) -> None:
    """Children that are BLOCKED, or go on: their steps do not move meanwhile. And rows of those that never started."""
    ended = {
        ExecutionId(arrival.execution_id): "CANCELLED" if arrival.state == "SKIPPED" else arrival.state
        for arrival in arrivals
        if arrival.state in ENDED and arrival.step_no in work.graph.sub_workflows
    }
    if ended:
        await close_children(work.connection, work.run.tenant_no, ended)
    reports = {
        arrival.step_no: arrival for arrival in arrivals if arrival.item_no is None and arrival.state not in ENDED
    }
    if not reports:
        return
    await work.load(set(reports))
    for no, arrival in reports.items():
        row = work.progress.rows[no]
        if row.state is not StepState.RELEASED or row.execution_id != arrival.execution_id:
            work.progress.superseded += 1
            continue
        work.progress.note(no, CHILD_BLOCKED if arrival.state == "BLOCKED" else None)


async def count_stuck(work: RunPass) -> int:
    """Active steps that do not move, because their child runs are BLOCKED."""
    graph, run = work.graph, work.run
    if not graph.sub_workflows:
        return 0
    await work.load(set(graph.sub_workflows))
    rows = (work.progress.rows[no] for no in graph.sub_workflows)
    active = [row for row in rows if row.state is StepState.RELEASED and not graph.steps[row.step_no].is_final]
    mapped = [row.step_no for row in active if graph.steps[row.step_no].map is not None]
    maps = await find_maps(work.connection, run.tenant_no, run.id, mapped) if mapped else {}
    return sum(row.reason == CHILD_BLOCKED for row in active) + sum(
        is_stuck(row.counts, row.concurrency or _concurrency(graph.steps[row.step_no])) for row in maps.values()
    )


async def stop_children(work: RunPass, reason: str) -> None:
    """Cancel the child runs of a run. Their ends arrive as any other."""
    run, connection = work.run, work.connection
    if not work.graph.sub_workflows:
        return
    children = await find_children(connection, run.tenant_no, run.id)
    fresh = {child.id: reason for child in children if not child.has_started}
    ended = set(await end_queued(connection, run.tenant_no, fresh, CANCEL)) if fresh else set()
    if ended:
        work.effects.runs.add(run.id)
    if left := [child.id for child in children if child.id not in ended]:
        await request_child_cancels(connection, run.tenant_no, left, reason)


async def collect_result(work: RunPass) -> str | None:
    """The result of a child run: those of its last steps, by name. None: no run waits for it."""
    graph, limit = work.graph, work.database.settings.inline_bytes
    if work.run.parent_run_id is None:
        return None
    last = [no for no in graph.order if not graph.steps[no].is_final and not _has_children(work, no)]
    try:
        values = await read_values(work, {graph.names[no]: True for no in last})
        result = msgspec.json.encode({name: value().result for name, value in values.items()})
    except Unresolved as trouble:
        return _cut(0, str(trouble))
    if len(result) > limit:
        return _cut(len(result), f"the results of the last steps of a sub-workflow may have {limit:,} bytes")
    return result.decode()


def _has_children(work: RunPass, no: int) -> bool:
    return any(not work.graph.steps[child].is_final for child in work.graph.children[no])


def _cut(size: int, why: str) -> str:
    return msgspec.json.encode({"$cut": {"bytes": size, "why": why, "preview": ""}}).decode()


def _concurrency(step: StepSpec) -> int | None:
    return None if step.map is None else step.map.concurrency


async def report_to_parent(work: RunPass, state: Literal["BLOCKED", "RUNNING"]) -> None:
    """The run is BLOCKED, or goes on: its parent hears of it."""
    run = work.run
    if run.parent_run_id is None or run.parent_step_no is None:
        return
    await report_child(
        work.connection, run.tenant_no, run.parent_run_id, run.id, run.parent_step_no, run.parent_item_no, state
    )
    work.effects.runs.add(run.parent_run_id)
