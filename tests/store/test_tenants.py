"""The tenants that a process remembers."""

import asyncio

from ondot.model.ids import DEFAULT_TENANT
from ondot.model.tenant import TenantState
from ondot.store.tenants import Tenants
from tests.proves import proves
from tests.servers import connected
from tests.world import World


async def _read(world: World, tenants: Tenants) -> set[str]:
    async with world.database.connection() as connection:
        await tenants.refresh(connection)
    return {tenant.name for tenant in tenants.known.values() if tenant.state is not TenantState.DELETED}


@proves("T1")
async def test_the_first_tenant_may_use_every_pool(world: World) -> None:
    first = await world.database.tenants.get(DEFAULT_TENANT)
    assert first is not None
    assert first.may_create_pools
    assert first.may_name("anything")


@proves("T1", "T2")
async def test_a_reading_finds_every_change_also_of_a_transaction_that_commits_late(
    world: World, database_url: str
) -> None:
    tenants = Tenants()
    async with connected(database_url) as early, connected(database_url) as late:
        begun = late.transaction()
        await begun.start()
        await late.execute("INSERT INTO ondot.tenant (name) VALUES ('late')")
        await early.execute("INSERT INTO ondot.tenant (name, weight) VALUES ('early', 2)")
        assert await _read(world, tenants) == {"default", "early"}
        await early.execute("UPDATE ondot.tenant SET state = 'DELETED' WHERE name = 'early'")
        await begun.commit()
        assert await _read(world, tenants) == {"default", "late"}
        # The name is free again, under another number.
        await early.execute("INSERT INTO ondot.tenant (name) VALUES ('early')")
        assert await _read(world, tenants) == {"default", "early", "late"}
    numbers = [tenant.tenant_no for tenant in tenants.known.values() if tenant.name == "early"]
    assert len(numbers) == len(set(numbers)) == 2


@proves("T1")
async def test_many_callers_at_once_share_one_reading(world: World) -> None:
    tenants = world.database.tenants
    found = await asyncio.gather(*(tenants.by_name("default") for _ in range(50)))
    assert {tenant.tenant_no for tenant in found if tenant is not None} == {DEFAULT_TENANT}
    assert await tenants.by_name("installation") is None
