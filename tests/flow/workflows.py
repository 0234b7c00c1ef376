"""A world with workflows: begins runs, runs their steps, and advances, one at a time."""

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import msgspec

from ondot.flow.lease import Assignment
from ondot.flow.workflows.advance import advance_run
from ondot.flow.workflows.begin import begin
from ondot.flow.workflows.due import due_pass
from ondot.model.ids import ExecutionId, JobId
from ondot.model.outcome import Report
from ondot.model.target import FunctionTarget
from ondot.model.workflow.spec import StepSpec, WorkflowTarget
from tests.world import Worker, World, job


def step(*parents: str, **fields: Any) -> StepSpec:
    """A step that calls a function, unless it has `target`."""
    fields.setdefault("target", FunctionTarget(name="work"))
    for name in ("payload", "condition", "default"):
        if name in fields:
            fields[name] = msgspec.Raw(msgspec.json.encode(fields[name]))
    return StepSpec(depends_on=parents, **fields)


def workflow(steps: Mapping[str, StepSpec], **fields: Any) -> WorkflowTarget:
    return WorkflowTarget(steps=dict(steps), **fields)


async def start(world: World, worker: Worker, steps: Mapping[str, StepSpec], **fields: Any) -> ExecutionId:
    """Submit a workflow that runs once, and begin its run; returns the run."""
    about = {name: fields.pop(name) for name in ("on_failure", "blocked_for_s") if name in fields}
    accepted = await world.submit(job("flow", target=workflow(steps, **about), **fields))
    [assignment] = await worker.lease(1)
    assert assignment.leased.job_id == accepted.id
    assert await begin(world.database, world.dispatcher, worker.id, assignment.leased) is True
    worker.completer.release(assignment.lease_id)
    return assignment.leased.id


async def advance(world: World, run: ExecutionId) -> int:
    return await advance_run(world.database, world.dispatcher, run)


def step_of(assignment: Assignment) -> str:
    assert assignment.step is not None
    return assignment.step.step


async def run_steps(
    world: World,
    worker: Worker,
    run: ExecutionId,
    reports: Mapping[str, Report] | Callable[[str], Report | None] = lambda _: None,
) -> list[list[str]]:
    """Run all that is released, advance, and again until nothing is; returns the steps of each round, sorted."""
    rounds = []
    find = reports if callable(reports) else reports.get
    while assignments := await worker.lease():
        rounds.append(sorted(map(step_of, assignments)))
        for assignment in assignments:
            await worker.complete(assignment, find(step_of(assignment)))
        await advance(world, run)
    return rounds


async def run_state(world: World, run: ExecutionId) -> str:
    return str(await world.value("SELECT state FROM ondot.run WHERE id = $1", run))


async def step_states(world: World, run: ExecutionId) -> dict[str, str]:
    """The states of a run's steps by name."""
    rows = await world.fetch("SELECT step_no, state FROM ondot.step WHERE run_id = $1 ORDER BY step_no", run)
    job_id = JobId(await world.value("SELECT job_id FROM ondot.run WHERE id = $1", run))
    target = (await world.job(job_id)).spec.target
    assert isinstance(target, WorkflowTarget)
    names = list(target.steps)
    return {names[row["step_no"]]: row["state"] for row in rows}


async def keep_house(world: World) -> None:
    """One look of housekeeping at runs."""
    asked = set[UUID]()
    await due_pass(world.database, world.dispatcher, asked.update)
    for run in asked:
        await advance_run(world.database, world.dispatcher, run)
