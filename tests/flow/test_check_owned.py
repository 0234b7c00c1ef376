"""The self-check leaves rows alone that a process owns, however odd they look; and how it walks."""

import asyncio
from collections.abc import Awaitable, Callable
from uuid import uuid4

import pytest

from ondot.flow.cancel import cancel
from ondot.flow.change.change import pause
from ondot.flow.gate import Tidying, expire_pass
from ondot.flow.retain import sweep_pass
from ondot.model.execution import State
from ondot.model.gates import Limits, Rate
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.retry import Retry
from ondot.store.audit import By
from ondot.store.nodes import beat_node
from tests.flow.checking import FOR_A_WHILE_S, Checker, limit_pool, own_partitions, unmake
from tests.flow.test_recover import lose
from tests.proves import proves
from tests.world import Worker, World, cron, every, failed, job

# What is not ---------------------------------------------------------------------------------------------------------

Plant = Callable[[World, Worker], Awaitable[object]]


async def a_running_one(world: World, worker: Worker) -> None:
    await world.submit(job())
    await worker.lease()


async def a_lost_worker_that_recovery_handles(world: World, worker: Worker) -> None:
    await world.submit(job())
    await worker.lease()
    await lose(world, worker)


async def a_running_one_of_a_limited_pool(world: World, worker: Worker) -> None:
    await limit_pool(world, 1)
    await world.submit_all([job(), job()])
    await worker.lease()


async def a_retry_that_waits_for_its_instant(world: World, worker: Worker) -> None:
    await world.submit(job(retry=Retry(initial_s=3600, jitter=False)))
    await worker.run_one(failed())


async def executions_in_line(world: World, worker: Worker) -> None:
    await world.submit_all([job(limits=Limits(key="k", key_concurrency=1, order_key="o")) for _ in range(3)])
    await world.submit_all([job(limits=Limits(key="r", key_rate=Rate(limit=1, per_s=86_400))) for _ in range(3)])
    await worker.lease()


async def an_execution_through_its_gate(world: World, worker: Worker) -> None:
    await world.submit(job(limits=Limits(key="k", key_concurrency=1)))
    await worker.leaser.one_pass(0)


async def a_paused_job(world: World, worker: Worker) -> None:
    accepted = await world.submit(job(schedule=every(600, world.now)))
    await pause(world.database, DEFAULT_TENANT, accepted.id)


async def a_timer_without_an_owner(world: World, worker: Worker) -> None:
    await world.value("DELETE FROM ondot.node")
    await world.submit(job(schedule=every(60, world.now)))
    await world.advance(600)


async def a_coming_fire(world: World, worker: Worker) -> None:
    await world.submit(job(schedule=cron("0 0 1 1 *")))


@proves("P5", "L6")
@pytest.mark.parametrize(
    "plant",
    [
        a_running_one,
        a_lost_worker_that_recovery_handles,
        a_running_one_of_a_limited_pool,
        a_retry_that_waits_for_its_instant,
        executions_in_line,
        an_execution_through_its_gate,
        a_paused_job,
        a_timer_without_an_owner,
        a_coming_fire,
    ],
)
async def test_a_row_that_a_process_owns_is_never_found(world: World, plant: Plant) -> None:
    await own_partitions(world)
    await plant(world, await world.worker())
    checker = Checker(world)
    for _ in range(2):
        await world.advance(0.001)
        assert await checker.suspects() == []
        assert await checker.look_twice() == []
    assert checker.logged == []


@proves("E6", "P5")
async def test_a_new_lease_without_a_running_execution_is_no_fault(world: World) -> None:
    """Two statements at once may have written its last outcomes: its worker removes the lease with the next."""
    await world.submit(job())
    worker = await world.worker()
    [assignment] = await worker.lease()
    await unmake(world, assignment.leased.id)
    checker = Checker(world)
    await world.advance(119)
    assert await checker.suspects() == []
    await world.advance(2)
    assert [suspect.place for suspect in await checker.suspects()] == ["leases"]


@proves("P4", "C2")
async def test_a_timer_that_is_overdue_by_some_seconds_is_left_to_the_planner(world: World) -> None:
    await own_partitions(world)
    accepted = await world.submit(job(schedule=every(100, world.now)))
    await world.advance(105)
    checker = Checker(world)
    assert await checker.suspects() == []
    await checker.look_twice(15)
    assert await checker.counts() == {}
    timer = await world.timer(accepted.id)
    assert timer is not None
    assert timer["next_fire_at"] < world.now


@proves("P4", "C2")
async def test_a_backlog_of_overdue_timers_that_shrinks_is_no_fault(world: World) -> None:
    await own_partitions(world)
    await world.submit_all([job(schedule=every(3600, world.now)) for _ in range(20)])
    await world.advance(7200)
    checker = Checker(world)
    await checker.round()
    await world.plan()
    assert await checker.look_twice() == []


@proves("P5")
async def test_a_suspect_that_is_seen_once_or_has_changed_since_is_not_found(world: World) -> None:
    await world.submit(job())
    worker = await world.worker()
    gone = await world.fetch("DELETE FROM ondot.ready RETURNING *")
    checker = Checker(world)
    await world.advance(0.001)
    await checker.round()
    await world.advance(9)
    await checker.round()
    assert await checker.counts() == {}  # seen twice, but too soon
    await world.value("INSERT INTO ondot.ready VALUES ($1, $2, $3, $4, $5)", *gone[0])
    await world.advance(FOR_A_WHILE_S)
    await checker.round()
    await worker.run_one(failed())
    await world.value("DELETE FROM ondot.ready")  # suspected from here on, as another attempt
    await checker.round()
    assert await checker.counts() == {}


@proves("P5", "P6")
async def test_locked_rows_are_skipped_without_waiting(world: World) -> None:
    """An execution, a row of the queue and a timer that are being changed."""
    await own_partitions(world)
    await world.submit(job(schedule=every(60, world.now)))
    await world.advance(120)
    await world.submit_all([job(), job()])
    worker = await world.worker()
    await worker.lease(1)
    await world.value("DELETE FROM ondot.lease")
    await lose(world, worker)
    await world.value("INSERT INTO ondot.ready VALUES (1, 2, 1, ondot.clock(), $1)", uuid4())
    checker = Checker(world)
    await world.advance(0.001)
    await checker.round()
    await world.advance(FOR_A_WHILE_S)
    async with world.second_connection() as other, other.transaction(), asyncio.timeout(60):
        await other.fetch("SELECT FROM ondot.execution FOR UPDATE")
        await other.fetch("SELECT FROM ondot.ready FOR UPDATE")
        await other.fetch("SELECT FROM ondot.timer FOR UPDATE")
        await checker.round()
        assert await checker.counts() == {}
    await checker.look_twice()
    assert set(await checker.counts()) == {"running_of_gone_worker", "queued_without_execution", "overdue_timer"}


@proves("P5", "E11")
async def test_an_execution_that_is_completed_in_an_open_transaction_stays_with_its_worker(world: World) -> None:
    await world.submit(job())
    worker = await world.worker()
    [running] = await worker.lease()
    await world.value("DELETE FROM ondot.lease")
    await lose(world, worker)
    checker = Checker(world)
    await world.advance(0.001)
    await checker.round()
    await world.advance(FOR_A_WHILE_S)
    async with world.second_connection() as other, asyncio.timeout(60):
        completing = other.transaction()
        await completing.start()
        await other.execute("DELETE FROM ondot.execution WHERE id = $1", running.leased.id)
        await other.execute(
            "INSERT INTO ondot.history (id, job_id, fire_at, ready_at, ended_at, tenant_no, job_version, pool_no,"
            " attempt_no, failures, losses, class, state, origin)"
            " VALUES ($1, $2, now(), now(), now(), 1, 1, 1, 1, 0, 0, 2, 'SUCCEEDED', 'fire')",
            running.leased.id,
            running.leased.job_id,
        )
        await checker.round()
        await completing.commit()
    assert await checker.look_twice() == []
    assert await world.states() == [State.SUCCEEDED]


# The walk ------------------------------------------------------------------------------------------------------------


@proves("N6", "L6")
async def test_a_walk_in_small_steps_reads_every_row_once_and_ends(world: World) -> None:
    await world.submit_all([job(priority=priority) for priority in ("high", "normal", "low") for _ in range(9)])
    await world.submit_all([job(limits=Limits(key=str(n), key_concurrency=1)) for n in range(7)])
    worker = await world.worker()
    await worker.lease(5)
    lost = {row["execution_id"] for row in await world.fetch("DELETE FROM ondot.ready RETURNING execution_id")}
    lost |= {row["execution_id"] for row in await world.fetch("DELETE FROM ondot.waiting RETURNING execution_id")}
    checker = Checker(world, rows_a_look=2)
    await checker.look_twice()
    assert await checker.counts() == {"unqueued": len(lost)}
    await world.value(
        "INSERT INTO ondot.ready SELECT 1, n % 4, 1, ondot.clock() - n * interval '1 s', gen_random_uuid()"
        " FROM generate_series(0, 18) n"
    )
    await checker.look_twice()
    assert (await checker.counts())["queued_without_execution"] == 19
    assert await world.count("ready") + await world.count("waiting") == len(lost)


@proves("N6", "L6")
async def test_a_walk_does_not_follow_a_lane_that_grows(world: World) -> None:
    await world.submit_all([job(priority="high") for _ in range(4)])
    later = "INSERT INTO ondot.ready SELECT 1, 1, 1, ondot.clock() + interval '1 h', gen_random_uuid()"
    await world.value(f"{later} FROM generate_series(1, 20)")
    await world.advance(0.001)
    checker = Checker(world, rows_a_look=2)
    steps = 0
    for _ in range(2):
        while await checker.check.one_pass():
            await world.value(f"{later} FROM generate_series(1, 3)")
            steps += 1
            assert steps < 20


# A day ---------------------------------------------------------------------------------------------------------------


KEYED = Limits(key="k", key_concurrency=2)
COUNTED = "SELECT state, count(*) AS count FROM ondot.history GROUP BY state"


@proves("P4", "P5", "L6")
async def test_after_a_day_of_every_kind_of_work_the_self_check_finds_nothing(world: World) -> None:
    node_id = await own_partitions(world)
    await world.submit_all(
        [
            *(job(schedule=every(900 + 60 * n, world.now), retry=Retry(max_retries=1)) for n in range(6)),
            job(schedule=every(600, world.now), limits=Limits(overlap="skip")),
            job(schedule=every(600, world.now), limits=Limits(overlap="queue")),
            job(schedule=every(600, world.now), limits=Limits(overlap="cancel")),
            job(schedule=every(450, world.now), limits=Limits(key="k", key_concurrency=2, order_key="o")),
            job(schedule=every(300, world.now), limits=Limits(key="r", key_rate=Rate(limit=1, per_s=500))),
            job(schedule=every(1200, world.now), start_deadline_s=30),
        ]
    )
    checker = Checker(world)
    worker = await world.worker()
    for turn in range(32):
        await world.advance(2700)
        async with world.database.connection() as connection:
            await beat_node(connection, node_id, host="here", pid=1, release="0", lease_s=1e6)
        await world.submit_all([job(limits=limits) for limits in (None, KEYED) for _ in range(4)])
        await world.plan()
        await world.work_off()
        await expire_pass(world.database)
        await sweep_pass(world.database, world.dispatcher)
        held = [assignment for _ in range(4) for assignment in await worker.lease(8)]
        await checker.round()
        for number, assignment in enumerate(held):
            if number % 7 == 3:
                await cancel(world.database, world.dispatcher, DEFAULT_TENANT, assignment.leased.id, by=By("somebody"))
            if number % 9 != 8 or turn % 8 != 7:
                await worker.complete(assignment, failed() if number % 5 == 4 else None)
        await worker.beat()
        if turn % 8 == 7:
            await limit_pool(world, 10 + turn)
            await lose(world, worker)
            await checker.round()
            while await world.recover():
                pass
            worker = await world.worker()
        waiting = await world.fetch("SELECT id FROM ondot.execution WHERE state = 'PENDING' ORDER BY id LIMIT 1")
        if waiting and turn % 4 == 0:
            await cancel(world.database, world.dispatcher, DEFAULT_TENANT, waiting[0]["id"], by=By("somebody"))
        await Tidying(world.database).one_pass()
    assert await checker.look_twice() == []
    assert checker.logged == []
    ended = {row["state"]: row["count"] for row in await world.fetch(COUNTED)}
    assert set(ended) == {"SUCCEEDED", "FAILED", "SKIPPED", "CANCELLED"}
    assert sum(ended.values()) > 500
