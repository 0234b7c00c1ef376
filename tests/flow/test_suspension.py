"""A suspended tenant: nothing of it is planned or admitted, and every fire has its end on record after the resume."""

from datetime import timedelta

import pytest

from ondot.flow.gate import admit_pass
from ondot.flow.suspension import unpark_pass
from ondot.flow.tenants import resume_tenant, suspend_tenant
from ondot.model.gates import Limits
from ondot.model.ids import DEFAULT_TENANT, PARTITIONS, JobId
from ondot.model.misfire import Misfire
from ondot.store.parking import park_timers
from tests.proves import proves
from tests.world import DEFAULT_POOL, World, every, job, once

A_MONTH = 30 * 86_400


async def planned(world: World, job_id: JobId) -> int:
    return int(
        await world.value(
            "SELECT (SELECT count(*) FROM ondot.execution WHERE job_id = $1)"
            " + (SELECT count(*) FROM ondot.history WHERE job_id = $1)",
            job_id,
        )
    )


async def parked(world: World) -> int:
    return int(await world.value("SELECT count(*) FROM ondot.timer WHERE partition_no < 0"))


@proves("T2", "P4", "P10")
@pytest.mark.parametrize(("policy", "runs"), [("skip", 0), ("once", 1), ("all", 10)])
async def test_after_a_month_of_suspension_each_fire_is_settled_by_its_misfire_policy(
    world: World, policy: str, runs: int
) -> None:
    acme = await world.add_tenant("acme")
    misfire = Misfire(policy=policy, limit=10, window_s=2 * A_MONTH)  # type: ignore[arg-type]
    theirs = await world.submit(job(schedule=every(3600, world.now, misfire=misfire)), acme)
    ours = await world.submit(job(schedule=every(3600, world.now)))
    await suspend_tenant(world.database, "acme")
    await world.advance(3600)
    await world.plan()
    assert (await planned(world, theirs.id), await planned(world, ours.id), await parked(world)) == (0, 1, 1)
    assert await world.planner.one_pass(range(PARTITIONS)) == 0
    start_at = world.now - timedelta(seconds=3600)
    await world.advance(A_MONTH - 3600)
    await resume_tenant(world.database, "acme")
    assert await unpark_pass(world.database) == 1
    assert await unpark_pass(world.database) == 0
    await world.plan()
    while await world.work_off():
        await world.advance(1)
    assert await parked(world) == 0
    fires = {start_at + timedelta(hours=hour) for hour in range(1, A_MONTH // 3600 + 1)}
    ends: list[object] = []
    for row in await world.fetch("SELECT fire_at FROM ondot.execution WHERE job_id = $1", theirs.id):
        ends.append(row["fire_at"])
    late = [fire_at for fire_at in ends if fire_at in fires]
    for row in await world.fetch("SELECT from_at, to_at, count FROM ondot.skipped WHERE job_id = $1", theirs.id):
        within = [fire_at for fire_at in fires if row["from_at"] <= fire_at <= row["to_at"]]
        assert row["count"] in {None, len(within)}
        ends += within
    # The last fire is due now: it is no misfire, and runs under every policy.
    assert len(late) == runs + 1
    assert sorted(ends) == sorted(set(ends)), "a fire has two ends"  # type: ignore[type-var]
    assert set(ends) >= fires, "a fire has no end"


@proves("T2")
async def test_one_time_jobs_of_a_suspended_tenant_run_after_the_resume(world: World) -> None:
    acme = await world.add_tenant("acme")
    accepted = await world.submit(job(schedule=once(world.after(100))), acme)
    await suspend_tenant(world.database, "acme")
    await world.advance(200)
    await world.plan()
    assert await planned(world, accepted.id) == 0
    await resume_tenant(world.database, "acme")
    await unpark_pass(world.database)
    await world.plan()
    assert await planned(world, accepted.id) == 1


@proves("T2", "L6")
async def test_timers_of_a_suspended_tenant_are_read_once_however_many_there_are(world: World) -> None:
    acme = await world.add_tenant("acme")
    await world.submit_all([job(schedule=every(60, world.now)) for _ in range(300)], acme)
    await suspend_tenant(world.database, "acme")
    await world.advance(60)
    assert await world.planner.one_pass(range(PARTITIONS)) == 300
    assert await world.planner.one_pass(range(PARTITIONS)) == 0
    assert await parked(world) == 300


@proves("T2")
async def test_a_node_that_has_not_heard_of_a_resume_parks_nothing(world: World) -> None:
    acme = await world.add_tenant("acme")
    accepted = await world.submit(job(schedule=every(60, world.now)), acme)
    await suspend_tenant(world.database, "acme")
    await resume_tenant(world.database, "acme")
    async with world.database.connection() as connection:
        assert await park_timers(connection, [acme], [accepted.id]) == 0


@proves("T2", "P11")
async def test_executions_of_a_suspended_tenant_pass_no_gate_and_do_so_after_the_resume(world: World) -> None:
    acme = await world.add_tenant("acme")
    limits = Limits(concurrency=1)
    await world.submit(job("theirs", limits=limits), acme)
    await world.submit(job("ours", limits=limits))
    await suspend_tenant(world.database, "acme")
    await admit_pass(world.database, [DEFAULT_POOL])
    ready = "SELECT tenant_no FROM ondot.ready ORDER BY tenant_no"
    assert [row["tenant_no"] for row in await world.fetch(ready)] == [DEFAULT_TENANT]
    assert await admit_pass(world.database, [DEFAULT_POOL]) == 0
    await resume_tenant(world.database, "acme")
    await unpark_pass(world.database)
    await admit_pass(world.database, [DEFAULT_POOL])
    assert [row["tenant_no"] for row in await world.fetch(ready)] == [DEFAULT_TENANT, acme]
