"""The pages of tenants, for owners: quotas and usage of each, and buttons that change, suspend and delete it."""

from collections.abc import AsyncIterator

import pytest

from ondot.model.access import Role
from ondot.model.errors import NotFound
from ondot.model.ids import DEFAULT_TENANT
from ondot.ui.tenants import ROWS, read_tenants
from tests.api.conftest import key_of
from tests.proves import proves
from tests.ui.browsing import needs_chromium, open_browser, visit
from tests.ui.serving import Served, key_in, served
from tests.world import World

ACME = {"name": "acme", "weight": 2, "quotas": {"jobs": 100, "starts": "20/1s"}}


@pytest.fixture
async def page(world: World) -> AsyncIterator[Served]:
    """For an owner with a key."""
    async with served(world.database, auth="on") as page:
        page.client.headers.update(await key_of(world, DEFAULT_TENANT, Role.OWNER))
        yield page


@proves("T1", "T2", "O5")
async def test_an_owner_sees_the_quotas_and_the_usage_of_a_tenant(page: Served) -> None:
    assert (await page.client.post("/v1/tenants", json=ACME)).status_code == 201
    assert 'href="/tenants/acme"' in (await page.client.get("/tenants")).text
    html = (await page.client.get("/tenants/acme")).text
    for shown in ("Tenant acme", "20/1s", "weight 2", "Pools that it may name: default.", 'data-act="suspend"'):
        assert shown in html
    await page.client.post("/v1/tenants/acme/suspend")
    html = (await page.client.get("/tenants/acme")).text
    assert "Suspended: nothing of it is planned or started" in html
    assert 'data-act="resume"' in html
    await page.client.delete("/v1/tenants/acme")
    html = (await page.client.get("/tenants/acme")).text
    assert "Deleted" in html
    assert "data-act=" not in html
    assert (await page.client.get("/tenants/nobody")).status_code == 404


@proves("T1")
async def test_only_owners_see_tenants_and_one_tenant_alone_sees_no_link(world: World) -> None:
    owner, admin = [await key_of(world, DEFAULT_TENANT, role) for role in (Role.OWNER, Role.ADMIN)]
    async with served(world.database, auth="on") as page:
        assert 'href="/tenants"' not in (await page.client.get("/alerts", headers=owner)).text
        assert (await page.client.get("/tenants", headers=owner)).status_code == 200
        assert (await page.client.post("/v1/tenants", json=ACME, headers=owner)).status_code == 201
        assert 'href="/tenants"' in (await page.client.get("/alerts", headers=owner)).text
        assert 'href="/tenants"' not in (await page.client.get("/alerts", headers=admin)).text
        for path in ("/tenants", "/tenants/acme", "/tenants/nobody"):
            assert (await page.client.get(path, headers=admin)).status_code == 403


@proves("T1")
async def test_many_tenants_are_paged(world: World) -> None:
    for number in range(ROWS + 1):
        await world.add_tenant(f"t{number}")
    view = await read_tenants(world.database, {})
    assert len(view.rows) == ROWS
    assert view.more
    rest = await read_tenants(world.database, {"after": view.more.partition("=")[2]})
    assert (len(rest.rows), rest.more) == (2, None)
    with pytest.raises(NotFound):
        await read_tenants(world.database, {"after": "9" * 20})


@needs_chromium
@proves("T1", "T2", "O5")
async def test_an_owner_creates_changes_suspends_and_deletes_a_tenant_on_the_page(page: Served) -> None:
    async with open_browser() as browser:
        seen = await visit(
            browser, f"{page.url}/tenants", viewport={"width": 400, "height": 800}, extra_http_headers=key_in(page)
        )
        await seen.page.click('[data-act="create"]')
        await seen.page.fill('#create-dialog [name="name"]', "acme")
        await seen.page.keyboard.press("Enter")
        await seen.page.wait_for_url("**/tenants/acme")
        await seen.page.click('[data-act="change"]')
        await seen.page.fill('[data-quota="jobs"]', "100")
        await seen.page.fill('[data-quota="creates"]', "20/1s")
        async with seen.page.expect_navigation():
            await seen.page.click('#change-dialog [value="yes"]')
        assert await seen.overflow() <= 0
        made = (await page.client.get("/v1/tenants/acme")).json()
        assert made["quotas"] == {"jobs": 100, "creates": {"limit": 20, "per": 1.0, "burst": 20}}
        await seen.page.click('[data-act="change"]')
        await seen.page.fill('[data-quota="jobs"]', "")
        async with seen.page.expect_navigation():
            await seen.page.click('#change-dialog [value="yes"]')
        assert set((await page.client.get("/v1/tenants/acme")).json()["quotas"]) == {"creates"}
        async with seen.page.expect_navigation():
            await seen.page.click('[data-act="suspend"]')
            await seen.agree()
        async with seen.page.expect_navigation():
            await seen.page.click('[data-act="resume"]')
        for typed, is_deleted in (("acne", False), ("acme", True)):
            await seen.page.click('[data-act="delete"]')
            await seen.page.fill('#delete-dialog [name="name"]', typed)
            await seen.page.click('#delete-dialog [value="yes"]')
            await seen.page.wait_for_selector("text=Deleted" if is_deleted else "text=Nothing was deleted")
        assert (await page.client.get("/v1/tenants/acme")).json()["state"] == "DELETED"
        assert seen.trouble == []
