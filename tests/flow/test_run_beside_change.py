"""A run, replay or retry by hand during a delete or an update of its job: it obeys a change before it (P10)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from ondot.flow.change.change import delete, pause
from ondot.flow.replay import Replay
from ondot.model.errors import Conflict
from ondot.model.execution import State
from ondot.model.ids import DEFAULT_TENANT, ExecutionId, JobId
from ondot.model.job import JobSpec
from ondot.model.retry import Retry
from ondot.store.connection import Connection
from ondot.store.executions import insert_execution
from ondot.store.jobs import share_jobs
from ondot.store.timers import lock_timer
from tests.flow.test_dead_letters import replay_all
from tests.flow.test_retry import retried
from tests.proves import proves
from tests.world import DEFAULT_POOL, World, every, failed, job, once

NO_RETRY = Retry(max_retries=0)
CURRENT = Replay(current_version=True)


@asynccontextmanager
async def held_up(world: World, job_id: JobId) -> AsyncIterator[None]:
    """In this block, a change of the job has locked it and waits for its timer."""
    async with world.second_connection() as planner, planner.transaction():
        await lock_timer(planner, job_id)
        yield


async def insert_run(connection: Connection, world: World, job_id: JobId) -> ExecutionId:
    """A run, up to its commit."""
    id_ = ExecutionId(world.database.clock.new_id())
    await share_jobs(connection, [job_id])
    await insert_execution(
        connection,
        DEFAULT_TENANT,
        id_,
        job_id,
        job_version=1,
        pool_no=DEFAULT_POOL,
        priority_class=2,
        origin="run",
        payload=None,
    )
    return id_


async def updated(world: World, job_id: JobId, spec: JobSpec) -> None:
    await world.update(job_id, spec)


async def failed_letter(world: World) -> tuple[JobId, ExecutionId]:
    """A job every hour, and the letter of a run of it."""
    accepted = await world.submit(job(schedule=every(3600, world.now), retry=NO_RETRY))
    execution_id = await world.run_now(accepted.id)
    await (await world.worker()).run_one(failed())
    return accepted.id, execution_id


@proves("P10", "S8")
async def test_a_run_waits_for_a_delete_under_way_and_is_refused(world: World) -> None:
    accepted = await world.submit(job(schedule=every(3600, world.now)))
    async with held_up(world, accepted.id):
        deleting = asyncio.create_task(delete(world.database, DEFAULT_TENANT, accepted.id))
        await world.until_a_lock_is_awaited(1)
        running = asyncio.create_task(world.run_now(accepted.id))
        await world.until_a_lock_is_awaited(2)
    await deleting
    with pytest.raises(Conflict, match="deleted"):
        await running
    assert await world.states(accepted.id) == []


@proves("P10", "S8")
async def test_a_run_waits_for_an_update_under_way_and_runs_the_new_version(world: World) -> None:
    accepted = await world.submit(job(schedule=every(3600, world.now)))
    async with held_up(world, accepted.id):
        updating = asyncio.create_task(updated(world, accepted.id, job("new", schedule=every(3600, world.now))))
        await world.until_a_lock_is_awaited(1)
        running = asyncio.create_task(world.run_now(accepted.id))
        await world.until_a_lock_is_awaited(2)
    await updating
    assert (await world.execution(await running)).job_version == 2


@proves("P10", "S8")
async def test_a_run_of_a_one_time_job_waits_for_its_first_change(world: World) -> None:
    accepted = await world.submit(job(schedule=once(world.after(3600))))
    async with held_up(world, accepted.id):
        deleting = asyncio.create_task(delete(world.database, DEFAULT_TENANT, accepted.id))
        await world.until_a_lock_is_awaited(1)
        running = asyncio.create_task(world.run_now(accepted.id))
        await world.until_a_lock_is_awaited(2)
    await deleting
    with pytest.raises(Conflict, match="deleted"):
        await running
    assert await world.states(accepted.id) == []


@proves("P10", "S8")
async def test_a_delete_waits_for_a_run_under_way_and_ends_it(world: World) -> None:
    accepted = await world.submit(job(schedule=every(3600, world.now)))
    async with world.second_connection() as connection:
        running = connection.transaction()
        await running.start()
        execution_id = await insert_run(connection, world, accepted.id)
        deleting = asyncio.create_task(delete(world.database, DEFAULT_TENANT, accepted.id))
        await world.until_a_lock_is_awaited()
        await running.commit()
        await deleting
    assert (await world.execution(execution_id)).state is State.CANCELLED


@proves("P10", "L6")
async def test_runs_wait_for_a_change_before_them_and_not_for_each_other(world: World) -> None:
    accepted = await world.submit(job(schedule=every(3600, world.now)))
    async with world.second_connection() as connection:
        first = connection.transaction()
        await first.start()
        await insert_run(connection, world, accepted.id)
        async with asyncio.timeout(60):
            await world.run_now(accepted.id)
        pausing = asyncio.create_task(pause(world.database, DEFAULT_TENANT, accepted.id))
        await world.until_a_lock_is_awaited(1)
        # Share locks of the row itself would overtake it, and a stream of runs would keep the change waiting.
        third = asyncio.create_task(world.run_now(accepted.id))
        await world.until_a_lock_is_awaited(2)
        await first.commit()
        await asyncio.gather(pausing, third)
    assert await world.states(accepted.id) == [State.PENDING] * 3


@proves("P10", "E10")
async def test_a_replay_by_the_current_version_waits_for_an_update_under_way(world: World) -> None:
    job_id, letter = await failed_letter(world)
    async with held_up(world, job_id):
        updating = asyncio.create_task(updated(world, job_id, job("new", schedule=every(3600, world.now))))
        await world.until_a_lock_is_awaited(1)
        replaying = asyncio.create_task(replay_all(world, [letter], CURRENT))
        await world.until_a_lock_is_awaited(2)
    await updating
    [(_, replay_id)] = await replaying
    assert replay_id is not None
    [execution] = [entry for entry in await world.executions(job_id) if str(entry.id) == replay_id]
    assert execution.job_version == 2


@proves("P10", "E10")
@pytest.mark.parametrize("how", [CURRENT, Replay()])
async def test_a_retry_by_hand_waits_for_a_delete_under_way(world: World, how: Replay) -> None:
    job_id, letter = await failed_letter(world)
    async with held_up(world, job_id):
        deleting = asyncio.create_task(delete(world.database, DEFAULT_TENANT, job_id))
        await world.until_a_lock_is_awaited(1)
        retrying = asyncio.create_task(retried(world, letter, how))
        await world.until_a_lock_is_awaited(2)
    await deleting
    if how.current_version:
        with pytest.raises(Conflict, match="deleted"):
            await retrying
    else:
        # A deleted job can be run again by the version that failed, if that is requested.
        assert (await world.execution(await retrying)).job_version == 1


@proves("P10", "E10", "E4")
async def test_a_retry_that_is_hastened_beside_a_delete_does_not_outlive_it(world: World) -> None:
    slow = Retry(max_retries=3, backoff="fixed", initial_s=600.0, jitter=False)
    accepted = await world.submit(job(schedule=every(3600, world.now), retry=slow))
    execution_id = await world.run_now(accepted.id)
    await (await world.worker()).run_one(failed())
    async with held_up(world, accepted.id):
        deleting = asyncio.create_task(delete(world.database, DEFAULT_TENANT, accepted.id))
        await world.until_a_lock_is_awaited(1)
        hastening = asyncio.create_task(retried(world, execution_id))
        await world.until_a_lock_is_awaited(2)
    await deleting
    with pytest.raises(Conflict, match="CANCELLED"):
        await hastening
    assert (await world.execution(execution_id)).state is State.CANCELLED


@proves("P10", "P5")
async def test_nothing_waits_after_a_storm_of_runs_and_replays_beside_deletes(world: World) -> None:
    """With upserts by key at the same time: none waits for ever, and none fails with a deadlock."""
    pairs = [await failed_letter(world) for _ in range(20)]
    keyed = [await world.submit(job(f"k{n}", key=f"k{n}", schedule=every(3600, world.now))) for n in range(20)]

    async def deleted(job_id: JobId) -> None:
        await delete(world.database, DEFAULT_TENANT, job_id)

    async def ran(job_id: JobId) -> None:
        with suppress(Conflict):
            await world.run_now(job_id)

    async def upserted(n: int) -> None:
        # Another version of this job, or a new one if it is deleted by now.
        await world.submit(job(f"k{n} again", key=f"k{n}", schedule=every(1800, world.now)))

    async def beside(n: int) -> None:
        (job_id, letter), key_id = pairs[n], keyed[n].id
        await asyncio.gather(
            *(action(id_) for action in (ran, deleted, ran, ran, ran) for id_ in (job_id, key_id)),
            upserted(n),
            replay_all(world, [letter, pairs[n - 1][1]], CURRENT),
        )

    async with asyncio.timeout(60):
        for n in range(0, len(pairs), 2):
            await asyncio.gather(beside(n), beside(n + 1))
    for job_id in [job_id for job_id, _ in pairs] + [accepted.id for accepted in keyed]:
        assert not set(await world.states(job_id)) & {State.PENDING, State.RETRYING}
    rows = await world.fetch("SELECT name FROM ondot.job WHERE key IS NOT NULL AND state = 'ACTIVE'")
    assert {row["name"] for row in rows} <= {f"k{n} again" for n in range(20)}
