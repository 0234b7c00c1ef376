"""Two transactions on the same rows: which one waits, which one skips them, and what the later one finds."""

import asyncio

import pytest

from ondot.flow.change.change import delete, pause
from ondot.flow.plan import Planning, plan_timers
from ondot.model.errors import Conflict, KeyReused
from ondot.model.execution import PriorityClass, State
from ondot.model.fairness import Lane, Take
from ondot.model.ids import DEFAULT_TENANT, EPOCH, JobId, LeaseId
from ondot.model.outcome import Failed, NotBegun
from ondot.model.retry import Retry
from ondot.store.connection import Connection
from ondot.store.idempotency import store_answer, take_key
from ondot.store.queue import Leased, lease_executions
from ondot.store.timers import lock_timer
from tests.proves import proves
from tests.world import DEFAULT_POOL, Worker, World, every, failed, job


async def lease_on(
    connection: Connection, worker: Worker, limit: int, of_class: PriorityClass = PriorityClass.NORMAL
) -> list[Leased]:
    lease_id = LeaseId(worker.world.database.clock.new_id())
    takes = [Take(Lane(DEFAULT_POOL, of_class, DEFAULT_TENANT), limit)]
    return await lease_executions(connection, lease_id, worker.id, limit=limit, takes=takes, from_ats=[EPOCH])


async def plan_on(connection: Connection, world: World, job_id: JobId) -> int:
    """Plan one job, in the caller's transaction."""
    timer = await lock_timer(connection, job_id)
    assert timer is not None
    planning = Planning(timer, (await world.job(job_id)).spec, DEFAULT_POOL)
    planned = await plan_timers(connection, world.database.clock, [planning], now=world.now, horizon_at=world.after(20))
    return planned.planned


@proves("E1", "E11")
async def test_two_leases_in_open_transactions_take_different_rows_without_waiting(world: World) -> None:
    await world.submit_all([job() for _ in range(5)])
    one, other = await world.worker(), await world.worker()
    async with (
        world.second_connection() as first,
        world.second_connection() as second,
        first.transaction(),
        second.transaction(),
        asyncio.timeout(60),
    ):
        taken = await lease_on(first, one, 3)
        rest = await lease_on(second, other, 3)
        assert (len(taken), len(rest)) == (3, 2)
        assert not {row.id for row in taken} & {row.id for row in rest}
    assert await world.count("lease") == 2


@proves("E11", "P3")
async def test_plan_skips_a_timer_that_a_change_has_locked(world: World) -> None:
    locked = await world.submit(job(schedule=every(30, world.now)))
    free = await world.submit(job(schedule=every(30, world.now)))
    await world.advance(15)
    async with world.second_connection() as change, change.transaction(), asyncio.timeout(60):
        await lock_timer(change, locked.id)
        assert await world.plan() == 1
        assert (await world.fires(locked.id), await world.fires(free.id)) == ([], [15])
    assert await world.plan() == 1
    assert await world.fires(locked.id) == [15]


@proves("S8", "P10")
async def test_a_change_waits_for_an_uncommitted_plan_and_takes_its_fires_back(world: World) -> None:
    accepted = await world.submit(job(schedule=every(30, world.now)))
    await world.advance(15)
    async with world.second_connection() as node:
        planning = node.transaction()
        await planning.start()
        assert await plan_on(node, world, accepted.id) == 1
        pausing = asyncio.create_task(pause(world.database, DEFAULT_TENANT, accepted.id))
        await world.until_a_lock_is_awaited()
        await planning.commit()
        await pausing
    assert await world.states(accepted.id) == []
    assert await world.count("ready") == 0


@proves("S8", "P10", "P6")
async def test_a_plan_that_read_before_a_change_committed_moves_nothing_after_it(world: World) -> None:
    accepted = await world.submit(job(schedule=every(30, world.now)))
    await world.advance(15)
    async with world.second_connection() as node:
        timer = await lock_timer(node, accepted.id)
        assert timer is not None
        planning = Planning(timer, accepted.spec, DEFAULT_POOL)
        await delete(world.database, DEFAULT_TENANT, accepted.id)
        planned = await plan_timers(node, world.database.clock, [planning], now=world.now, horizon_at=world.after(20))
    assert (planned.moved, planned.planned) == (0, 0)
    assert await world.states() == []


@proves("S8", "P10", "P7")
async def test_taking_back_waits_for_a_lease_and_then_leaves_it_alone(world: World) -> None:
    accepted = await world.submit(job())
    worker = await world.worker()
    async with world.second_connection() as connection:
        leasing = connection.transaction()
        await leasing.start()
        [leased] = await lease_on(connection, worker, 1)
        pausing = asyncio.create_task(pause(world.database, DEFAULT_TENANT, accepted.id))
        await world.until_a_lock_is_awaited()
        await leasing.commit()
        with pytest.raises(Conflict):
            await pausing
    execution = await world.execution(leased.id)
    assert (execution.state, execution.worker_id) == (State.RUNNING, worker.id)


@proves("S8", "P10", "P7")
@pytest.mark.parametrize(
    ("outcome", "of_class"),
    [(NotBegun("the worker was stopping"), PriorityClass.RECOVERED), (failed(), PriorityClass.NORMAL)],
)
async def test_a_one_time_job_is_not_deleted_while_its_next_attempt_is_leased(
    world: World, outcome: NotBegun | Failed, of_class: PriorityClass
) -> None:
    accepted = await world.submit(job(retry=Retry(jitter=False, initial_s=1)))
    worker = await world.worker()
    await worker.run_one(outcome)
    await world.advance(1)
    async with world.second_connection() as connection:
        leasing = connection.transaction()
        await leasing.start()
        [leased] = await lease_on(connection, worker, 1, of_class)
        deleting = asyncio.create_task(delete(world.database, DEFAULT_TENANT, accepted.id))
        await world.until_a_lock_is_awaited()
        await leasing.commit()
        with pytest.raises(Conflict):
            await deleting
    execution = await world.execution(leased.id)
    assert (execution.state, execution.attempt_no) == (State.RUNNING, 2)


@proves("S8", "P10")
async def test_taking_back_takes_executions_that_a_rolled_back_lease_released(world: World) -> None:
    accepted = await world.submit(job())
    worker = await world.worker()
    async with world.second_connection() as connection:
        leasing = connection.transaction()
        await leasing.start()
        await lease_on(connection, worker, 1)
        pausing = asyncio.create_task(pause(world.database, DEFAULT_TENANT, accepted.id))
        await world.until_a_lock_is_awaited()
        await leasing.rollback()
        await pausing
    assert await world.states(accepted.id) == []
    assert await worker.lease() == []


@proves("S8")
async def test_a_lease_skips_executions_that_a_change_is_taking_back(world: World) -> None:
    await world.submit(job())
    worker = await world.worker()
    async with world.second_connection() as change, change.transaction(), asyncio.timeout(60):
        await change.execute("DELETE FROM ondot.ready")
        assert await worker.lease() == []


@proves("P2")
async def test_a_second_request_with_an_idempotency_key_waits_and_gets_the_stored_response(world: World) -> None:
    async with world.second_connection() as first:
        claiming = first.transaction()
        await claiming.start()
        assert await take_key(first, DEFAULT_TENANT, "abc", b"body") is None

        async def twin(body: bytes) -> str | None:
            async with world.database.transaction() as connection:
                return await take_key(connection, DEFAULT_TENANT, "abc", body)

        waiting = asyncio.create_task(twin(b"body"))
        await world.until_a_lock_is_awaited()
        await store_answer(first, DEFAULT_TENANT, "abc", '{"id":  1}')
        await claiming.commit()
        assert await waiting == '{"id":  1}'
    with pytest.raises(KeyReused):
        await twin(b"another body")


@proves("P2")
async def test_a_second_request_takes_over_the_key_of_one_that_fails(world: World) -> None:
    async with world.second_connection() as first:
        claiming = first.transaction()
        await claiming.start()
        assert await take_key(first, DEFAULT_TENANT, "abc", b"body") is None

        async def twin() -> str | None:
            async with world.database.transaction() as connection:
                return await take_key(connection, DEFAULT_TENANT, "abc", b"body")

        waiting = asyncio.create_task(twin())
        await world.until_a_lock_is_awaited()
        await claiming.rollback()
        assert await waiting is None


@proves("P2", "E11")
async def test_many_requests_with_one_key_at_once_make_one_job(world: World) -> None:
    answers = await asyncio.gather(*(world.submit_with_key("abc", job()) for _ in range(6)))
    assert len(set(answers)) == 1
    assert await world.count("job_once") == 1


@proves("S8")
async def test_two_changes_of_a_one_time_job_run_one_after_the_other(world: World) -> None:
    accepted = await world.submit(job())
    specs = [job(name, schedule=every(5, world.now)) for name in ("one", "other")]
    await asyncio.gather(*(world.update(accepted.id, spec) for spec in specs))
    assert (await world.job(accepted.id)).version == 3
    assert await world.fires(accepted.id) == [5, 10, 15, 20]
