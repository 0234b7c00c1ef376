"""Runs of workflows, pass by pass: begin, advance, end (W1, W2, W3)."""

from ondot.model.execution import State
from tests.flow.workflows import advance, run_state, run_steps, start, step, step_states
from tests.proves import proves
from tests.world import World, failed

CHAIN = {"a": step(), "b": step("a"), "c": step("b")}
DIAMOND = {"a": step(), "b": step("a"), "c": step("a"), "d": step("b", "c")}


@proves("W1")
async def test_a_chain_runs_from_its_root_to_its_end(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, CHAIN)
    assert (await world.execution(run)).state is State.RUNNING
    assert await run_steps(world, worker, run) == [["a"], ["b"], ["c"]]
    assert await run_state(world, run) == "SUCCEEDED"
    assert (await world.execution(run)).state is State.SUCCEEDED
    assert await world.count("arrival") == await world.count("execution") == await world.count("ready") == 0


@proves("W1")
async def test_the_join_of_a_diamond_runs_once_after_both_parents(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, DIAMOND)
    assert await run_steps(world, worker, run) == [["a"], ["b", "c"], ["d"]]
    assert await step_states(world, run) == dict.fromkeys("abcd", "SUCCEEDED")


@proves("W3")
async def test_a_failed_step_blocks_its_descendants_and_the_run(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, DIAMOND)
    assert await run_steps(world, worker, run, {"b": failed(retryable=False)}) == [["a"], ["b", "c"]]
    assert await step_states(world, run) == {"a": "SUCCEEDED", "b": "FAILED", "c": "SUCCEEDED", "d": "BLOCKED"}
    assert await run_state(world, run) == "BLOCKED"
    assert (await world.execution(run)).state is State.BLOCKED
    assert await advance(world, run) == 1
