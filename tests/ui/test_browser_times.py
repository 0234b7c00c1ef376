"""Times in a real browser: the reader's own zone in sentences and in tables, the other zones on hover, no flicker."""

from collections.abc import AsyncIterator
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from playwright.async_api import Browser, expect

from ondot.model.schedule import Cron, Schedule
from tests.proves import proves
from tests.ui.browsing import needs_chromium, open_browser, visit
from tests.ui.serving import served
from tests.world import World, job, once

pytestmark = needs_chromium

TOKYO = ZoneInfo("Asia/Tokyo")
WATCH_FRAMES = """() => {
  window.seen_in_utc = [];
  const look = () => {
    for (const time of document.querySelectorAll("time[data-clock]"))
      if (time.textContent.includes("UTC") || !time.textContent) window.seen_in_utc.push(time.outerHTML);
    window.frames_seen = (window.frames_seen || 0) + 1;
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}"""
"""Checks each painted frame: a time that is shown in UTC in one frame has flickered."""


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as browser:
        yield browser


def in_tokyo(at: datetime) -> str:
    return f"{at.astimezone(TOKYO):%H:%M:%S}"


@proves("O5")
async def test_sentences_and_tables_show_the_readers_zone_and_tooltips_the_others(
    world: World, browser: Browser
) -> None:
    fire_at = world.after(90)
    later = (await world.submit(job("later", schedule=once(fire_at)))).id
    nightly = Schedule(when=Cron(expression="30 2 * * *", timezone="Europe/Berlin"))
    berlin = (await world.submit(job("berlin", schedule=nightly))).id
    utc = f"{fire_at:%Y-%m-%d %H:%M:%S} UTC"
    async with served(world.database) as page:
        visitor = await visit(browser, f"{page.url}/jobs/{later}", timezone_id="Asia/Tokyo", locale="en-GB")
        shown = visitor.page
        for place in ("#why-not", ".facts > div:has(dt:text-is('Schedule'))"):
            time = shown.locator(f"{place} time").first
            await expect(time).to_contain_text(in_tokyo(fire_at))
            await expect(time).to_have_attribute("title", utc)
        assert "UTC" not in await shown.locator(".about").inner_text()
        await expect(shown.locator("#zone")).to_contain_text("Asia/Tokyo")

        await shown.goto(page.url)
        row = shown.locator("#fires tr", has_text="later")
        await expect(row.locator("time[data-clock]")).to_contain_text(in_tokyo(fire_at))
        relative = row.locator("time[data-ahead]")
        assert in_tokyo(fire_at) in str(await relative.get_attribute("title"))
        assert utc in str(await relative.get_attribute("title"))

        await shown.goto(f"{page.url}/jobs/{berlin}")
        coming = shown.locator("table.coming")
        await expect(coming.locator("thead")).to_contain_text("Europe/Berlin")
        await expect(coming.locator("thead")).to_contain_text("Asia/Tokyo")
        assert "Europe/Berlin" in str(await coming.locator("td time[data-clock]").first.get_attribute("title"))
        assert visitor.trouble == []


@proves("O5")
async def test_the_schedules_zone_is_shown_once_if_it_is_the_readers(world: World, browser: Browser) -> None:
    async with served(world.database) as page:
        address = f"{page.url}/schedules?kind=cron&expression=30+2+*+*+*&timezone=Europe/Berlin"
        visitor = await visit(browser, address, timezone_id="Europe/Berlin")
        await expect(visitor.page.locator("table.coming th.theirs")).to_be_hidden()
        await visitor.page.close()
        visitor = await visit(browser, address, java_script_enabled=False)
        await expect(visitor.page.locator("table.coming thead")).to_contain_text("UTC")


@proves("O5")
async def test_no_time_flickers_while_the_page_is_live(world: World, browser: Browser) -> None:
    later = (await world.submit(job("later", schedule=once(world.after(90))))).id
    worker = await world.worker()
    async with served(world.database) as page:
        visitor = await visit(browser, page.url, timezone_id="Asia/Tokyo")
        await page.until_watched()
        await visitor.page.evaluate(WATCH_FRAMES)
        for number in range(5):
            await world.submit(job(f"now {number}"))
            for work in await worker.lease():
                await worker.complete(work)
            await page.feed.one_pass()
            await expect(visitor.page.locator("#latest")).to_contain_text(f"now {number}")
        assert await visitor.page.evaluate("window.frames_seen") > 0
        assert await visitor.page.evaluate("window.seen_in_utc") == []

        # A page that requests itself again: the response is swapped in, and settled some frames later.
        await visitor.page.goto(f"{page.url}/jobs/{later}")
        await visitor.page.evaluate(WATCH_FRAMES)
        for _ in range(3):
            await world.advance(1)
            async with visitor.page.expect_response(f"**/jobs/{later}"):
                await visitor.page.evaluate("window.htmx.trigger('#job', 'changed')")
            await visitor.page.evaluate("() => new Promise((done) => setTimeout(done, 100))")
        assert await visitor.page.evaluate("window.seen_in_utc") == []
        await visitor.page.close()


@proves("O5")
async def test_without_javascript_every_time_is_marked_as_utc(world: World, browser: Browser) -> None:
    later = (await world.submit(job("later", schedule=once(world.after(90))))).id
    async with served(world.database) as page:
        visitor = await visit(browser, page.url, java_script_enabled=False, timezone_id="Asia/Tokyo")
        for path in ("/", f"/jobs/{later}", "/jobs"):
            await visitor.page.goto(f"{page.url}{path}")
            times = await visitor.page.locator("time[data-clock]").all_inner_texts()
            assert times
            assert [text for text in times if text and not text.endswith("UTC")] == []
