"""The self-check and retention know runs of workflows (P5, W1)."""

from ondot.flow.workflows.control import pause_run
from ondot.model.check import Kind
from ondot.model.ids import DEFAULT_TENANT
from ondot.store.audit import By
from tests.flow.checking import Checker, assert_logged
from tests.flow.workflows import advance, run_state, run_steps, start, step
from tests.proves import proves
from tests.world import World, failed

CHAIN = {"a": step(), "b": step("a"), "c": step("b")}


@proves("W1", "P5")
async def test_a_run_whose_arrival_was_lost_gets_the_end_that_it_missed(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, CHAIN)
    [a] = await worker.lease()
    await worker.complete(a)
    await world.fetch("DELETE FROM ondot.arrival")
    await advance(world, run)
    assert await worker.lease() == []
    checker = Checker(world)
    [found] = await checker.look_twice()
    assert (found.kind, found.count) == ("stranded_run", 1)
    assert_logged(checker, Kind.STRANDED_RUN, run)
    assert await run_steps(world, worker, run) == [["b"], ["c"]]
    assert await run_state(world, run) == "SUCCEEDED"


@proves("W1", "P5")
async def test_a_run_whose_execution_is_gone_ends_as_that_did(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, CHAIN)
    await world.fetch("UPDATE ondot.run SET state = 'RUNNING', ended_at = NULL")
    await run_steps(world, worker, run)
    await world.fetch("UPDATE ondot.run SET state = 'RUNNING', ended_at = NULL")
    assert [found.kind for found in await Checker(world).look_twice()] == ["stranded_run"]
    assert await run_state(world, run) == "SUCCEEDED"


@proves("W1", "P5")
async def test_runs_that_move_wait_for_a_person_or_are_paused_are_left_alone(world: World) -> None:
    worker = await world.worker()
    await start(world, worker, {"a": step(), "b": step("a")})
    [running] = await worker.lease()
    blocked = await start(world, worker, CHAIN)
    await worker.run_one(failed(retryable=False))
    paused = await start(world, worker, CHAIN)
    await pause_run(world.database, world.dispatcher, DEFAULT_TENANT, paused, by=By("me"))
    await worker.run_one()
    for run in (blocked, paused):
        await advance(world, run)
    assert [await run_state(world, run) for run in (blocked, paused)] == ["BLOCKED", "RUNNING"]
    assert await Checker(world).suspects() == []
    assert running.leased.attempt_no == 1


@proves("O1", "W1")
async def test_runs_go_with_their_steps_when_they_ended_long_ago(world: World) -> None:
    worker = await world.worker()
    ended = await start(world, worker, CHAIN)
    await run_steps(world, worker, ended)
    live = await start(world, worker, CHAIN)
    await world.advance(86_400 * (world.database.settings.retention_days + 1))
    await world.retain()
    assert [row["id"] for row in await world.fetch("SELECT id FROM ondot.run")] == [live]
    assert await world.value("SELECT count(DISTINCT run_id) FROM ondot.step") == 1
