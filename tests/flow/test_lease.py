"""④ Lease: only due work, never more than there is room for, and no lane starves."""

import re
from contextlib import AsyncExitStack

import asyncpg
import pytest

from ondot.flow.pools import PoolLimits, set_limits
from ondot.flow.retain import sweep_pass
from ondot.model.errors import Unavailable
from ondot.model.execution import PriorityClass, State
from ondot.model.fairness import PENALTY_S
from ondot.model.gates import Limits, Rate
from ondot.model.ids import DEFAULT_TENANT, PoolNo
from ondot.model.outcome import NotBegun
from ondot.store.audit import By
from ondot.store.queue import oldest_due
from ondot.store.workers import leave_worker
from tests.proves import proves
from tests.world import DEFAULT_POOL, Worker, World, every, job, once


@proves("P9")
async def test_nothing_is_leased_before_its_instant(world: World) -> None:
    await world.submit(job(schedule=once(world.after(5))))
    worker = await world.worker()
    batch = await worker.leaser.one_pass(10)
    assert (batch.assignments, batch.next_at) == ([], world.after(5))
    await world.set_clock(world.after(4.999999))
    assert await worker.lease() == []
    await world.set_clock(world.after(0.000001))
    assert len(await worker.lease()) == 1


@proves("E1")
async def test_a_worker_leases_no_more_than_it_has_free_slots(world: World) -> None:
    await world.submit_all([job() for _ in range(10)])
    worker = await world.worker()
    assert len(await worker.lease(3)) == 3
    assert await worker.lease(0) == []
    assert (await worker.leaser.one_pass(0)).more
    assert len(await worker.lease(100)) == 7
    assert len({assignment.lease_id for assignment in await worker.lease()}) == 0


@proves("E1")
async def test_the_oldest_of_a_lane_goes_first(world: World) -> None:
    accepted = [await world.submit(job(schedule=once(world.after(seconds)))) for seconds in (3, 1, 2)]
    await world.advance(5)
    worker = await world.worker()
    order = [(await worker.lease(1))[0].leased.job_id for _ in range(3)]
    assert order == [accepted[1].id, accepted[2].id, accepted[0].id]


@proves("E2", "L6")
async def test_higher_priority_goes_first_until_the_lower_has_waited_for_its_bound(world: World) -> None:
    await world.submit(job("low", priority="low"))
    await world.submit(job("normal"))
    await world.submit(job("high", priority="high"))
    worker = await world.worker()
    assert await _next_name(worker) == "high"
    assert await _next_name(worker) == "normal"
    await world.advance(58)
    await world.submit(job("high", priority="high"))
    assert await _next_name(worker) == "high"
    await world.advance(2)
    await world.submit(job("high", priority="high"))
    assert await _next_name(worker) == "low"


@proves("E2", "L6")
async def test_a_flood_of_high_work_delays_low_work_no_longer_than_its_bound(world: World) -> None:
    """One slot, and two more `high` jobs each second: the queue only grows."""
    await world.submit(job("low", priority="low"))
    worker = await world.worker()
    began = world.now
    overtakers = []
    for _ in range(200):
        await world.submit_all([job("high", priority="high") for _ in range(2)])
        [assignment] = await worker.lease(1)
        if assignment.leased.priority_class == PriorityClass.LOW:
            break
        overtakers.append((assignment.leased.fire_at - began).total_seconds())
        await world.advance(1)
    bound_s = PENALTY_S[PriorityClass.LOW] - PENALTY_S[PriorityClass.HIGH]
    assert max(overtakers) == bound_s
    assert len(overtakers) == 2 * (bound_s + 1)


@proves("E6")
async def test_suspects_get_no_more_slots_than_their_share_and_delay_no_other_work(world: World) -> None:
    await world.submit_all([job(f"suspect {n}") for n in range(4)])
    await world.value("UPDATE ondot.execution SET class = 5, losses = 2")
    await world.value("UPDATE ondot.ready SET class = 5")
    worker = await world.worker()
    assert len((await worker.leaser.one_pass(10, 2)).assignments) == 2
    worker.leaser.acknowledge()
    await world.submit_all([job(f"other {n}") for n in range(3)])
    await world.advance(3600)
    batch = await worker.leaser.one_pass(10, 0)
    assert sorted(one.spec.name for one in batch.assignments if one.spec) == ["other 0", "other 1", "other 2"]


@proves("E6", "L6")
@pytest.mark.parametrize("free", [-3, -1, 0, 1])
async def test_other_work_is_leased_although_more_suspects_run_than_their_share(world: World, free: int) -> None:
    """In a pool with and without limits: no statement gets a negative limit."""
    await world.submit_all([job("suspect"), job("limited suspect", pool="limited")])
    await world.value("UPDATE ondot.execution SET class = 5, losses = 2")
    await world.value("UPDATE ondot.ready SET class = 5")
    limited = PoolNo(await world.value("SELECT pool_no FROM ondot.pool WHERE name = 'limited'"))
    limits = PoolLimits(5, Rate(limit=100, per_s=1, burst=5))
    await set_limits(world.database, world.dispatcher, DEFAULT_TENANT, "limited", limits, by=By("ops"))
    await world.submit_all([job("innocent"), job("innocent", pool="limited")])
    worker = await world.worker(pool_nos=[DEFAULT_POOL, limited])
    started: list[str] = []
    for _ in range(5):
        suspects = sum(name != "innocent" for name in started)
        batch = await worker.leaser.one_pass(10, free - suspects)
        worker.leaser.acknowledge()
        started += [one.spec.name for one in batch.assignments if one.spec]
    assert (started.count("innocent"), len(started)) == (2, 2 + max(free, 0))


@proves("E6", "E13", "L6")
async def test_suspects_pass_a_rate_only_while_their_worker_has_room_for_them(world: World) -> None:
    limits = Limits(key="k", key_rate=Rate(limit=100, per_s=1, burst=50))
    await world.submit_all([job("suspect", limits=limits) for _ in range(3)])
    await world.value("UPDATE ondot.execution SET class = 5, losses = 2")
    await world.value("UPDATE ondot.gated SET class = 5")
    await world.advance(1)
    await world.submit_all([job("innocent", limits=limits) for _ in range(3)])
    worker = await world.worker()
    batch = await worker.leaser.one_pass(10, 1)
    worker.leaser.acknowledge()
    assert sorted(one.spec.name for one in batch.assignments if one.spec) == ["innocent"] * 3 + ["suspect"]
    assert (await worker.leaser.one_pass(10, 0)).assignments == []
    await world.advance(1)  # a second later they are due for a look again
    assert len((await worker.leaser.one_pass(10, 5)).assignments) == 2


@proves("E6", "L6")
@pytest.mark.parametrize("how", ["not begun", "unheard"])
async def test_a_suspect_that_is_given_back_without_a_call_stays_a_suspect(world: World, how: str) -> None:
    await world.submit(job("suspect"))
    await world.value("UPDATE ondot.execution SET class = 5, losses = 2")
    await world.value("UPDATE ondot.ready SET class = 5")
    worker = await world.worker()
    if how == "not begun":
        await worker.run_one(NotBegun("the worker stops"))
    else:
        assert len((await worker.leaser.one_pass(1)).assignments) == 1
        worker.leaser.acknowledge()
        await world.advance(60)
        await worker.beat()
        await world.recover()
    [row] = await world.executions()
    assert (row.state, row.priority_class) == (State.PENDING, PriorityClass.SUSPECT)


async def _next_name(worker: Worker) -> str:
    [assignment] = await worker.lease(1)
    assert assignment.spec is not None
    return assignment.spec.name


@proves("E1")
async def test_a_worker_leases_from_its_own_pools_only(world: World) -> None:
    await world.submit_all([job("here"), job("there", pool="there")])
    there = PoolNo(await world.value("SELECT pool_no FROM ondot.pool WHERE name = 'there'"))
    worker = await world.worker(pool_nos=[there])
    [assignment] = await worker.lease()
    assert assignment.spec is not None
    assert assignment.spec.name == "there"


@proves("E11", "E6")
async def test_a_lease_raises_the_attempt_and_is_one_row(world: World) -> None:
    await world.submit_all([job(), job()])
    worker = await world.worker()
    assignments = await worker.lease()
    assert [assignment.leased.attempt_no for assignment in assignments] == [1, 1]
    [lease] = await world.fetch("SELECT * FROM ondot.lease")
    assert (lease["worker_id"], lease["id"]) == (worker.id, assignments[0].lease_id)
    assert set(lease["execution_ids"]) == {assignment.leased.id for assignment in assignments}
    assert await world.count("ready") == 0
    assert await world.states() == [State.RUNNING, State.RUNNING]


@proves("P6", "E6")
@pytest.mark.parametrize("state", ["LOST", "GONE", "DRAINING"])
async def test_a_worker_that_is_not_alive_leases_nothing(world: World, state: str) -> None:
    await world.submit(job())
    worker = await world.worker()
    await world.fetch("UPDATE ondot.worker SET state = $1", state)
    assert await worker.lease() == []
    assert await world.states() == [State.PENDING]


@proves("E1")
async def test_a_worker_that_left_is_gone_and_its_beats_are_refused(world: World) -> None:
    worker = await world.worker()
    reply = await worker.beat()
    assert reply is not None
    assert reply.now == world.now
    async with world.database.connection() as connection:
        await leave_worker(connection, worker.id)
    assert await worker.beat() is None


@proves("E1", "P7")
async def test_a_lease_whose_reply_was_lost_is_adopted_in_the_next_pass(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.submit_all([job(payload=b"1"), job(payload=b"2")])
    worker = await world.worker()

    async def cut(*_: object) -> None:
        raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")

    with monkeypatch.context() as patch:
        patch.setattr(type(world.database.specs), "find", cut)
        with pytest.raises(Unavailable):
            await worker.lease()
    assert await world.states() == [State.RUNNING, State.RUNNING]
    assignments = await worker.lease()
    assert sorted(assignment.payload for assignment in assignments) == [b"1", b"2"]
    await worker.complete_all(assignments)
    assert await world.states() == [State.SUCCEEDED, State.SUCCEEDED]
    assert await world.count("lease") == 0


@proves("L5", "P4")
async def test_a_row_that_was_committed_below_every_workers_bound_is_swept_up_again(world: World) -> None:
    worker = await world.worker()
    await world.submit(job())
    await worker.lease()
    await world.advance(-60)
    late = await world.submit(job("late"))
    await world.advance(120)
    await world.submit(job("in time"))
    assert len(await worker.lease(1)) == 1
    await worker.beat()
    assert await worker.lease() == []
    assert await sweep_pass(world.database, world.dispatcher) == 1
    assert await sweep_pass(world.database, world.dispatcher) == 0
    [assignment] = await worker.lease()
    assert assignment.leased.job_id == late.id


@proves("L5", "L6")
async def test_a_late_row_is_swept_although_a_busy_worker_that_never_took_from_its_lane_has_no_bound(
    world: World,
) -> None:
    worker = await world.worker()
    await world.submit(job())
    await worker.run_one()
    busy = await world.worker()
    await world.advance(-60)
    await world.submit(job("late"))
    await world.advance(60)
    await worker.beat()
    await busy.beat()
    assert await worker.lease() == []
    assert await sweep_pass(world.database, world.dispatcher) == 1
    assert len(await worker.lease()) == 1


@proves("P7", "E11")
async def test_a_lease_stays_pending_until_the_worker_acknowledges_it(world: World) -> None:
    worker = await world.worker()
    await world.submit(job())
    batch = await worker.leaser.one_pass(10)
    assert worker.leaser.pending == batch.assignments[0].lease_id
    adopted = await worker.leaser.one_pass(10)
    assert [entry.leased.id for entry in adopted.assignments] == [entry.leased.id for entry in batch.assignments]
    worker.leaser.acknowledge()
    assert worker.leaser.pending is None


@proves("C3", "L4")
async def test_leasing_continues_at_once_after_the_databases_clock_was_set_back(world: World) -> None:
    worker = await world.worker()
    await world.submit(job())
    await worker.lease()
    await world.advance(-3600)
    await world.submit(job("after the step"))
    assert len(await worker.lease()) == 1


@proves("L7")
async def test_the_oldest_due_fire_is_reported_as_unplanned_or_as_waiting_for_a_worker(world: World) -> None:
    async def lag() -> tuple[float, float, float]:
        async with world.database.connection() as connection:
            found = await oldest_due(connection)
        return round(found.waiting_s or 0), round(found.unplanned_s or 0), round(found.lag_s)

    assert await lag() == (0, 0, 0)
    await world.submit(job(schedule=every(60, world.now)))
    assert (await lag())[2] == 0
    await world.advance(70)
    assert await lag() == (0, 10, 10)
    await world.plan()
    await world.advance(5)
    assert await lag() == (5, -45, 5)


@proves("E2")
async def test_catch_up_work_does_not_make_the_installation_late(world: World) -> None:
    await world.submit(job(schedule=every(100, world.now)))
    await world.advance(250)
    await world.plan()
    [assignment] = await (await world.worker()).lease(1)
    assert assignment.leased.priority_class == PriorityClass.NORMAL
    await world.advance(5)
    async with world.database.connection() as connection:
        assert (await oldest_due(connection)).lag_s == 0


PLAIN = ["survey_lanes", "lease_executions", "find_once_specs"]
LIMITED = [
    "survey_lanes",
    "end_if_frozen",
    "lock_scopes",
    "scope_room",
    "lease_executions",
    "take_tokens",
    "find_once_specs",
]


@proves("E13", "N2")
@pytest.mark.parametrize(("limits", "statements"), [(None, PLAIN), (PoolLimits(5, Rate(limit=5, per_s=1)), LIMITED)])
async def test_only_limits_cost_a_lease_more_than_one_statement(
    world: World, limits: PoolLimits | None, statements: list[str]
) -> None:
    worker = await world.worker()
    if limits is not None:
        await set_limits(world.database, world.dispatcher, DEFAULT_TENANT, "default", limits, by=By("ops"))
    await world.submit(job())
    sent: list[str] = []
    async with AsyncExitStack() as stack:
        for _ in range(world.database.settings.database_connections):
            connection = await stack.enter_async_context(world.database.connection())
            connection.add_query_logger(lambda query: sent.append(query.query))
    assert len(await worker.lease()) == 1
    names = [found[1] for text in sent if (found := re.match(r"-- name: (\w+)", text))]
    names.remove("read_followed")  # whether a sink follows starts: at most once a second
    assert names == statements
    assert any(text.startswith("BEGIN") for text in sent) == (limits is not None)
