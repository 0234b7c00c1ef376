"""The pages of events and hooks: what was sent, what it started, a filter that is tried, and a URL shown once (S11)."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from ondot.kms import generate_key
from tests.proves import proves
from tests.ui.browsing import needs_chromium, open_browser, visit
from tests.ui.serving import Served, served
from tests.world import World

TYPE = "com.acme.order.paid"


@pytest.fixture
async def page(world: World) -> AsyncIterator[Served]:
    world.database.settings = world.database.settings.model_copy(update={"secret_key": generate_key()})
    async with served(world.database) as page:
        yield page


async def send(page: Served, id_: str, data: Any, **fields: Any) -> dict[str, Any]:
    event = {"specversion": "1.0", "id": id_, "source": "/shop", "type": TYPE, "data": data, **fields}
    answer = await page.client.post("/v1/events", json=event, headers={"content-type": "application/cloudevents+json"})
    assert answer.status_code == 202, answer.text
    sent: dict[str, Any] = answer.json()
    return sent


async def subscribe(page: Served, name: str = "ship", **rule: Any) -> str:
    body = {"name": name, "function": "f", "schedule": {"event": {"type": TYPE, **rule}}}
    answer = await page.client.post("/v1/jobs", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


@proves("S11", "O5")
async def test_the_list_shows_what_each_event_matched_and_filters(page: Served) -> None:
    empty = (await page.client.get("/events")).text
    assert "No event was sent yet" in empty
    job_id = await subscribe(page, "<b>ship", filter={"data": {"amount": [{"numeric": [">=", 100]}]}})
    large = await send(page, "large", {"amount": 100})
    small = await send(page, "<i>small", {"amount": 1})
    html = (await page.client.get("/events")).text
    for shown in (large["id"], small["id"], f"/executions/{large['executions'][0]}", f"/jobs/{job_id}", "no job"):
        assert shown in html
    assert "<b>ship" not in html
    assert "<i>small" not in html
    only = (await page.client.get("/events?matched=no")).text
    assert small["id"] in only
    assert large["id"] not in only
    assert "No event matches" in (await page.client.get("/events?type=other")).text
    for odd in ("cursor=x", "within=1y", "type=%00", "try=" + "[" * 5_000, "matched=maybe"):
        assert (await page.client.get(f"/events?{odd}")).status_code == 200


@proves("S11", "O5")
async def test_a_filter_is_tried_on_the_page_and_its_faults_are_shown(page: Served) -> None:
    await send(page, "1", {"region": "eu"})
    await send(page, "2", {"region": "us"})
    tried = (await page.client.get("/events", params={"try": '{"data": {"region": ["eu"]}}'})).text
    assert "matches" in tried
    assert "data.region" in tried
    wrong = (await page.client.get("/events", params={"try": '{"data": {"region": "eu"}}'})).text
    assert 'role="alert"' in wrong
    assert "/data/region" in wrong
    assert "not JSON" in (await page.client.get("/events", params={"try": "{"})).text


@proves("S11", "O5")
async def test_one_event_shows_its_body_and_what_it_started(page: Served) -> None:
    await subscribe(page)
    sent = await send(page, "1", {"note": "<script>alert(1)</script>"}, subject="order 1")
    html = (await page.client.get(f"/events/{sent['id']}")).text
    for shown in (TYPE, "/shop", "order 1", sent["executions"][0], 'data-act="replay"'):
        assert shown in html
    assert "<script>alert" not in html
    assert (await page.client.get("/events/019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a")).status_code == 404
    assert (await page.client.get("/events/x")).status_code == 404


@proves("S11", "O5")
async def test_the_page_of_a_job_shows_its_last_events(page: Served) -> None:
    job_id = await subscribe(page, filter={"data": {"region": ["eu"]}})
    here = await send(page, "1", {"region": "eu"})
    there = await send(page, "2", {"region": "us"})
    html = (await page.client.get(f"/jobs/{job_id}")).text
    for shown in (TYPE, here["id"], there["id"], "data.region", here["executions"][0]):
        assert shown in html


@needs_chromium
@proves("S11", "O5")
async def test_a_person_follows_events_replays_one_and_creates_a_hook(page: Served) -> None:
    await subscribe(page)
    async with open_browser() as browser:
        seen = await visit(browser, f"{page.url}/events", viewport={"width": 400, "height": 800})
        sent = await send(page, "1", {"amount": 5})
        await seen.page.wait_for_selector(f'a[href="/events/{sent["id"]}"]', timeout=15_000)
        assert await seen.overflow() <= 0
        await seen.page.click(f'a[href="/events/{sent["id"]}"]')
        assert await seen.overflow() <= 0
        await seen.page.click('[data-act="replay"]')
        await seen.agree()
        await seen.page.wait_for_selector("#done a")
        await seen.page.goto(f"{page.url}/hooks")
        await seen.page.click('[data-act="create"]')
        await seen.page.fill('#create-dialog [name="name"]', "github")
        await seen.page.fill('#create-dialog [name="type"]', "com.github")
        await seen.page.select_option('#create-dialog [name="signature"]', "github")
        await seen.page.keyboard.press("Enter")
        await seen.page.wait_for_selector("#done code")
        codes = await seen.page.eval_on_selector_all("#done code", "all => all.map(one => one.textContent)")
        assert codes[0].startswith(f"{page.url}/v1/hooks/ondh_")
        assert len(codes) == 2
        assert await seen.overflow() <= 0
        await seen.page.click("text=Done")
        await seen.page.wait_for_selector('[data-act="rotate"]')
        assert "ondh_" not in await seen.page.content()
        async with seen.page.expect_navigation():
            await seen.page.click('[data-act="remove"]')
            await seen.agree()
        await seen.page.wait_for_selector("text=There are no hooks yet")
        assert seen.trouble == []
