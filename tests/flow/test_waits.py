"""Steps that wait for a time or a person, pass by pass (W8)."""

import msgspec

from ondot.flow.workflows.waits import end_waits_pass
from ondot.model.ids import DEFAULT_TENANT, ExecutionId
from ondot.model.workflow.spec import Approve, Wait
from ondot.store.step_waits import end_wait
from tests.flow.workflows import advance, run_state, run_steps, start, step, step_states
from tests.proves import proves
from tests.world import World


async def end_waits(world: World) -> int:
    runs = await end_waits_pass(world.database)
    for run in runs:
        await advance(world, run)
    return len(runs)


@proves("W8")
async def test_a_step_waits_for_its_time_and_no_longer(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, {"a": step(), "hour": step("a", target=Wait(for_s=3600)), "b": step("hour")})
    assert await run_steps(world, worker, run) == [["a"]]
    await world.advance(3599)
    assert await end_waits(world) == 0
    await world.advance(1)
    assert await end_waits(world) == 1
    assert await run_steps(world, worker, run) == [["b"]]
    assert await run_state(world, run) == "SUCCEEDED"


@proves("W8")
async def test_a_wait_goes_on_while_its_run_is_paused_and_what_follows_it_waits(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, {"hour": step(target=Wait(for_s=3600)), "b": step("hour")})
    await world.fetch("UPDATE ondot.run SET is_paused = true")
    await world.advance(3600)
    assert await end_waits(world) == 1
    assert await step_states(world, run) == {"hour": "SUCCEEDED", "b": "WAITING"}


@proves("W8")
async def test_an_approval_that_does_not_arrive_in_time_fails_its_step_with_a_letter(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, {"ok": step(target=Approve(timeout_s=60)), "b": step("ok")})
    await world.advance(60)
    assert await end_waits(world) == 1
    assert await step_states(world, run) == {"ok": "FAILED", "b": "BLOCKED"}
    [letter] = await world.fetch("SELECT error->>'message' AS m FROM ondot.dead_letter WHERE run_id = $1", run)
    assert letter["m"] == "Step 'ok' failed: it was not approved in time."


@proves("W8")
async def test_the_result_of_a_wait_reaches_the_steps_below(world: World) -> None:
    worker = await world.worker()
    steps = {"ok": step(target=Approve()), "b": step("ok", payload={"who": {"$from": "ok.result.by"}})}
    run = await start(world, worker, steps)
    token = ExecutionId(await world.value("SELECT execution_id FROM ondot.step_wait"))
    async with world.database.connection() as connection:
        await end_wait(connection, DEFAULT_TENANT, run, token, "SUCCEEDED", result='{"by":"ada"}')
    await advance(world, run)
    [assignment] = await worker.lease()
    assert msgspec.json.decode(assignment.payload) == {"who": "ada"}
