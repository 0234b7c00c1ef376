"""The page of secrets: what they are for and who changed them, and never a value."""

from collections.abc import AsyncIterator

import pytest

from ondot.kms import generate_key
from ondot.model.errors import NotFound
from ondot.model.ids import DEFAULT_TENANT
from ondot.ui.secrets import ROWS, read_secrets
from tests.api.keys import make_key_with
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import World

VALUE = "sk_live_51Hq8canary"


@pytest.fixture
async def page(world: World) -> AsyncIterator[Served]:
    world.database.settings = world.database.settings.model_copy(update={"secret_key": generate_key()})
    async with served(world.database) as page:
        yield page


@proves("T5", "O5")
async def test_the_page_shows_where_a_secret_may_go_and_what_uses_it(page: Served) -> None:
    assert "There are no secrets yet." in (await page.client.get("/secrets")).text
    body = {"value": VALUE, "hosts": ["a.org"], "pools": ["default"]}
    assert (await page.client.put("/v1/secrets/stripe", json=body)).status_code == 200
    http = {"url": "https://a.org", "headers": {"x-key": {"$secret": "stripe"}}}
    made = await page.client.post("/v1/jobs", json={"name": "<b>charge", "every": "1h", "target": {"http": http}})
    assert made.status_code == 201, made.text
    html = (await page.client.get("/secrets")).text
    assert "stripe" in html
    assert "version 1" in html
    assert "a.org" in html
    assert "in default" in html
    assert f'href="/jobs/{made.json()["id"]}"' in html
    assert "<b>charge" not in html
    assert VALUE not in html
    assert 'href="/secrets"' in (await page.client.get("/alerts")).text


@proves("T5")
async def test_many_secrets_are_paged(page: Served, world: World) -> None:
    for number in range(ROWS + 2):
        await page.client.put(f"/v1/secrets/s{number:03}", json={"value": VALUE})
    view = await read_secrets(world.database, DEFAULT_TENANT, {})
    assert (len(view.rows), view.more) == (ROWS, "/secrets?after=s099")
    rest = await read_secrets(world.database, DEFAULT_TENANT, {"after": "s099"})
    assert [row.name for row in rest.rows] == ["s100", "s101"]
    with pytest.raises(NotFound):
        await read_secrets(world.database, DEFAULT_TENANT, {"after": "Not a name"})


@proves("T5", "T1")
async def test_only_those_who_manage_secrets_see_the_page(world: World) -> None:
    editor, admin = await make_key_with(world, "editor"), await make_key_with(world, "admin")
    async with served(world.database, auth="on") as page:
        assert (await page.client.get("/secrets", headers=editor)).status_code == 403
        assert (await page.client.get("/secrets", headers=admin)).status_code == 200
