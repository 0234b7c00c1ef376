"""The page of usage: a tenant sees itself and totals, an owner everyone, and one tenant alone sees no link to it."""

from ondot.model.access import Role
from tests.api.conftest import key_of
from tests.api.test_usage import load
from tests.proves import proves
from tests.ui.serving import served
from tests.world import World


@proves("T1", "T2", "O5")
async def test_a_tenant_sees_its_own_usage_and_totals_and_an_owner_sees_names(world: World) -> None:
    acme = await load(world)
    async with served(world.database, auth="on") as page:
        own = (await page.client.get("/usage", headers=await key_of(world, acme, Role.VIEWER))).text
        assert "Usage of acme" in own
        assert "1 of 500 running, weight 3." in own
        assert "100 running, 21 waiting" in own
        assert "Waits for other tenants" in own
        assert "verysecret" not in own
        assert 'href="/usage"' in own
        owners = (await page.client.get("/usage", headers=await key_of(world, 1, Role.OWNER))).text
        assert "verysecret, weight 1" in owners


@proves("T1")
async def test_an_installation_with_one_tenant_has_no_link_to_usage(world: World) -> None:
    async with served(world.database, auth="on") as page:
        html = (await page.client.get("/", headers=await key_of(world, 1, Role.OWNER))).text
    assert 'href="/jobs"' in html
    assert 'href="/usage"' not in html
