"""The first page in a real browser: it is live, it shows when it is not, and it fits a phone."""

from collections.abc import AsyncIterator
from typing import Final, Literal

import pytest
from playwright.async_api import Browser, expect

from ondot.model.schedule import Cron, Schedule
from ondot.store.logs import Progress, save_progress
from tests.proves import proves
from tests.ui.browsing import needs_chromium, open_browser, visit
from tests.ui.serving import served
from tests.world import World, failed, job, once

pytestmark = needs_chromium


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as browser:
        yield browser


async def busy(world: World) -> None:
    """One of everything, with names that are too long and hostile."""
    hostile = "<img src=x onerror=alert(1)><script>alert(2)</script>" + "x" * 140
    worker = await world.worker()
    await world.submit_all([job("fine"), job(hostile)])
    first, second = await worker.lease()
    await worker.complete(first)
    await worker.complete(second, failed(hostile, retryable=False))
    await world.submit_all([job("long-running"), job(hostile, schedule=once(world.after(90)))])
    (third,) = await worker.lease()
    async with world.database.connection() as connection:
        await save_progress(connection, worker.id, [Progress(third.leased.id, 1, None, 0.4, hostile)])


@proves("O5")
async def test_changes_are_shown_without_a_reload(world: World, browser: Browser) -> None:
    async with served(world.database) as page:
        visitor = await visit(browser, page.url)
        await page.until_watched()
        await page.feed.one_pass()
        await expect(visitor.page.locator("#liveness")).to_contain_text("Live")
        await expect(visitor.page.locator("#latest")).to_contain_text("Nothing has run yet")

        await busy(world)
        await page.feed.one_pass()
        await expect(visitor.page.locator("#latest")).to_contain_text("Succeeded")
        await expect(visitor.page.locator("#fires time[data-ahead]")).to_have_text("in 1 min 30 s")
        await expect(visitor.page.locator("#running progress")).to_have_js_property("value", 40)
        await expect(visitor.page.locator("#failures h2")).to_contain_text("Failed for good")
        await expect(visitor.page.locator("nav .badge")).to_contain_text("1")
        assert visitor.trouble == []


@proves("O5")
async def test_a_broken_stream_is_shown_and_reconnects(world: World, browser: Browser) -> None:
    async with served(world.database, by_itself=True) as page:
        port = int(page.url.rpartition(":")[2])
        visitor = await visit(browser, page.url)
        await expect(visitor.page.locator("#liveness")).to_contain_text("Live")
    await expect(visitor.page.locator("#liveness")).to_contain_text("Not live: reconnecting")
    await expect(visitor.page.locator("#live-page")).to_have_class("stale")
    await expect(visitor.page.locator("#announce")).to_contain_text("The numbers are old")
    async with served(world.database, by_itself=True, port=port):
        await expect(visitor.page.locator("#liveness [data-liveness=live]")).to_be_visible(timeout=20_000)
        await expect(visitor.page.locator("#live-page")).not_to_have_class("stale")
        await visitor.page.close()


@proves("O5")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
async def test_the_page_fits_its_screen_in_both_themes(
    world: World, browser: Browser, width: int, scheme: Literal["light", "dark"]
) -> None:
    await busy(world)
    async with served(world.database) as page:
        visitor = await visit(browser, page.url, viewport={"width": width, "height": 800}, color_scheme=scheme)
        assert await visitor.overflow() <= 0
        assert await visitor.page.evaluate(FAINT) == []
        await visitor.page.close()


@proves("O5")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 800, 1280])
async def test_the_docs_fit_their_screen_in_both_themes(
    world: World, browser: Browser, width: int, scheme: Literal["light", "dark"]
) -> None:
    async with served(world.database) as page:
        visitor = await visit(
            browser, f"{page.url}/docs", viewport={"width": width, "height": 800}, color_scheme=scheme
        )
        assert await visitor.overflow() <= 0
        assert await visitor.page.evaluate(FAINT) == []
        assert visitor.trouble == []
        await visitor.page.close()


@proves("O5")
async def test_an_example_of_the_docs_is_copied_by_its_button(world: World, browser: Browser) -> None:
    async with served(world.database) as page:
        context = await browser.new_context(permissions=["clipboard-read", "clipboard-write"])
        docs = await context.new_page()
        await docs.goto(f"{page.url}/docs")
        example = docs.locator("#post-v1-jobs")
        await example.get_by_role("button", name="Copy").click()
        await expect(example.get_by_role("button", name="Copied")).to_be_visible()
        copied = await docs.evaluate("navigator.clipboard.readText()")
        assert copied == await example.locator("pre").text_content()
        await context.close()


@proves("O5")
@pytest.mark.parametrize("width", [320, 700, 1280])
async def test_names_of_jobs_are_never_broken_inside_a_word(world: World, browser: Browser, width: int) -> None:
    names = ["pulse", "minute_report", "moody_service", "watch-myself"]
    crowded = Schedule(when=Cron(expression="*/20 9-17 1,15 1-6 1-5", timezone="America/Argentina/Buenos_Aires"))
    await world.submit_all([job(name, schedule=crowded) for name in names])
    await world.submit_all([job(name) for name in names])
    await (await world.worker()).lease()
    async with served(world.database) as page:
        visitor = await visit(browser, page.url, viewport={"width": width, "height": 800})
        assert await visitor.page.locator("#fires tbody tr").count() == len(names)
        assert await visitor.page.locator("#running tbody tr").count() == len(names)
        assert await visitor.page.evaluate(BROKEN_WORDS) == []
        assert await visitor.page.evaluate(TOO_WIDE) == []
        assert await visitor.overflow() <= 0
        await visitor.page.close()


@proves("O5")
async def test_without_javascript_the_page_is_a_whole_snapshot(world: World, browser: Browser) -> None:
    await busy(world)
    async with served(world.database) as page:
        context = await browser.new_context(java_script_enabled=False)
        snapshot = await context.new_page()
        await snapshot.goto(page.url)
        await expect(snapshot.locator("#liveness")).to_contain_text("Snapshot")
        await expect(snapshot.locator("#latest")).to_contain_text("Succeeded")
        await expect(snapshot.locator("#fires")).to_contain_text("in 1 min 30 s")
        await context.close()


@proves("O5")
async def test_focus_stays_on_a_link_when_its_fragment_is_replaced(world: World, browser: Browser) -> None:
    await busy(world)
    async with served(world.database) as page:
        visitor = await visit(browser, page.url)
        link = visitor.page.locator("#latest a", has_text="fine")
        await link.focus()
        await page.until_watched()
        await page.feed.one_pass()
        await expect(visitor.page.locator("#liveness")).to_contain_text("Live")
        await expect(link).to_be_focused()
        await visitor.page.close()


BROKEN_WORDS: Final = """() => {
  // Words in the names of jobs that are on more than one line, or cut off.
  const broken = [];
  for (const link of document.querySelectorAll("tbody th a")) {
    for (const node of link.childNodes) {
      for (const word of node.textContent.matchAll(/[^-]+-?/g)) {
        const range = document.createRange();
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        const lines = new Set([...range.getClientRects()].map((box) => box.top));
        const edge = link.getBoundingClientRect().right + 1;
        if (lines.size > 1 || range.getBoundingClientRect().right > edge) broken.push(word[0]);
      }
    }
  }
  return broken;
}"""

TOO_WIDE: Final = """() => {
  const wide = [...document.querySelectorAll(".list")].filter((list) => list.scrollWidth > list.clientWidth);
  return wide.map((list) => list.id);
}"""

FAINT: Final = """() => {
  // Texts whose contrast with what is behind them is below 4.5 (WCAG AA).
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const paint = (...colours) => {
    context.clearRect(0, 0, 1, 1);
    for (const colour of colours) { context.fillStyle = colour; context.fillRect(0, 0, 1, 1); }
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const light = (rgb) => {
    const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = rgb.slice(0, 3).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const faint = [];
  for (const element of document.querySelectorAll("body *")) {
    const text = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!text || !element.checkVisibility() || element.closest("noscript, script, .unseen, .skip")) continue;
    const behind = [];
    for (let at = element; at; at = at.parentElement) behind.unshift(getComputedStyle(at).backgroundColor);
    const [a, b] = [paint(...behind, getComputedStyle(element).color), paint(...behind)].map(light);
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) faint.push(`${element.tagName} ${element.className}: ${contrast.toFixed(2)}`);
  }
  return faint;
}"""
