"""Which tenants a worker serves: by `--tenant`, by its pools, or all; and what `explain` says where none does."""

from collections import Counter

import pytest

from ondot.flow.explain import explain_execution
from ondot.flow.lease import Leaser
from ondot.flow.served_tenants import ServedTenants, TenantNos
from ondot.model.errors import Misconfigured
from ondot.model.gates import Limits, Rate
from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.store.workers import set_worker_tenants
from tests.proves import proves
from tests.world import Worker, World, job


async def serving(world: World, tenant_nos: TenantNos) -> Worker:
    """A worker that serves these tenants."""
    worker = await world.worker()
    worker.leaser = Leaser(world.database, worker.id, [worker.leaser._pool_nos[0]], lambda: tenant_nos)
    if tenant_nos is not None:
        async with world.database.connection() as connection:
            await set_worker_tenants(connection, worker.id, tenant_nos)
    return worker


async def lease_all(worker: Worker) -> Counter[int]:
    found: Counter[int] = Counter()
    while batch := await worker.lease():
        found.update(assignment.leased.tenant_no for assignment in batch)
    return found


@proves("T4", "P12")
async def test_a_worker_leases_nothing_of_tenants_that_it_does_not_serve(world: World) -> None:
    acme, other = await world.add_tenant("acme"), await world.add_tenant("other")
    for tenant_no in (DEFAULT_TENANT, acme, other):
        await world.submit_all([job(priority=priority) for priority in ("high", "normal", "low")] * 2, tenant_no)
    assert await lease_all(await serving(world, frozenset({acme}))) == {acme: 6}
    assert await lease_all(await serving(world, frozenset({acme, other}))) == {other: 6}
    assert await lease_all(await serving(world, frozenset())) == {}
    assert await lease_all(await serving(world, None)) == {DEFAULT_TENANT: 6}


@proves("T4", "E13")
async def test_executions_that_wait_for_a_rate_are_left_to_a_worker_that_serves_their_tenant(world: World) -> None:
    acme = await world.add_tenant("acme")
    for tenant_no in (DEFAULT_TENANT, acme):
        await world.submit(job(limits=Limits(rate=Rate(limit=10, per_s=1.0, burst=10))), tenant_no)
    worker = await serving(world, frozenset({acme}))
    assert await lease_all(worker) == {acme: 1}
    batch = await worker.leaser.one_pass(10)
    assert (batch.assignments, batch.contended, batch.more) == ([], False, False), "it must not ask again at once"
    assert await lease_all(await serving(world, None)) == {DEFAULT_TENANT: 1}


@proves("T4")
async def test_a_tenant_that_is_served_no_more_is_left_alone_from_then_on(world: World) -> None:
    acme = await world.add_tenant("acme")
    served: set[TenantNo] = {DEFAULT_TENANT, acme}
    worker = await world.worker()
    worker.leaser = Leaser(world.database, worker.id, [worker.leaser._pool_nos[0]], lambda: frozenset(served))
    for tenant_no in (DEFAULT_TENANT, acme):
        await world.submit_all([job()] * 2, tenant_no)
    assert await lease_all(worker) == {DEFAULT_TENANT: 2, acme: 2}
    served.remove(acme)
    await world.submit_all([job()] * 2, acme)
    assert await lease_all(worker) == {}
    assert {lane.tenant_no for lane, _ in worker.leaser.bounds} == {DEFAULT_TENANT}
    served.add(acme)
    assert await lease_all(worker) == {acme: 2}


@proves("T4")
async def test_a_worker_with_an_app_serves_the_first_tenant_unless_others_are_named(world: World) -> None:
    acme = await world.add_tenant("acme", pools=["default", "gpu"])
    both = await world.add_tenant("both", pools=["gpu", "big"])
    await world.add_tenant("all", pools=["*"])

    async def numbers(*names: str, pools: tuple[str, ...] = ("default",), has_functions: bool = True) -> TenantNos:
        served = ServedTenants(world.database, names, pools, has_functions=has_functions)
        await served.read()
        return served.numbers

    first = frozenset({DEFAULT_TENANT})
    assert await numbers() == first
    assert await numbers(has_functions=False) is None
    assert await numbers("*") is None
    assert await numbers("acme") == frozenset({acme})
    assert await numbers("acme", "both", "acme", has_functions=False) == frozenset({acme, both})
    assert await numbers(pools=("gpu",)) == first | {acme, both}
    assert await numbers(pools=("gpu", "big")) == first | {both}
    assert await numbers(pools=("default", "gpu")) == first
    with pytest.raises(Misconfigured, match="no tenant 'acm'"):
        await numbers("acm")


@proves("T4")
async def test_schedules_of_an_app_are_registered_for_the_tenants_that_are_named(world: World) -> None:
    acme = await world.add_tenant("acme", pools=["gpu"])

    async def registers_for(*names: str, pools: tuple[str, ...] = ("default",)) -> tuple[TenantNo, ...]:
        served = ServedTenants(world.database, names, pools, has_functions=True)
        await served.read()
        return served.registers_for

    assert await registers_for() == (DEFAULT_TENANT,)
    assert await registers_for("*") == (DEFAULT_TENANT,)
    assert await registers_for(pools=("gpu",)) == (DEFAULT_TENANT,)
    assert await registers_for("acme") == (acme,)


@proves("T4")
async def test_a_worker_follows_the_pools_that_owners_give_to_tenants(world: World) -> None:
    served = ServedTenants(world.database, [], ["gpu"], has_functions=True)
    await served.read()
    assert served.may_change
    acme = await world.add_tenant("acme", pools=["gpu"])
    world.database.tenants._read_s = None
    assert await served.read_again()
    assert served.numbers == frozenset({DEFAULT_TENANT, acme})
    assert not await served.read_again()
    named = ServedTenants(world.database, ["acme"], ["default"], has_functions=True)
    await named.read()
    delete = "UPDATE ondot.tenant SET state = 'DELETED', changed_xid = pg_current_xact_id() WHERE tenant_no = $1"
    await world.fetch(delete, acme)
    world.database.tenants._read_s = None
    assert await named.read_again()
    assert named.numbers == frozenset()


@proves("T4", "E17")
async def test_explain_says_that_no_worker_serves_the_tenant(world: World) -> None:
    acme = await world.add_tenant("acme")
    await serving(world, frozenset({DEFAULT_TENANT}))
    await world.submit(job(), acme)
    [row] = await world.fetch("SELECT id FROM ondot.execution")
    explained = await explain_execution(world.database, acme, row["id"])
    assert explained.reasons[0].code == "no_worker"
    assert "No live worker serves this tenant in the pool 'default'" in explained.reasons[0].message
    assert "1 worker there runs the work of other tenants" in explained.reasons[0].message
    assert "--tenant" in (explained.reasons[0].what_to_do or "")
    await serving(world, None)
    explained = await explain_execution(world.database, acme, row["id"])
    assert explained.reasons[0].code != "no_worker"
