"""Runs in a real browser: the graph and the timeline, live, by keyboard, and with thousands of steps (W9)."""

from collections.abc import AsyncIterator, Mapping

import pytest
from playwright.async_api import Browser, expect

from ondot.model.ids import ExecutionId
from ondot.model.workflow.spec import Approve, StepSpec
from tests.flow.workflows import advance, run_steps, start, step
from tests.proves import proves
from tests.ui.browsing import needs_chromium, open_browser, visit
from tests.ui.serving import served
from tests.world import World, failed

pytestmark = needs_chromium

HOSTILE = "<img src=x onerror=alert(1)> " + "long " * 30
NIGHTLY = {"list": step(), "check": step("list"), HOSTILE: step("list"), "upload": step("check", HOSTILE)}


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as browser:
        yield browser


@proves("W9")
async def test_the_graph_follows_its_run(world: World, browser: Browser) -> None:
    worker = await world.worker()
    run = await start(world, worker, NIGHTLY)
    async with served(world.database) as page:
        visitor = await visit(browser, f"{page.url}/runs/{run}")
        nodes = visitor.page.locator("a.node")
        await expect(nodes).to_have_count(4)
        first = visitor.page.get_by_role("link", name="list, queued")
        await expect(first).to_be_visible()
        [assignment] = await worker.lease()
        await expect(visitor.page.get_by_role("link", name="list, running")).to_be_visible(timeout=30_000)
        await world.advance(2)
        await worker.complete(assignment)
        await advance(world, run)
        await run_steps(world, worker, run, {"check": failed("broken <b>", retryable=False)})
        await expect(visitor.page.get_by_role("link", name="check, failed")).to_be_visible(timeout=30_000)
        await expect(visitor.page.get_by_role("link", name="upload, blocked")).to_be_visible()
        await expect(visitor.page.get_by_role("link", name="list, succeeded, 2.00 s")).to_be_visible()
        await expect(visitor.page.locator(".titled .state").first).to_have_text("Blocked", timeout=30_000)
        assert visitor.trouble == []
        await visitor.page.close()


@proves("W9")
async def test_a_step_opens_beside_the_graph_by_mouse_and_by_keyboard(world: World, browser: Browser) -> None:
    worker = await world.worker()
    run = await start(world, worker, NIGHTLY)
    await run_steps(world, worker, run, {"check": failed("broken", retryable=False)})
    async with served(world.database) as page:
        visitor = await visit(browser, f"{page.url}/runs/{run}")
        await visitor.page.get_by_role("link", name="check, failed").click()
        heading = visitor.page.locator("#step-panel h2")
        await expect(heading).to_have_text("check")
        await expect(visitor.page.locator("#step-panel")).to_contain_text("broken")
        await visitor.page.get_by_role("link", name="list, succeeded").focus()
        await visitor.page.keyboard.press("ArrowRight")
        focused = "document.activeElement.getAttribute('aria-label')"
        assert (await visitor.page.evaluate(focused)).split(",")[0] in NIGHTLY
        assert not (await visitor.page.evaluate(focused)).startswith("list")
        await visitor.page.get_by_role("link", name="upload, blocked").focus()
        await visitor.page.keyboard.press("Enter")
        await expect(heading).to_have_text("upload")
        await expect(visitor.page.locator("#step-panel")).to_contain_text("parent check failed")
        assert visitor.page.url.endswith(f"/runs/{run}")
        assert visitor.trouble == []
        await visitor.page.close()


async def insert_run(world: World, steps: Mapping[str, StepSpec]) -> ExecutionId:
    """A run of many steps that has just begun."""
    return await start(world, await world.worker(), steps)


def fan(count: int) -> dict[str, StepSpec]:
    """A step, then many, then a join."""
    names = [f"load-{number}" for number in range(count - 2)]
    return {"list": step(), **{name: step("list") for name in names}, "report": step(*names)}


@proves("W9")
async def test_a_large_run_is_folded_and_its_groups_open(world: World, browser: Browser) -> None:
    run = await insert_run(world, fan(1_000))
    async with served(world.database) as page:
        visitor = await visit(browser, f"{page.url}/runs/{run}")
        nodes = visitor.page.locator("a.node")
        await expect(nodes).to_have_count(3, timeout=30_000)
        group = visitor.page.get_by_role("link", name="load …, 998 steps: 998 waiting")
        await group.focus()
        await visitor.page.keyboard.press("Enter")
        await expect(nodes).to_have_count(50, timeout=30_000)
        await expect(visitor.page.locator(".crumbs")).to_contain_text("load …")
        await nodes.first.click()
        await expect(nodes).to_have_count(20, timeout=30_000)
        await visitor.page.get_by_role("button", name="Back to All 1,000 steps").click()
        await expect(nodes).to_have_count(3, timeout=30_000)
        assert visitor.trouble == []
        await visitor.page.close()


@proves("W9")
async def test_the_timeline_has_only_the_rows_in_the_window(world: World, browser: Browser) -> None:
    run = await insert_run(world, fan(2_000))
    async with served(world.database) as page:
        visitor = await visit(browser, f"{page.url}/runs/{run}?view=gantt")
        rows = visitor.page.locator(".gantt-name")
        await expect(rows.first).to_be_visible(timeout=30_000)
        assert await rows.count() < 100
        await visitor.page.locator(".gantt-scroller").evaluate(
            "element => { element.scrollTop = element.scrollHeight; }"
        )
        await expect(rows.last).to_have_attribute("data-step", "1999")
        await rows.last.click()
        await expect(visitor.page.locator("#step-panel h2")).to_have_text("report")
        assert visitor.trouble == []
        await visitor.page.close()


@proves("W9")
@pytest.mark.parametrize("view", ["graph", "gantt", "table"])
@pytest.mark.parametrize("width", [380, 1280])
async def test_hostile_names_stay_text_and_fit_the_window(
    world: World, browser: Browser, view: str, width: int
) -> None:
    worker = await world.worker()
    run = await start(world, worker, NIGHTLY)
    await run_steps(world, worker, run, {"check": failed("broken", retryable=False)})
    async with served(world.database) as page:
        viewport = {"width": width, "height": 800}
        visitor = await visit(browser, f"{page.url}/runs/{run}?view={view}", viewport=viewport, color_scheme="dark")
        shown = visitor.page.locator({"graph": "a.node", "gantt": ".gantt-name", "table": ".step-list th a"}[view])
        await expect(shown).to_have_count(4)
        assert await visitor.page.locator("main img").count() == 0
        assert await visitor.overflow() <= 0
        assert visitor.trouble == []
        await visitor.page.close()


@proves("W3", "W9")
async def test_failed_steps_are_retried_from_the_page_after_a_preview(world: World, browser: Browser) -> None:
    worker = await world.worker()
    run = await start(world, worker, NIGHTLY)
    await run_steps(world, worker, run, {"check": failed("broken", retryable=False)})
    async with served(world.database) as page:
        visitor = await visit(browser, f"{page.url}/runs/{run}")
        await visitor.page.get_by_role("button", name="Retry failed").click()
        dialog = visitor.page.locator("#run-dialog")
        await expect(dialog.locator("[data-preview]")).to_contain_text(
            "These steps run again, if their rules say so: check"
        )
        await dialog.get_by_role("button", name="Back").click()
        assert await worker.lease() == []
        await visitor.page.get_by_role("button", name="Retry failed").click()
        await dialog.get_by_label("Reason (recorded)").fill("the API is back")
        await dialog.get_by_role("button", name="Retry", exact=True).click()
        await expect(visitor.page.locator("#done")).to_have_text("The steps run again.")
        await expect(visitor.page.locator(".titled .state").first).not_to_have_text("Blocked", timeout=30_000)
        [entry] = (await page.client.get("/v1/audit", params={"subject": str(run)})).json()["items"][:1]
        assert entry["detail"]["reason"] == "the API is back"
        assert visitor.trouble == []
        await visitor.page.close()


@proves("W8", "W9")
async def test_a_step_is_approved_from_its_panel(world: World, browser: Browser) -> None:
    worker = await world.worker()
    run = await start(world, worker, {"ask": step(target=Approve(by="operator")), "go": step("ask")})
    async with served(world.database) as page:
        visitor = await visit(browser, f"{page.url}/runs/{run}")
        await visitor.page.get_by_role("link", name="ask, needs approval").click()
        await visitor.page.get_by_role("button", name="Approve").click()
        await visitor.page.locator("#run-dialog").get_by_role("button", name="Approve").click()
        await expect(visitor.page.locator("#done")).to_have_text("The step is approved.")
        await advance(world, run)
        await expect(visitor.page.get_by_role("link", name="go, queued")).to_be_visible(timeout=30_000)
        assert visitor.trouble == []
        await visitor.page.close()
