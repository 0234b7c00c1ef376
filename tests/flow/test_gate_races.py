"""Gates under change and concurrency: pools without workers, changed limits, clocks set back, full workers."""

import asyncio
from itertools import pairwise

import pytest
from msgspec import structs

from ondot.flow import pools
from ondot.flow.backfill import Backfill, start_backfill
from ondot.flow.cancel import cancel
from ondot.flow.gate import admit_pass, expire_pass
from ondot.flow.pools import PoolLimits, set_limits
from ondot.model.errors import Unavailable
from ondot.model.execution import State
from ondot.model.fairness import Scope
from ondot.model.gates import Limits, Rate
from ondot.model.ids import DEFAULT_TENANT, PoolNo
from ondot.model.outcome import Cancelled
from ondot.store.audit import By
from ondot.store.planned import lock_gates_of_job
from ondot.store.queue import Survey, end_if_frozen, find_room
from tests.flow.test_locks import lease_on
from tests.proves import proves
from tests.world import DEFAULT_POOL, World, every, job

ONE = Limits(key="k", key_concurrency=1)
SCOPES = (Scope("pool", DEFAULT_POOL),)


@proves("E13", "L6")
async def test_work_of_a_pool_without_workers_blocks_no_other_pool_at_a_gate(world: World) -> None:
    worker = await world.worker()
    await world.submit(job("dead", pool="nobody", limits=ONE))
    await world.submit(job(limits=ONE))
    [running] = await worker.lease()
    await world.submit_all([job("dead", pool="nobody", limits=ONE), job("second", limits=ONE)])
    assert await worker.lease() == []
    await worker.complete(running)
    assert len(await worker.lease()) == 1


@proves("E13", "L6")
async def test_work_of_a_pool_without_workers_blocks_no_other_pool_at_a_rate(world: World) -> None:
    rate = Limits(key="k", key_rate=Rate(limit=1, per_s=1))
    await world.submit(job("dead", pool="nobody", limits=rate))
    await world.submit_all([job(limits=rate) for _ in range(3)])
    worker = await world.worker()
    started = 0
    for _ in range(3):
        started += len(await worker.lease())
        await world.advance(1)
    assert started == 3


@proves("E16")
async def test_strict_order_waits_for_the_first_even_if_its_pool_has_no_worker(world: World) -> None:
    await world.submit(job("dead", pool="nobody", limits=Limits(order_key="o")))
    await world.submit(job(limits=Limits(order_key="o")))
    worker = await world.worker()
    assert await worker.lease() == []
    [first, _] = await world.executions()
    await cancel(world.database, world.dispatcher, DEFAULT_TENANT, first.id, by=By("ops"))
    assert len(await worker.lease()) == 1


@proves("E12", "E8")
async def test_a_run_by_hand_is_not_cancelled_for_a_fire(world: World) -> None:
    accepted = await world.submit(job(schedule=every(10, world.now), limits=Limits(overlap="cancel")))
    await world.plan()
    await world.advance(8)
    asked_for = [await world.run_now(accepted.id) for _ in range(3)]
    await world.advance(2)
    worker = await world.worker()
    ran = []
    for _ in range(10):
        for assignment in await worker.lease():
            ran.append(assignment.leased.id)
            await worker.complete(assignment)
        await world.advance(0.1)
    assert ran[:3] == asked_for
    assert len(ran) == 4


@proves("E12")
async def test_no_more_are_cancelled_than_have_to_make_room(world: World) -> None:
    await world.submit(job(schedule=every(5, world.now), limits=Limits(overlap="cancel", concurrency=2)))
    await world.plan()
    worker = await world.worker()
    running = []
    for _ in range(2):
        await world.advance(5)
        running += await worker.lease()
    await world.advance(5)
    assert await worker.lease() == []
    asked = [(await world.execution(one.leased.id)).cancel_at is not None for one in running]
    assert asked == [True, False]
    await worker.complete(running[0], Cancelled("it ended"))
    assert len(await worker.lease()) == 1


@proves("E16", "S8")
async def test_jobs_that_swap_their_order_keys_do_not_wait_for_each_other(world: World) -> None:
    jobs = [
        await world.submit(job(key, schedule=every(5, world.now), limits=Limits(order_key=key))) for key in ("a", "b")
    ]
    await world.plan()
    await world.advance(5)
    await admit_pass(world.database, [DEFAULT_POOL])
    for accepted, key in zip(jobs, ("b", "a"), strict=True):
        spec = structs.replace((await world.job(accepted.id)).spec, limits=Limits(order_key=key))
        await world.update(accepted.id, spec)
    worker = await world.worker()
    assert len(await worker.lease()) == 2


@proves("E13", "P11", "S8")
async def test_a_job_that_becomes_limited_counts_running_and_retried_executions(world: World) -> None:
    accepted = await world.submit(job(schedule=every(5, world.now)))
    await world.plan()
    await world.advance(5)
    worker = await world.worker()
    [running] = await worker.lease()
    for limits in (Limits(concurrency=1), Limits(concurrency=1, overlap="queue")):
        spec = structs.replace((await world.job(accepted.id)).spec, limits=limits)
        await world.update(accepted.id, spec)
        await world.advance(5)
        assert await worker.lease() == []
    await worker.complete(running)
    assert len(await worker.lease()) == 1
    assert await world.count("slot") == 1


@proves("E16", "S7", "S8")
async def test_an_update_sets_no_deadline_in_the_past_and_includes_the_jitter(world: World) -> None:
    schedule = every(3600, world.after(-48 * 3600), jitter_s=300)
    accepted = await world.submit(job(schedule=schedule, start_deadline_s=60))
    past = Backfill(world.after(-10 * 3600), world.after(-1), concurrency=5)
    await start_backfill(world.database, DEFAULT_TENANT, accepted.id, past, render=lambda row: str(row.id))
    await world.work_off()
    await world.advance(3590)
    await world.plan()
    await world.advance(11)
    spec = structs.replace((await world.job(accepted.id)).spec, name="renamed")
    await world.update(accepted.id, spec)
    await world.advance(2)
    assert await expire_pass(world.database) == 0


@proves("E13", "P11")
async def test_a_rate_limits_starts_after_the_pool_was_full_for_long(world: World) -> None:
    limits = PoolLimits(1, None)
    await set_limits(world.database, world.dispatcher, DEFAULT_TENANT, "default", limits, by=By("ops"))
    await world.submit(job())
    worker = await world.worker()
    [blocker] = await worker.lease()
    await world.submit_all([job(limits=Limits(key="k", key_rate=Rate(limit=1, per_s=1))) for _ in range(10)])
    for _ in range(20):
        assert await worker.lease() == []
        await world.advance(0.5)
    await worker.complete(blocker)
    for _ in range(5):
        [one] = await worker.lease()
        await worker.complete(one)
        assert await worker.lease() == []
        await world.advance(1)


@proves("E13", "P11")
async def test_a_rate_limits_starts_behind_a_backlog(world: World) -> None:
    await world.submit_all([job() for _ in range(20)])
    await world.advance(30)
    await world.submit_all([job("rated", limits=Limits(key="k", key_rate=Rate(limit=2, per_s=1))) for _ in range(6)])
    worker = await world.worker()
    starts = []
    for _ in range(40):
        for assignment in await worker.lease(1):
            if assignment.spec and assignment.spec.name == "rated":
                starts.append(world.now)
            await worker.complete(assignment)
        await world.advance(0.1)
    gaps = [(later - sooner).total_seconds() for sooner, later in pairwise(starts)]
    assert len(starts) == 6
    assert min(gaps) >= 0.5


@proves("E13", "P11")
async def test_the_room_of_a_pool_is_counted_after_it_is_locked(world: World) -> None:
    limits = PoolLimits(2, None)
    await set_limits(world.database, world.dispatcher, DEFAULT_TENANT, "default", limits, by=By("ops"))
    await world.submit_all([job() for _ in range(4)])
    one, other = await world.worker(), await world.worker()
    async with world.second_connection() as connection, connection.transaction(), asyncio.timeout(20):
        room = await find_room(connection, SCOPES, 10)
        assert room is not None
        assert room.count == 2
        assert await other.lease() == []  # another transaction has the pool locked
    assert len(await one.lease()) == 2
    async with world.second_connection() as connection, connection.transaction():
        room = await find_room(connection, SCOPES, 10)
        assert room is not None
        assert room.count == 0


@proves("E13", "S8")
async def test_a_change_locks_queue_rows_before_executions_as_a_lease_does(world: World) -> None:
    """In the other order a lease, and a change that adds a gate for waiting work, would wait for each other."""
    accepted = await world.submit(job(schedule=every(5, world.now), limits=Limits(concurrency=5)))
    await world.advance(5)
    await admit_pass(world.database, [DEFAULT_POOL])
    worker = await world.worker()
    spec = structs.replace((await world.job(accepted.id)).spec, limits=Limits(concurrency=4))
    async with world.second_connection() as connection, asyncio.timeout(20):
        transaction = connection.transaction()
        await transaction.start()
        assert len(await lease_on(connection, worker, 3)) == 1
        change = asyncio.ensure_future(world.update(accepted.id, spec))
        await world.until_a_lock_is_awaited()
        await transaction.commit()
        await change
    assert await world.value("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0


@proves("E13")
async def test_admission_waits_for_no_lock(world: World) -> None:
    """Another transaction has the gate or its line locked: the pass goes on, and reports that it was contended."""
    await world.submit(job(limits=ONE))
    [waiting] = await world.executions()
    worker = await world.worker()
    async with world.second_connection() as connection, connection.transaction(), asyncio.timeout(60):
        await lock_gates_of_job(connection, DEFAULT_TENANT, waiting.job_id)
        batch = await worker.leaser.one_pass(10)
        assert (batch.assignments, batch.contended, batch.next_at) == ([], True, None)
    assert len(await worker.lease()) == 1


@proves("E13", "P5")
async def test_a_worker_that_was_lost_takes_no_token(world: World) -> None:
    await world.submit(job(limits=Limits(key="k", key_rate=Rate(limit=1, per_s=60))))
    lost, worker = await world.worker(), await world.worker()
    await world.value("UPDATE ondot.worker SET state = 'LOST' WHERE id = $1", lost.id)
    assert await lost.lease() == []
    assert len(await worker.lease()) == 1
    assert await world.states() == [State.RUNNING]


@proves("E13", "P11")
async def test_leases_on_their_way_count_when_a_pool_gets_its_limit(world: World) -> None:
    await world.submit_all([job() for _ in range(8)])
    one, other = await world.worker(), await world.worker()
    limits = PoolLimits(4, None)
    async with world.second_connection() as connection:
        leasing = connection.transaction()
        await leasing.start()
        assert len(await lease_on(connection, one, 3)) == 3
        setting = asyncio.create_task(
            set_limits(world.database, world.dispatcher, DEFAULT_TENANT, "default", limits, by=By("ops"))
        )
        await world.until_a_lock_is_awaited()
        await leasing.commit()
        await setting
    assert await world.count("slot") == 3
    assert len(await other.lease()) == 1


@proves("E13", "P11")
async def test_setting_a_limit_gives_up_on_a_lease_that_takes_too_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "TRIES", 2)
    await world.submit_all([job() for _ in range(3)])
    one, other = await world.worker(), await world.worker()
    limits = PoolLimits(1, None)
    async with world.second_connection() as connection, connection.transaction():
        assert len(await lease_on(connection, one, 1)) == 1
        with pytest.raises(Unavailable, match="too busy"):
            await set_limits(world.database, world.dispatcher, DEFAULT_TENANT, "default", limits, by=By("ops"))
        # Nothing was set, and no other lease waits.
        assert len(await other.lease()) == 2


@proves("E13", "P11")
@pytest.mark.parametrize("limits", [PoolLimits(2, None), PoolLimits(None, Rate(limit=2, per_s=60, burst=2))])
async def test_a_limit_set_between_survey_and_lease_is_not_exceeded(world: World, limits: PoolLimits) -> None:
    await world.submit_all([job() for _ in range(6)])
    worker = await world.worker()
    lanes = worker.leaser._lanes
    survey_lanes = lanes.survey

    async def survey_and_set_limit(*, again: bool = False) -> Survey | None:
        survey = await survey_lanes(again=again)
        await set_limits(world.database, world.dispatcher, DEFAULT_TENANT, "default", limits, by=By("ops"))
        return survey

    lanes.survey = survey_and_set_limit  # type: ignore[method-assign]
    leased = [len(await worker.lease()) for _ in range(4)]
    assert sum(leased) == 2
    assert await world.count("execution") == 6


@proves("E13", "P11")
async def test_a_limit_set_between_survey_and_lease_holds_for_work_with_a_token_too(world: World) -> None:
    rated = Limits(rate=Rate(limit=6, per_s=60, burst=6))
    await world.submit_all([job(limits=rated) for _ in range(6)])
    worker = await world.worker()
    lanes = worker.leaser._lanes
    survey_lanes = lanes.survey

    async def survey_and_set_limit(*, again: bool = False) -> Survey | None:
        survey = await survey_lanes(again=again)
        limits = PoolLimits(2, None)
        await set_limits(world.database, world.dispatcher, DEFAULT_TENANT, "default", limits, by=By("ops"))
        return survey

    lanes.survey = survey_and_set_limit  # type: ignore[method-assign]
    leased = [len(await worker.lease()) for _ in range(4)]
    assert sum(leased) == 2


@proves("E13", "L6")
async def test_a_full_pool_blocks_no_rates_of_other_pools_and_causes_no_busy_polling(world: World) -> None:
    await world.submit_all([job(pool="full"), job(pool="full")])
    full = PoolNo(await world.value("SELECT pool_no FROM ondot.pool WHERE name = 'full'"))
    limits = PoolLimits(1, None)
    await set_limits(world.database, world.dispatcher, DEFAULT_TENANT, "full", limits, by=By("ops"))
    worker = await world.worker(pool_nos=[full, DEFAULT_POOL])
    assert len(await worker.lease()) == 1
    rated = Limits(key="k", key_rate=Rate(limit=1, per_s=1))
    await world.submit(job(pool="full", limits=Limits(key="other", key_rate=Rate(limit=1, per_s=1))))
    await world.submit(job(limits=rated))
    assert len(await worker.lease()) == 1
    batch = await worker.leaser.one_pass(10)
    assert (batch.assignments, batch.more, batch.contended) == ([], False, False)


@proves("E13", "E6")
async def test_the_server_ends_the_transaction_of_a_worker_that_freezes_with_a_pool_locked(world: World) -> None:
    """A lease from a limited pool, or at a rate, is a transaction of several statements."""
    async with world.second_connection() as frozen, world.second_connection() as other, asyncio.timeout(20):
        await frozen.execute("BEGIN")
        await end_if_frozen(frozen)
        assert await find_room(frozen, SCOPES, 1) is not None
        # Waits until the server ends the other transaction.
        await other.execute("SELECT FROM ondot.pool WHERE pool_no = 1 FOR UPDATE")
        # Its locks are freed a moment before its process ends.
        there = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)"
        while await other.fetchval(there, frozen.get_server_pid()):
            pass
        frozen.terminate()
