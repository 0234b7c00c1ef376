"""The fleet in a real browser: it is live, it shows troubles, and it fits a phone."""

from collections.abc import AsyncIterator
from typing import Literal

import pytest
from playwright.async_api import Browser, expect

from ondot.store.workers import lose_worker, read_beats
from tests.proves import proves
from tests.ui.browsing import needs_chromium, open_browser, visit
from tests.ui.serving import served
from tests.ui.test_browser import FAINT
from tests.ui.test_fleet_page import node
from tests.world import World, job

pytestmark = needs_chromium


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as browser:
        yield browser


@proves("C1", "O5")
async def test_a_takeover_and_a_pool_without_workers_are_seen_without_a_reload(world: World, browser: Browser) -> None:
    first = await node(world, "east", 64)
    await world.worker()
    async with served(world.database) as page:
        visitor = await visit(browser, f"{page.url}/fleet")
        await page.until_watched()
        await page.feed.one_pass()
        await expect(visitor.page.locator("#liveness")).to_contain_text("Live")
        await expect(visitor.page.locator("#health")).to_contain_text("All 64 partitions have an owner")
        await expect(visitor.page.locator(".strip .owner-0")).to_have_count(64)

        await world.advance(6)
        await page.feed.one_pass()
        await expect(visitor.page.locator("#health .bad")).to_contain_text("No scheduler is running")
        await expect(visitor.page.locator("#announce")).to_contain_text("No scheduler is running")
        await expect(visitor.page.locator(".strip .unowned")).to_have_count(64)

        await node(world, "west", 32)
        await node(world, "east", 32, first)
        await world.submit(job(pool="mail"))
        await page.feed.one_pass()
        await expect(visitor.page.locator("#health .bad")).to_contain_text("in pool mail")
        await expect(visitor.page.locator("#nodes")).to_contain_text("west:7")
        await expect(visitor.page.locator("#pools .unserved code")).to_have_text("ondot worker --pool mail")
        assert visitor.trouble == []
        await visitor.page.close()


@proves("O5")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
async def test_the_fleet_fits_its_screen_in_both_themes(
    world: World, browser: Browser, width: int, scheme: Literal["light", "dark"]
) -> None:
    lost, _silent = await world.worker(), await world.worker()
    async with world.database.connection() as connection:
        beats, _ = await read_beats(connection)
        assert await lose_worker(connection, next(beat for beat in beats if beat.worker_id == lost.id))
    await world.submit_all([job(pool="quite-a-long-name-of-a-pool-" * 2), job()])
    await node(world, "gone.example", 3)
    await world.advance(7)
    for n in range(9):
        await node(world, f"scheduler-{n}.with.a.long.name.example", 6)
    async with served(world.database) as page:
        visitor = await visit(
            browser, f"{page.url}/fleet", viewport={"width": width, "height": 800}, color_scheme=scheme
        )
        assert await visitor.overflow() <= 0
        assert await visitor.page.evaluate(FAINT) == []
        assert visitor.trouble == []
        await visitor.page.close()
