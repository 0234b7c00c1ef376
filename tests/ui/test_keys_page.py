"""The page of API keys: what each may do and when it was used, and never a key after it was shown once."""

from collections.abc import AsyncIterator

import pytest

from ondot.model.access import Role
from ondot.model.errors import NotFound
from ondot.model.ids import DEFAULT_TENANT
from ondot.ui.keys import ROWS, read_keys
from tests.api.conftest import key_of
from tests.api.keys import make_key_with
from tests.proves import proves
from tests.ui.browsing import needs_chromium, open_browser, visit
from tests.ui.serving import Served, key_in, served
from tests.world import World


@pytest.fixture
async def page(world: World) -> AsyncIterator[Served]:
    """For an owner with a key."""
    async with served(world.database, auth="on") as page:
        page.client.headers.update(await key_of(world, DEFAULT_TENANT, Role.OWNER))
        yield page


@proves("T1", "O5")
async def test_the_page_shows_what_a_key_may_do_and_not_the_key(page: Served) -> None:
    body = {"name": "<b>ci", "role": "editor", "scopes": ["jobs:read"], "pools": ["default"], "expires_in": "90d"}
    made = await page.client.post("/v1/keys", json=body)
    assert made.status_code == 201, made.text
    html = (await page.client.get("/keys")).text
    for shown in ("editor", "only jobs:read", "in default", "works until", "never", made.json()["id"]):
        assert shown in html
    assert made.json()["key"] not in html
    assert "<b>ci" not in html
    assert 'data-act="rotate"' in html
    assert (await page.client.delete(f"/v1/keys/{made.json()['id']}")).status_code == 200
    html = (await page.client.get("/keys")).text
    assert "revoked" in html
    assert html.count('data-act="rotate"') == 1


@proves("T1")
async def test_many_keys_are_paged(world: World) -> None:
    for _ in range(ROWS + 2):
        await key_of(world, DEFAULT_TENANT, Role.VIEWER)
    view = await read_keys(world.database, DEFAULT_TENANT, {})
    assert len(view.rows) == ROWS
    assert view.more
    rest = await read_keys(world.database, DEFAULT_TENANT, {"before": view.more.partition("=")[2]})
    assert (len(rest.rows), rest.more) == (2, None)
    with pytest.raises(NotFound):
        await read_keys(world.database, DEFAULT_TENANT, {"before": "Not an id"})


@proves("T1")
async def test_only_those_who_manage_keys_see_the_page_and_no_key_of_an_owner_is_offered_to_an_admin(
    world: World,
) -> None:
    editor, admin = await make_key_with(world, "editor"), await make_key_with(world, "admin")
    owner = await make_key_with(world, "owner")
    async with served(world.database, auth="on") as page:
        assert (await page.client.get("/keys", headers=editor)).status_code == 403
        for_admin = (await page.client.get("/keys", headers=admin)).text
        for_owner = (await page.client.get("/keys", headers=owner)).text
    assert "<option>owner</option>" not in for_admin
    assert "<option>owner</option>" in for_owner
    assert for_admin.count('data-act="revoke"') == 2
    assert for_owner.count('data-act="revoke"') == 3


@needs_chromium
@proves("T1", "O5")
async def test_a_person_creates_rotates_and_revokes_a_key_on_the_page(page: Served) -> None:
    async with open_browser() as browser:
        seen = await visit(
            browser, f"{page.url}/keys", viewport={"width": 400, "height": 800}, extra_http_headers=key_in(page)
        )
        await seen.page.click('[data-act="create"]')
        await seen.page.fill('#create-dialog [name="name"]', "ci")
        await seen.page.keyboard.press("Enter")
        await seen.page.wait_for_selector("#done code")
        first = await seen.page.text_content("#done code") or ""
        assert first.startswith("ondk_")
        assert await seen.overflow() <= 0
        await seen.page.click("text=Done")
        await seen.page.click('[data-act="rotate"] >> nth=0')
        await seen.page.click('#rotate-dialog [value="yes"]')
        await seen.page.wait_for_selector("#done code")
        assert await seen.page.text_content("#done code") != first
        await seen.page.click("text=Done")
        await seen.page.wait_for_selector("text=replaced, works until")
        async with seen.page.expect_navigation():
            await seen.page.click('[data-act="revoke"] >> nth=0')
            await seen.agree()
        assert "revoked" in (await seen.page.text_content("table") or "")
        assert seen.trouble == []
        keys = (await page.client.get("/v1/keys")).json()["items"]
        assert [key["state"] for key in keys] == ["REVOKED", "ACTIVE", "ACTIVE"]
