"""The pages of two tenants: each sees the pools that it may name, and nothing of what the other runs (T1)."""

import re

import pytest

from ondot.model.access import Role
from ondot.model.ids import DEFAULT_TENANT, NodeId, TenantNo
from ondot.store.nodes import beat_node, take_partitions
from ondot.store.workers import beat_worker, set_worker_tenants
from tests.api.conftest import key_of
from tests.proves import proves
from tests.ui.serving import events, served
from tests.world import World, job


async def fill(world: World) -> int:
    """acme may name the pool default; the first tenant runs 7 there. The pool payroll and its worker are not acme's."""
    acme = await world.add_tenant("acme", pools=["default"])
    async with world.database.connection() as connection:
        node = NodeId(world.database.clock.new_id())
        await beat_node(connection, node, host="plans-here", pid=7, release="1.2", lease_s=600)
        await take_partitions(connection, node, 64)
        payroll = await world.database.pools.register(connection, ["payroll"])
    shared = await world.worker()
    await world.worker(pool_nos=[payroll["payroll"]])
    await world.submit_all([job()] * 7)
    assert len(await shared.lease(7)) == 7
    async with world.database.connection() as connection:
        await beat_worker(connection, shared.id, state="ALIVE", running=7, lease_ids=shared.completer.leases, bounds=())
    return acme


def tile(html: str, name: str) -> str | None:
    found = re.search(rf"<dt>{name}</dt><dd>(.*?)</dd>", html)
    return None if found is None else " ".join(re.sub(r"<[^>]+>", "", found[1]).split())


@proves("T1", "O5")
async def test_a_tenant_sees_no_schedulers_and_no_counts_of_others_on_its_pages(world: World) -> None:
    acme = await fill(world)
    async with served(world.database, auth="on") as page:
        own, owner = await key_of(world, acme, Role.ADMIN), await key_of(world, 1, Role.OWNER)
        fleet = (await page.client.get("/fleet", headers=own)).text
        assert not re.findall("plans-here|payroll|partitions have|7 of 100|Slots busy|/v1/nodes", fleet)
        assert "Every pool with work has workers." in fleet
        assert ">100</td>" in fleet
        first = (await page.client.get("/", headers=own)).text
        assert "payroll" not in first
        tiles = [tile(first, name) for name in ("Slots busy", "Workers", "Schedulers")]
        assert tiles == ["0 of 100", "1", None]

        fleet = (await page.client.get("/fleet", headers=owner)).text
        assert all(part in fleet for part in ("plans-here:7", "payroll", "7 of 100", "All 64 partitions", "/v1/nodes"))
        first = (await page.client.get("/", headers=owner)).text
        assert [tile(first, name) for name in ("Slots busy", "Workers", "Schedulers")] == ["7 of 200", "2", "1"]
        admin = (await page.client.get("/fleet", headers=await key_of(world, 1, Role.ADMIN))).text
        assert not re.findall("plans-here|7 of 100", admin)


@proves("T1", "O5")
async def test_an_owner_sees_which_tenants_a_worker_serves(world: World) -> None:
    acme = await fill(world)
    worker = await world.worker()
    async with world.database.connection() as connection:
        await set_worker_tenants(connection, worker.id, [TenantNo(DEFAULT_TENANT), TenantNo(acme)])
    name = (await world.database.tenants.snapshot())[DEFAULT_TENANT].name
    async with served(world.database, auth="on") as page:
        own, owner = await key_of(world, acme, Role.ADMIN), await key_of(world, 1, Role.OWNER)
        assert (await page.client.get("/fleet", headers=owner)).text.count(f"for acme, {name}") == 1
        assert "for acme" not in (await page.client.get("/fleet", headers=own)).text


@pytest.mark.parametrize("path", ["/ui/live", "/ui/live/fleet"])
@proves("T1", "O5")
async def test_a_live_page_of_a_tenant_never_gets_what_an_owner_who_acts_for_it_sees(world: World, path: str) -> None:
    acme = await fill(world)
    async with served(world.database, auth="on") as page:
        own = await key_of(world, acme, Role.VIEWER)
        owner = await key_of(world, 1, Role.OWNER) | {"ondot-tenant": "acme"}
        whole: dict[str, str] = {}
        part: dict[str, str] = {}
        async with (
            page.client.stream("GET", path, headers=owner) as watched,
            page.client.stream("GET", path, headers=own) as other,
        ):
            await page.until_watched(2)
            await page.feed.one_pass()
            for stream, found in ((watched, whole), (other, part)):
                async for name, html in events(stream):
                    found[name] = html
                    if name == "live":
                        break
        seen, seen_by_owner = "".join(part.values()), "".join(whole.values())
        assert not re.findall("plans-here|7 of 100|Schedulers", seen)
        assert re.findall("plans-here:7|<dt>Schedulers</dt><dd>1", seen_by_owner)


@proves("T1", "O5")
async def test_a_live_page_ends_when_a_second_tenant_is_created(world: World) -> None:
    """Its browser connects again and sees its own part."""
    async with served(world.database, auth="on", by_itself=True) as page:
        viewer = await key_of(world, DEFAULT_TENANT, Role.VIEWER)
        async with page.client.stream("GET", "/ui/live/fleet", headers=viewer) as stream:
            names = []
            async for name, _ in events(stream):
                if name == "live" and "live" not in names:
                    await world.add_tenant("acme")
                names.append(name)
            assert "fleet_nodes" in names
        assert "fleet_nodes" not in (await page.client.get("/fleet", headers=viewer)).text
