"""Quotas of tenants at the lease: the ceiling, the rate, reserved slots, and what changes while work runs."""

import asyncio
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondot.flow.check import SelfCheck
from ondot.flow.dispatch import Dispatcher
from ondot.flow.lease import Assignment
from ondot.flow.pools import PoolLimits, set_limits
from ondot.flow.quotas import count_tenants, hold_free
from ondot.model.gates import Limits, Rate
from ondot.model.ids import DEFAULT_TENANT, PoolNo, TenantNo
from ondot.model.tenant import Quotas
from ondot.store.audit import By
from ondot.store.queue import Reserved
from tests.proves import proves
from tests.world import Worker, World, failed, job

CALM = 11.0


async def set_quotas(world: World, tenant_no: TenantNo, **quotas: object) -> None:
    text = msgspec.json.encode(Quotas(**quotas)).decode()  # type: ignore[arg-type]
    await world.fetch("UPDATE ondot.tenant SET quotas = $2::text::jsonb WHERE tenant_no = $1", tenant_no, text)


async def counted(world: World, tenant_no: TenantNo) -> int:
    rows = await world.fetch(
        "SELECT coalesce(sum(running), 0)::integer AS n FROM ondot.tenant_running WHERE tenant_no = $1", tenant_no
    )
    return int(rows[0]["n"])


async def running(world: World, tenant_no: TenantNo) -> int:
    rows = await world.fetch(
        "SELECT count(*) AS n FROM ondot.execution WHERE tenant_no = $1 AND state = 'RUNNING'", tenant_no
    )
    return int(rows[0]["n"])


async def lease_all(worker: Worker, slots: int = 100) -> list[Assignment]:
    """Lease until nothing comes: the first pass may only count what runs."""
    found: list[Assignment] = []
    for _ in range(6):
        found += await worker.lease(slots - len(found))
    return found


@proves("E13", "P11", "T2")
async def test_no_more_of_a_tenant_runs_than_its_quota_on_all_workers_and_pools(world: World) -> None:
    acme = await world.add_tenant("acme")
    await world.submit(job(pool="gpu"))
    await set_quotas(world, acme, concurrent=5)
    await world.submit_all([job()] * 20, acme)
    await world.submit_all([job(pool="gpu")] * 20, acme)
    first, second = await world.worker(), await world.worker(pool_nos=(PoolNo(1), PoolNo(2)))
    assert len(await lease_all(first, 3)) == 3
    leased = await lease_all(second)
    assert Counter(one.leased.tenant_no for one in leased) == {acme: 2, DEFAULT_TENANT: 1}
    assert await running(world, acme) == await counted(world, acme) == 5
    await second.complete_all([one for one in leased if one.leased.tenant_no == acme])
    assert await counted(world, acme) == 3
    assert len(await lease_all(first)) == 2


@proves("E13", "T2")
async def test_other_tenants_are_not_delayed_by_one_without_room(world: World) -> None:
    acme, other = await world.add_tenant("acme"), await world.add_tenant("other")
    await set_quotas(world, acme, concurrent=0)
    await world.submit_all([job()] * 20, acme)
    await world.submit_all([job()] * 20, other)
    worker = await world.worker()
    assert Counter(one.leased.tenant_no for one in await worker.lease(10)) == {other: 10}
    assert Counter(one.leased.tenant_no for one in await worker.lease(100)) == {other: 10}


@proves("E13", "P11")
async def test_a_quota_that_is_set_while_work_runs_counts_what_runs(world: World) -> None:
    acme = await world.add_tenant("acme")
    await world.submit_all([job()] * 20, acme)
    worker = await world.worker()
    before = await worker.lease(6)
    await set_quotas(world, acme, concurrent=8)
    after = await lease_all(worker)
    assert len(after) == 2
    assert await counted(world, acme) == 8
    # An attempt that started before the quota is counted at its end, whatever that is.
    await worker.complete(before[0])
    await worker.complete(before[1], failed())
    await worker.complete_all(before[2:])
    assert await counted(world, acme) == 2
    assert len(await lease_all(worker)) == 6


@proves("E13", "P11")
async def test_a_quota_is_lowered_lifted_and_removed_while_work_runs(world: World) -> None:
    acme = await world.add_tenant("acme")
    await set_quotas(world, acme, concurrent=5)
    await world.submit_all([job()] * 50, acme)
    worker = await world.worker()
    batch = await lease_all(worker)
    assert len(batch) == 5
    await set_quotas(world, acme, concurrent=2)
    assert await lease_all(worker) == []
    await worker.complete_all(batch[:3])
    assert await lease_all(worker) == []
    await set_quotas(world, acme, concurrent=4)
    assert len(await lease_all(worker)) == 2
    await set_quotas(world, acme)
    assert await world.count("tenant_limit") == await world.count("tenant_running") == 0
    assert len(await worker.lease(30)) == 30
    await worker.complete_all(batch[3:])
    await set_quotas(world, acme, concurrent=33)
    assert len(await lease_all(worker)) == 1
    assert await running(world, acme) == await counted(world, acme) == 33


@proves("E6", "E13", "P11")
async def test_the_attempts_of_a_lost_worker_are_counted_until_they_are_given_back(world: World) -> None:
    acme = await world.add_tenant("acme")
    await set_quotas(world, acme, concurrent=4)
    await world.submit_all([job()] * 20, acme)
    lost, worker = await world.worker(), await world.worker()
    assert len(await lease_all(lost)) == 4
    assert await lease_all(worker) == []
    await world.fetch("UPDATE ondot.worker SET state = 'LOST', ended_at = ondot.clock() WHERE id = $1", lost.id)
    await world.recover()
    assert await counted(world, acme) == 0
    assert len(await lease_all(worker)) == 4
    await world.retain()
    assert [row["worker_id"] for row in await world.fetch("SELECT worker_id FROM ondot.tenant_running")] == [worker.id]


@proves("E13", "P11")
async def test_many_workers_at_once_do_not_exceed_a_quota_near_it_or_far_from_it(world: World) -> None:
    acme = await world.add_tenant("acme")
    workers = [await world.worker() for _ in range(6)]
    await world.submit_all([job()] * 400, acme)
    most = 0
    for concurrent in (7, 650, 40):
        await set_quotas(world, acme, concurrent=concurrent)
        for _ in range(4):
            leased = await asyncio.gather(*(worker.lease(25) for worker in workers))
            now = await running(world, acme)
            assert now <= max(concurrent, most)
            assert now == await counted(world, acme) or not now
            most = now
            halves = [(worker, batch[: len(batch) // 2 + 1]) for worker, batch in zip(workers, leased, strict=True)]
            await asyncio.gather(*(worker.complete_all(batch) for worker, batch in halves if batch))
            most = await running(world, acme)
    assert await running(world, acme) == await counted(world, acme) > 0


@proves("E13", "P11", "T2")
async def test_the_starts_of_a_tenant_keep_to_its_rate(world: World) -> None:
    acme = await world.add_tenant("acme")
    await set_quotas(world, acme, starts=Rate(limit=10, per_s=1.0, burst=3))
    await world.submit_all([job()] * 50, acme)
    await world.submit_all([job()] * 5)
    worker = await world.worker()
    assert Counter(one.leased.tenant_no for one in await lease_all(worker)) == {acme: 3, DEFAULT_TENANT: 5}
    for _ in range(5):
        await world.advance(0.1)
        assert len(await lease_all(worker)) == 1
    await world.advance(100)
    assert len(await lease_all(worker)) == 3
    assert await world.count("tenant_running") == 0, "only a ceiling or reserved slots are counted"


@proves("E13", "P11")
async def test_pool_and_tenant_limits_hold_at_once(world: World) -> None:
    acme, other = await world.add_tenant("acme"), await world.add_tenant("other")
    await set_limits(world.database, world.dispatcher, DEFAULT_TENANT, "default", PoolLimits(6, None), by=By("ops"))
    await set_quotas(world, acme, concurrent=2)
    await count_tenants(world.database, [acme])
    await world.submit_all([job()] * 20, acme)
    await world.submit_all([job()] * 20, other)
    worker = await world.worker()
    batch = await lease_all(worker)
    assert Counter(one.leased.tenant_no for one in batch) == {acme: 2, other: 4}
    await worker.complete_all(batch)
    assert await world.count("slot") == 0
    assert await counted(world, acme) == 0


@proves("E13", "P11")
async def test_work_with_a_rate_of_its_job_keeps_to_the_tenants_quota(world: World) -> None:
    acme, other = await world.add_tenant("acme"), await world.add_tenant("other")
    await set_quotas(world, acme, concurrent=2)
    rated = job(limits=Limits(rate=Rate(limit=1000, per_s=1.0, burst=100)))
    await world.submit_all([rated] * 10, acme)
    await world.submit_all([rated] * 10, other)
    worker = await world.worker()
    batch = await lease_all(worker)
    assert Counter(one.leased.tenant_no for one in batch) == {acme: 2, other: 10}
    assert await counted(world, acme) == 2
    await worker.complete_all(batch)
    assert Counter(one.leased.tenant_no for one in await lease_all(worker)) == {acme: 2}


@proves("T2")
@pytest.mark.parametrize("state", ["SUSPENDED", "DELETED"])
async def test_nothing_of_a_stopped_tenant_is_leased_and_running_work_finishes(world: World, state: str) -> None:
    acme = await world.add_tenant("acme")
    rated = job(limits=Limits(rate=Rate(limit=1000, per_s=1.0, burst=100)))
    await world.submit_all([job()] * 5 + [rated] * 5, acme)
    await world.submit_all([job()] * 2)
    worker = await world.worker()
    [running_one, *_] = await worker.lease(1)
    await world.fetch("UPDATE ondot.tenant SET state = $2 WHERE tenant_no = $1", acme, state)
    leased = await lease_all(worker)
    assert {one.leased.tenant_no for one in leased} <= {DEFAULT_TENANT}
    assert len(await worker.complete(running_one)) == 1
    await world.advance(3600)
    assert await lease_all(worker) == []
    if state == "SUSPENDED":
        await world.fetch("UPDATE ondot.tenant SET state = 'ACTIVE' WHERE tenant_no = $1", acme)
        total = len(leased) + 1 + len(await lease_all(worker))
        assert total == 12


@proves("T2")
async def test_a_tenant_that_is_stopped_after_the_survey_gets_no_lease(world: World) -> None:
    acme = await world.add_tenant("acme")
    await world.submit_all([job()] * 300, acme)
    worker = await world.worker()
    assert len(await worker.lease(150)) == 150
    await world.fetch("UPDATE ondot.tenant SET state = 'SUSPENDED' WHERE tenant_no = $1", acme)
    assert await worker.lease(100) == []


@proves("P11", "L6")
async def test_the_self_check_counts_again_what_is_counted_wrong(world: World) -> None:
    acme = await world.add_tenant("acme")
    await set_quotas(world, acme, concurrent=5)
    await world.submit_all([job()] * 20, acme)
    worker = await world.worker()
    await lease_all(worker, 3)
    await world.fetch("UPDATE ondot.tenant_running SET running = 5")
    assert await lease_all(worker) == []
    clock = [0.0]
    check = SelfCheck(world.database, Dispatcher(world.transport), monotonic=lambda: clock[0])
    for clock[0] in (0.0, CALM):
        for _ in range(30):
            await check.one_pass()
    assert await counted(world, acme) == 3
    assert [row["kind"] for row in await world.fetch("SELECT kind FROM ondot.found")] == ["wrong_count"]
    assert len(await lease_all(worker)) == 2


@proves("P11")
async def test_counting_twice_at_once_counts_once(world: World) -> None:
    acme = await world.add_tenant("acme")
    await world.submit_all([job()] * 20, acme)
    worker = await world.worker()
    await worker.lease(6)
    await set_quotas(world, acme, concurrent=5)
    await asyncio.gather(*(count_tenants(world.database, [acme]) for _ in range(4)))
    assert await counted(world, acme) == 6


# Reserved -------------------------------------------------------------------------------------------------------------


@proves("T2")
async def test_others_leave_the_reserved_slots_of_a_tenant_free(world: World) -> None:
    acme = await world.add_tenant("acme", pools=["default"])
    await set_quotas(world, acme, reserved=30)
    await world.submit_all([job()] * 300)
    worker, second = await world.worker(), await world.worker()  # 100 slots each
    flood = await worker.lease(100)
    assert len(flood) == 85
    assert len(await second.lease(100)) == 85
    assert await worker.lease(15) == []
    await world.submit_all([job()] * 40, acme)
    assert Counter(one.leased.tenant_no for one in await lease_all(worker, 15)) == {acme: 15}
    assert Counter(one.leased.tenant_no for one in await lease_all(second, 15)) == {acme: 15}


@proves("T2")
async def test_reserved_slots_that_the_tenant_uses_are_not_kept_free_as_well(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ondot.flow.lanes.RESERVED_EVERY_S", 0.0)
    acme = await world.add_tenant("acme", pools=["default"])
    await set_quotas(world, acme, reserved=30)
    await world.submit_all([job()] * 50, acme)
    worker = await world.worker()
    assert len(await lease_all(worker, 50)) == 50
    await world.submit_all([job()] * 100)
    assert len(await lease_all(worker, 50)) == 50


@proves("T2")
async def test_slots_are_reserved_only_in_pools_that_the_tenant_may_name(world: World) -> None:
    acme = await world.add_tenant("acme", pools=["elsewhere"])
    await set_quotas(world, acme, reserved=30)
    await world.submit_all([job()] * 100)
    assert len(await (await world.worker()).lease(100)) == 100


workers_slots = st.lists(st.integers(1, 40), min_size=1, max_size=12)


@given(workers_slots, st.lists(st.integers(1, 60), min_size=1, max_size=4))
@proves("T2")
def test_the_parts_of_all_workers_add_up_to_what_is_reserved_or_to_all_slots(
    slots: list[int], wanted: list[int]
) -> None:
    total = sum(slots)
    kept = []
    for n, here in enumerate(slots):
        entries = [
            Reserved(PoolNo(1), TenantNo(no), reserved, total, sum(slots[:n]), here, 0, 0)
            for no, reserved in enumerate(wanted)
        ]
        held = hold_free(entries)
        assert sum(held.values()) <= here + len(wanted)
        kept.append(sum(held.values()))
    expected = min(sum(wanted), total)
    assert expected - len(wanted) <= sum(kept) <= expected + len(wanted)
