"""④a The lanes of many tenants: all are found, each has its turn, and dead rows are skipped."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondot.flow.lanes import SHARED_BATCH, Lanes
from ondot.flow.pools import PoolLimits, set_limits
from ondot.model.errors import InvalidBody
from ondot.model.execution import PriorityClass
from ondot.model.fairness import Lane
from ondot.model.ids import DEFAULT_TENANT, EPOCH, PoolNo, TenantNo
from ondot.model.job import Priority
from ondot.store.audit import By
from ondot.store.connection import Connection
from ondot.store.queries import load_queries
from ondot.store.queue import LAST_TENANT, gaps_between
from tests.proves import proves
from tests.world import DEFAULT_POOL, Worker, World, job


async def submit_as(
    world: World, tenants: Iterable[int], each: int = 1, priorities: Sequence[Priority] = ("normal",)
) -> None:
    """Submit this many jobs of each priority as each of these tenants."""
    specs = [job(priority=priority) for priority in priorities] * each
    tenants = list(tenants)
    await world.fetch(
        "INSERT INTO ondot.tenant (tenant_no, name) SELECT n, 'tenant-' || n FROM unnest($1::integer[]) n"
        " ON CONFLICT DO NOTHING",
        tenants,
    )
    for tenant in tenants:
        await world.submit_all(specs, TenantNo(tenant))


async def lease_by_tenant(worker: Worker, slots: int = 100) -> Counter[int]:
    """Lease once, and count by tenant."""
    return Counter(assignment.leased.tenant_no for assignment in await worker.lease(slots))


@proves("E1", "T1")
async def test_a_worker_of_a_pool_leases_the_jobs_of_every_tenant_that_submits_to_it(world: World) -> None:
    worker = await world.worker()
    theirs = await world.submit(job("theirs"), await world.add_tenant())
    ours = await world.submit(job("ours"))
    assert await world.count("pool") == 1
    assert {assignment.leased.job_id for assignment in await worker.lease()} == {theirs.id, ours.id}


@proves("E1", "T1")
async def test_only_tenants_that_may_name_every_pool_create_one_by_naming_it(world: World) -> None:
    other = await world.add_tenant(pools=["default", "gpu"])
    with pytest.raises(InvalidBody, match="Unknown pool 'gpu'"):
        await world.submit(job(pool="gpu"), other)
    assert await world.count("pool") == 1
    await world.submit(job(pool="gpu"))
    await world.submit(job(pool="gpu"), other)
    assert await world.count("pool") == 2


@proves("E2", "T1")
async def test_the_work_of_every_tenant_is_found_for_any_number(world: World) -> None:
    worker = await world.worker()
    for tenants in ([1, 2, 77, LAST_TENANT - 1], [3, 77, 1000], [1]):
        await submit_as(world, tenants, each=2, priorities=["high", "normal", "low"])
        found: Counter[int] = Counter()
        while brought := await lease_by_tenant(worker):
            found += brought
        assert found == dict.fromkeys(tenants, 6)


@proves("E2", "L6")
async def test_a_tenant_with_a_backlog_does_not_delay_one_that_submits_later(world: World) -> None:
    worker = await world.worker()
    await submit_as(world, [1], each=60)
    await world.advance(100)
    await submit_as(world, [2], each=10)
    assert await lease_by_tenant(worker, 10) == {1: 5, 2: 5}
    assert await lease_by_tenant(worker, 10) == {1: 5, 2: 5}
    assert await lease_by_tenant(worker, 10) == {1: 10}


@proves("E2", "L6")
async def test_a_lease_is_smaller_where_several_tenants_had_work_and_as_before_for_one(world: World) -> None:
    alone, shared = await world.worker(), await world.worker()
    await submit_as(world, [1], each=SHARED_BATCH + 10)
    assert await lease_by_tenant(alone, 1_000) == {1: SHARED_BATCH + 10}
    await submit_as(world, [1], each=SHARED_BATCH + 10)
    await submit_as(world, [2])
    leased = await lease_by_tenant(shared, 1_000)
    assert leased[2] == 1
    assert leased.total() <= SHARED_BATCH


@proves("E2", "L6")
async def test_new_work_of_an_idle_tenant_is_in_the_next_lease_after_a_large_one(world: World) -> None:
    worker = await world.worker()
    await submit_as(world, [1], each=2 * SHARED_BATCH)
    await submit_as(world, [2])
    assert (await lease_by_tenant(worker, 1_000))[2] == 1
    await submit_as(world, [2])
    assert (await lease_by_tenant(worker, 1_000))[2] == 1


@proves("L6", "T2")
async def test_attempts_are_charged_from_their_lease_and_not_from_when_its_answer_was_read(world: World) -> None:
    worker = await world.worker()
    await submit_as(world, [1, 2])
    leased = {assignment.leased.tenant_no: assignment.leased for assignment in await worker.lease()}
    await submit_as(world, [1])
    await world.advance(1)
    await submit_as(world, [2])
    now_s = world.database.clock.now().timestamp()
    early = msgspec.structs.replace(leased[TenantNo(1)], started_s=now_s - 5, attempt_no=2)
    late = msgspec.structs.replace(leased[TenantNo(2)], started_s=now_s, attempt_no=2)
    lanes = Lanes(world.database, worker.id, [DEFAULT_POOL])
    lanes.start(list(leased.values()))
    lanes.start([early])
    lanes.start([late])
    await lanes.survey()
    assert [lane.tenant_no for lane in lanes.next_in_turn()] == [2, 1]


@proves("E2", "E13", "T1")
async def test_tenants_share_the_room_of_a_limited_pool(world: World) -> None:
    await set_limits(world.database, world.dispatcher, DEFAULT_TENANT, "default", PoolLimits(4, None), by=By("ops"))
    worker = await world.worker()
    await submit_as(world, [1, 2], each=5)
    assert await lease_by_tenant(worker, 10) == {1: 2, 2: 2}


@proves("E2", "N6")
async def test_all_tenants_have_their_turn_if_there_are_more_than_one_lease_takes_from(world: World) -> None:
    worker = await world.worker()
    tenants = range(1, 251)
    await submit_as(world, tenants, each=3)
    counted: Counter[int] = Counter()
    for _ in range(4):
        counted += await lease_by_tenant(worker, 200)
    assert sorted(counted) == list(tenants)
    assert counted.total() >= 600


@proves("E2")
async def test_a_class_that_is_due_first_goes_first_within_a_tenant_and_not_among_tenants(world: World) -> None:
    worker = await world.worker()
    await submit_as(world, [1], each=20, priorities=["high", "low"])
    await submit_as(world, [2], each=20, priorities=["low"])
    batch = await worker.lease(20)
    assert Counter((one.leased.tenant_no, one.leased.priority_class) for one in batch) == {
        (1, PriorityClass.HIGH): 10,
        (2, PriorityClass.LOW): 10,
    }


@proves("E1")
async def test_new_work_is_found_at_once_after_everything_was_taken(world: World) -> None:
    worker = await world.worker()
    await submit_as(world, range(1, 41))
    assert (await lease_by_tenant(worker)).total() == 40
    await submit_as(world, [500])
    assert await lease_by_tenant(worker) == {500: 1}


@proves("L6", "N6")
async def test_a_survey_skips_the_dead_rows_that_an_old_snapshot_keeps(world: World) -> None:
    tenants = [1, 2, 3]
    async with world.second_connection() as holder, holder.transaction(isolation="repeatable_read"):
        await holder.fetchval("SELECT count(*) FROM ondot.pool")
        await submit_as(world, tenants, each=5000)
        await world.fetch("DELETE FROM ondot.ready")
        await world.advance(60)
        await submit_as(world, tenants)
        lanes = [Lane(DEFAULT_POOL, PriorityClass.NORMAL, TenantNo(tenant)) for tenant in tenants]
        async with world.database.connection() as connection:
            from_the_start = await _pages_read(connection, lanes, EPOCH)
            by_bounds = await _pages_read(connection, lanes, world.after(-30))
    assert by_bounds < 50 < from_the_start


async def _pages_read(connection: Connection, lanes: Sequence[Lane], from_at: datetime) -> int:
    """How many pages a survey reads that knows these lanes with this bound."""
    gaps = list(zip(*gaps_between([DEFAULT_POOL], lanes), strict=True))
    columns = [[1] * len(lanes), [2] * len(lanes), [lane.tenant_no for lane in lanes], [from_at] * len(lanes), [1]]
    block = load_queries("queue")["survey_lanes"].text
    [plan] = json.loads(
        await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {block}", *columns, *gaps, 100, None)
    )
    return int(plan["Plan"]["Shared Hit Blocks"]) + int(plan["Plan"]["Shared Read Blocks"])


@proves("L5")
async def test_the_bound_of_a_quiet_lane_stays_below_rows_of_long_transactions(world: World) -> None:
    worker = await world.worker()
    await submit_as(world, [4])
    await worker.lease()
    await world.advance(600)
    assert await worker.lease() == []
    [(lane, from_at)] = worker.leaser.bounds
    assert (lane.tenant_no, world.now - from_at) == (4, timedelta(seconds=30))


@given(st.lists(st.tuples(st.integers(1, 2), st.sampled_from(PriorityClass), st.integers(0, 12)), unique=True))
@proves("E2")
def test_known_lanes_and_the_gaps_between_them_cover_every_lane_once(
    known: list[tuple[int, PriorityClass, int]],
) -> None:
    pools = [PoolNo(1), PoolNo(2)]
    lanes = [Lane(PoolNo(pool_no), priority_class, TenantNo(tenant)) for pool_no, priority_class, tenant in known]
    places = Counter((lane.pool_no, int(lane.priority_class), lane.tenant_no) for lane in lanes)
    for pool_no, class_no, after, before in gaps_between(pools, lanes):
        places.update((PoolNo(pool_no), class_no, TenantNo(tenant)) for tenant in range(14) if after < tenant < before)
    everywhere = product(pools, map(int, PriorityClass), range(14))
    assert places == dict.fromkeys(everywhere, 1)
