"""② Look ahead, many at once: a herd is planned in one pass by several statements, two of them in flight."""

import asyncio

import pytest

from ondot.flow import plan
from ondot.flow.plan import FIRES_A_STATEMENT, Planner
from ondot.model.errors import Unavailable
from ondot.model.ids import PARTITIONS
from ondot.store.timers import lock_timer
from tests.proves import proves
from tests.world import World, every, job

HERD = 2 * FIRES_A_STATEMENT + 100


@pytest.fixture(autouse=True)
def _computing_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the computing of a statement is cut after COMPUTED_S, and the rest is left to the next pass."""
    monkeypatch.setattr(plan, "COMPUTED_S", 60.0)


FIRES = "SELECT count(*), count(DISTINCT job_id), min(fire_at), max(fire_at) FROM ondot.execution"


@proves("N3", "P3")
async def test_a_herd_is_planned_in_one_pass_each_fire_once(world: World) -> None:
    await world.submit_all([job(schedule=every(3600, world.after(-3570))) for _ in range(HERD)])
    await world.advance(15)
    assert await world.planner.one_pass(range(PARTITIONS)) == HERD
    [fires] = await world.fetch(FIRES)
    assert tuple(fires) == (HERD, HERD, world.after(15), world.after(15))
    assert await world.count("ready") == HERD
    assert await world.planner.one_pass(range(PARTITIONS)) == 0


@proves("E11", "P3")
async def test_only_locked_timers_of_a_herd_are_left_to_the_next_pass(world: World) -> None:
    accepted = await world.submit_all([job(schedule=every(3600, world.after(-3570))) for _ in range(HERD)])
    await world.advance(15)
    async with world.second_connection() as change, change.transaction(), asyncio.timeout(30):
        await lock_timer(change, accepted[-1].id)
        assert await world.planner.one_pass(range(PARTITIONS)) == HERD - 1
    assert await world.planner.one_pass(range(PARTITIONS)) == 1
    assert tuple((await world.fetch(FIRES))[0])[:2] == (HERD, HERD)


@proves("L2", "P3")
async def test_a_database_lost_while_a_herd_is_planned_is_one_error_and_loses_no_fire(world: World) -> None:
    await world.submit_all([job(schedule=every(3600, world.after(-3570))) for _ in range(HERD)])
    await world.advance(15)
    async with world.second_connection() as other:
        holding = other.transaction()
        await holding.start()
        await other.execute("LOCK TABLE ondot.ready IN ACCESS EXCLUSIVE MODE")
        planning = asyncio.create_task(world.planner.one_pass(range(PARTITIONS)))
        waiting = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        async with asyncio.timeout(30):
            while len(await world.fetch(waiting)) < 2:
                await asyncio.sleep(0)
        await world.fetch(f"SELECT pg_terminate_backend(pid) FROM ({waiting}) w")
        await holding.rollback()
        with pytest.raises(Unavailable):
            await planning
    await world.plan()
    assert tuple((await world.fetch(FIRES))[0])[:2] == (HERD, HERD)


@proves("N3", "C2")
async def test_a_crowd_beyond_the_horizon_is_planned_sooner_than_a_few(world: World) -> None:
    await world.submit_all([job(schedule=every(3600, world.after(-3550))) for _ in range(20)])
    few = Planner(world.database, world.dispatcher, crowd=21)
    assert await few.one_pass(range(PARTITIONS)) == 0
    many = Planner(world.database, world.dispatcher, crowd=20)
    assert await many.one_pass(range(PARTITIONS)) == 20
    assert tuple((await world.fetch(FIRES))[0])[:2] == (20, 20)
