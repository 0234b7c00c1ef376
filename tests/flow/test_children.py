"""Sub-workflows, pass by pass (W8): children start, end, block and stop with their parents."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from ondot.flow.workflows.advance import advance_run
from ondot.flow.workflows.begin import begin
from ondot.flow.workflows.control import cancel_run
from ondot.flow.workflows.due import due_pass
from ondot.flow.workflows.repair import Wanted, repair_run
from ondot.model.execution import State
from ondot.model.gates import Limits
from ondot.model.ids import DEFAULT_TENANT, ExecutionId, JobId
from ondot.model.outcome import Cancelled, Report, Succeeded
from ondot.model.workflow.spec import MapSpec, StepSpec, SubWorkflow, WorkflowTarget
from ondot.store.audit import By
from tests.flow.workflows import run_state, start, step, step_of, step_states, workflow
from tests.proves import proves
from tests.world import Worker, World, failed, job

CHILD = {"a": step(), "b": step("a", payload={"$from": "a.result"})}


async def keyed(world: World, worker: Worker, key: str, steps: dict[str, StepSpec], **fields: Any) -> JobId:
    """A workflow with a key, whose own first run is done."""
    accepted = await world.submit(job(key, target=workflow(steps), key=key, **fields))
    [assignment] = await worker.lease(1)
    assert await begin(world.database, world.dispatcher, worker.id, assignment.leased) is True
    worker.completer.release(assignment.lease_id)
    await run_tree(world, worker)
    return accepted.id


async def run_tree(
    world: World, worker: Worker, report: Callable[[str, Any], Report | None] = lambda _step, _payload: None
) -> list[str]:
    """Begin runs and run steps until nothing is released; returns the steps in their order."""
    ran = []
    while assignments := await worker.lease(100):
        for assignment in assignments:
            if assignment.spec is not None and isinstance(assignment.spec.target, WorkflowTarget):
                await begin(world.database, world.dispatcher, worker.id, assignment.leased)
                worker.completer.release(assignment.lease_id)
            else:
                name = step_of(assignment)
                ran.append(name)
                await worker.complete(assignment, report(name, msgspec.json.decode(assignment.payload)))
                assert assignment.step is not None
                await advance_run(world.database, world.dispatcher, assignment.step.run_id)
    return ran


async def children_of(world: World, run: ExecutionId) -> list[ExecutionId]:
    rows = await world.fetch("SELECT id FROM ondot.run WHERE parent_run_id = $1 ORDER BY id", run)
    return [row["id"] for row in rows]


def sub(key: str, *parents: str, **fields: Any) -> StepSpec:
    return step(*parents, target=SubWorkflow(key=key), **fields)


@proves("W8")
async def test_a_sub_workflow_runs_as_a_child_and_its_last_steps_are_the_result(world: World) -> None:
    worker = await world.worker()
    await keyed(world, worker, "child", CHILD)
    steps = {"sub": sub("child", payload={"n": 1}), "after": step("sub", payload={"$from": "sub.result.b"})}
    run = await start(world, worker, steps)
    [child] = await children_of(world, run)
    execution = await world.execution(child)
    assert (execution.origin, await run_state(world, child)) == ("child", "PENDING")
    ran = await run_tree(world, worker, lambda name, payload: Succeeded(msgspec.json.encode([name, payload]).decode()))
    assert ran == ["a", "b", "after"]
    assert await run_state(world, child) == await run_state(world, run) == "SUCCEEDED"
    [after] = await world.fetch("SELECT payload FROM ondot.history WHERE job_id = $1 AND step_no = 1", run)
    assert msgspec.json.decode(after["payload"]) == ["b", ["a", {"n": 1}]]
    assert await world.value("SELECT depth FROM ondot.run WHERE id = $1", child) == 1


@proves("W8")
async def test_a_blocked_child_blocks_its_parent_until_it_goes_on(world: World) -> None:
    worker = await world.worker()
    await keyed(world, worker, "child", CHILD)
    run = await start(world, worker, {"sub": sub("child"), "after": step("sub")})
    await run_tree(world, worker, lambda name, _: failed(retryable=False) if name == "b" else None)
    [child] = await children_of(world, run)
    assert await run_state(world, child) == "BLOCKED"
    assert await run_state(world, run) == "BLOCKED"
    assert await step_states(world, run) == {"sub": "RELEASED", "after": "WAITING"}
    assert (await world.execution(run)).state is State.BLOCKED


@proves("W8")
@pytest.mark.parametrize(
    ("key", "change", "sentence"),
    [
        ("nobody", "", "There is no workflow with the key 'nobody', or it is deleted."),
        ("child", "UPDATE ondot.job SET state = 'PAUSED'", "The workflow 'child' is paused, so step 'sub' cannot"),
        ("child", "UPDATE ondot.job SET state = 'DELETED'", "There is no workflow with the key 'child', or it is"),
        ("plain", "", "The job with the key 'plain' is no workflow"),
    ],
)
async def test_a_workflow_that_cannot_be_started_fails_the_step_with_a_sentence(
    world: World, key: str, change: str, sentence: str
) -> None:
    worker = await world.worker()
    await keyed(world, worker, "child", CHILD)
    await world.submit(job("plain", key="plain"))
    await worker.run_one()
    if change:
        await world.fetch(f"{change} WHERE key = 'child'")
    run = await start(world, worker, {"sub": sub(key)})
    assert await run_state(world, run) == "BLOCKED"
    [row] = await world.fetch("SELECT error->>'message' AS m FROM ondot.dead_letter WHERE run_id = $1", run)
    assert row["m"].startswith(sentence)


@proves("W8")
async def test_a_cycle_through_keys_ends_at_its_depth_with_a_sentence(world: World) -> None:
    worker = await world.worker()
    await world.submit(job("loop", target=workflow({"again": sub("loop")}), key="loop"))
    await run_tree(world, worker)
    assert await world.value("SELECT max(depth) FROM ondot.run") == 8
    assert await world.value("SELECT count(*) FROM ondot.run WHERE state = 'BLOCKED'") == 9
    [row] = await world.fetch("SELECT error->>'message' AS m FROM ondot.dead_letter")
    assert "at depth 9" in row["m"]


@proves("W8")
async def test_a_child_passes_the_limits_of_its_own_job(world: World) -> None:
    worker = await world.worker()
    await keyed(world, worker, "child", {"a": step()}, limits=Limits(overlap="queue"))
    run = await start(world, worker, {"one": sub("child"), "two": sub("child")})
    leased = await worker.lease(10)
    assert len(leased) == 1, "the other waits for the slot of the first"
    await begin(world.database, world.dispatcher, worker.id, leased[0].leased)
    await run_tree(world, worker)
    assert await run_state(world, run) == "SUCCEEDED"


@proves("W7", "W8")
async def test_a_mapped_sub_workflow_has_a_child_for_each_item(world: World) -> None:
    worker = await world.worker()
    await keyed(world, worker, "child", CHILD)
    steps = {
        "each": sub("child", map=MapSpec(over=Raw(b'["x","y","z"]'), concurrency=2)),
        "after": step("each", payload={"$from": "each.items"}),
    }
    run = await start(world, worker, steps)
    assert len(await children_of(world, run)) == 2
    await run_tree(world, worker, lambda _, payload: Succeeded(msgspec.json.encode(payload).decode()))
    assert await run_state(world, run) == "SUCCEEDED"
    [after] = await world.fetch("SELECT payload FROM ondot.history WHERE job_id = $1 AND step_no = 1", run)
    assert msgspec.json.decode(after["payload"]) == [{"b": "x"}, {"b": "y"}, {"b": "z"}]


@proves("W7", "W8")
async def test_a_map_whose_children_are_all_blocked_blocks_its_run(world: World) -> None:
    worker = await world.worker()
    await keyed(world, worker, "child", CHILD)
    run = await start(world, worker, {"each": sub("child", map=MapSpec(over=Raw(b"[1,2]")))})
    await run_tree(world, worker, lambda name, _: failed(retryable=False) if name == "b" else None)
    assert await run_state(world, run) == "BLOCKED"


@proves("W8", "W3")
async def test_a_retry_of_a_parent_descends_into_its_blocked_child(world: World) -> None:
    worker = await world.worker()
    await keyed(world, worker, "child", CHILD)
    run = await start(world, worker, {"sub": sub("child"), "after": step("sub")})
    await run_tree(world, worker, lambda name, _: failed(retryable=False) if name == "b" else None)
    assert await run_state(world, run) == "BLOCKED"
    await repair_run(
        world.database,
        world.dispatcher,
        DEFAULT_TENANT,
        run,
        Wanted("retry"),
        by=By("ada"),
        render=lambda _: "done",
    )
    assert await run_tree(world, worker) == ["b", "after"]
    assert await run_state(world, run) == "SUCCEEDED"


@proves("W8")
async def test_a_cancel_descends_into_child_runs(world: World) -> None:
    worker = await world.worker()
    await keyed(world, worker, "child", CHILD)
    run = await start(world, worker, {"begun": sub("child"), "fresh": sub("child")})
    begun, fresh = await children_of(world, run)
    [first, second] = await worker.lease(2)
    assert {first.leased.id, second.leased.id} == {begun, fresh}
    await begin(world.database, world.dispatcher, worker.id, first.leased)
    await cancel_run(world.database, world.dispatcher, DEFAULT_TENANT, run, by=By("ada"))
    # Its worker has leased it and not begun it: it ends without a step.
    assert await begin(world.database, world.dispatcher, worker.id, second.leased) is False
    await worker.complete(second, Cancelled("cancelled"))
    wanted: set[Any] = {run}
    for _ in range(3):
        await due_pass(world.database, world.dispatcher, wanted.update)
        for one in wanted:
            await advance_run(world.database, world.dispatcher, one)
    assert [await run_state(world, one) for one in (run, begun, fresh)] == ["CANCELLED"] * 3
