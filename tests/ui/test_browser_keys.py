"""By keyboard only, in a real browser: the box that finds anything, lists, forms, dialogs; and what axe-core finds."""

from collections.abc import AsyncIterator
from importlib.resources import files
from typing import Any, Final, Literal

import pytest
from playwright.async_api import Browser, Page, expect

from ondot.flow.change.change import pause
from ondot.model.ids import DEFAULT_TENANT
from tests.proves import proves
from tests.ui.browsing import Visit, needs_chromium, open_browser, visit
from tests.ui.serving import Served, served
from tests.world import World, cron, every, failed, job

pytestmark = needs_chromium

AXE: Final = files("axe_playwright_python").joinpath("axe.min.js").read_text()
HOSTILE: Final = "<img src=x onerror=alert(1)> & <b>"


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as browser:
        yield browser


@pytest.fixture
async def page(world: World) -> AsyncIterator[Served]:
    async with served(world.database) as page:
        yield page


async def press(tab: Page, *keys: str) -> None:
    for key in keys:
        await tab.keyboard.press(key)


async def violations(visitor: Visit) -> list[Any]:
    await visitor.page.evaluate(AXE)
    found: list[Any] = await visitor.page.evaluate(
        "async () => (await axe.run(document, {resultTypes: ['violations']})).violations"
        ".map((one) => [one.id, one.nodes.map((node) => node.html.slice(0, 120))])"
    )
    return found


@proves("O5")
async def test_the_box_finds_jobs_pages_executions_and_actions(world: World, page: Served, browser: Browser) -> None:
    made = await world.submit(job(f"nightly {HOSTILE}", schedule=every(600, world.now)))
    ran = await world.run_now(made.id)
    visitor = await visit(browser, f"{page.url}/jobs/{made.id}")
    tab, box = visitor.page, visitor.page.get_by_role("combobox", name="Find")
    await press(tab, "Control+k")
    await expect(box).to_be_focused()
    await box.press_sequentially("pau")
    await expect(tab.get_by_role("option").first).to_contain_text("Pause")
    await press(tab, "Enter")
    await expect(tab.locator("#pause-dialog")).to_be_visible()
    await press(tab, "Escape", "Control+k")
    await box.press_sequentially("NIGHTLY")
    found = tab.get_by_role("option", name="nightly").filter(has_text="job").first
    await expect(found).to_contain_text(HOSTILE)
    for _ in range(20):
        active = await box.get_attribute("aria-activedescendant")
        if active == await found.get_attribute("id"):
            break
        await press(tab, "ArrowDown")
    await expect(found).to_have_attribute("aria-selected", "true")
    async with tab.expect_navigation(url=f"**/jobs/{made.id}"):
        await press(tab, "Enter")
    await press(tab, "Meta+k")
    await box.fill(str(ran))
    await expect(tab.get_by_role("option").first).to_contain_text("execution")
    await press(tab, "Enter")
    await tab.wait_for_url(f"**/executions/{ran}")
    await tab.locator("#find-open").click()
    await box.fill("dead")
    await expect(tab.get_by_role("option").first).to_contain_text("Dead letters")
    await press(tab, "Enter")
    await tab.wait_for_url("**/dead-letters")
    assert visitor.trouble == []


@proves("O5")
async def test_a_list_is_walked_selected_and_opened_by_keys(world: World, page: Served, browser: Browser) -> None:
    for name in ("third", "second", "first"):
        await world.submit(job(name, schedule=every(600, world.now)))
    visitor = await visit(browser, f"{page.url}/")
    tab = visitor.page
    await press(tab, "g", "j")
    await tab.wait_for_url("**/jobs")
    links = tab.locator("main tbody th a")
    await press(tab, "j", "j")
    await expect(links.nth(1)).to_be_focused()
    await press(tab, "x", "j", "x", "k", "k", "k")
    await expect(links.nth(0)).to_be_focused()
    await expect(tab.locator("#picked")).to_have_text("2 selected")
    await press(tab, "/")
    await expect(tab.locator("#q")).to_be_focused()
    await press(tab, "j", "?", "g")
    await expect(tab.locator("#q")).to_have_value("j?g")
    await tab.locator("#q").fill("second")
    await press(tab, "Enter")
    await expect(links).to_have_text(["second"])
    await press(tab, "j", "Enter")
    await expect(tab.locator("#h-job")).to_have_text("second")
    await press(tab, "?")
    await expect(tab.locator("#keys-dialog")).to_contain_text("Run now")
    await press(tab, "r")  # a dialog is open: nothing else happens
    await expect(tab.locator("#run-dialog")).to_be_hidden()
    await tab.get_by_label("Single keys do something").press(" ")
    await press(tab, "Escape", "r")
    await expect(tab.locator("#run-dialog")).to_be_hidden()
    await tab.reload()
    await press(tab, "?")
    await tab.get_by_label("Single keys do something").press(" ")
    await press(tab, "Escape", "r")
    await expect(tab.locator("#run-dialog")).to_be_visible()
    assert visitor.trouble == []


@proves("O5", "S8")
async def test_a_job_is_created_edited_run_and_deleted_by_keyboard_alone(
    world: World, page: Served, browser: Browser
) -> None:
    visitor = await visit(browser, f"{page.url}/jobs")
    tab = visitor.page
    await press(tab, "n")
    await expect(tab.get_by_label("Name", exact=True)).to_be_focused()
    await tab.keyboard.type("by-hand")
    await press(tab, "Tab", "Tab", "Tab")
    await expect(tab.get_by_label("Expression")).to_be_focused()
    await press(tab, "Control+a")
    await tab.keyboard.type("30 2 * * *")
    await expect(tab.locator("#preview .in-words")).to_have_text("At 02:30, UTC")
    await tab.get_by_label("URL").focus()
    await tab.keyboard.type("http://127.0.0.1/")
    payload = tab.get_by_label("Payload, as JSON")
    await payload.focus()
    await tab.keyboard.type('{"n": ')
    await expect(tab.locator("#fault-payload")).to_contain_text("not JSON")
    await tab.keyboard.type("1}")
    await expect(tab.locator("#fault-payload")).to_have_text("")
    await tab.get_by_role("button", name="Create job").press("Enter")
    await expect(tab.locator("#h-job")).to_have_text("by-hand")
    await press(tab, "e")
    await tab.get_by_label("Name", exact=True).fill("renamed")
    await press(tab, "Enter")
    await expect(tab.locator("#h-job")).to_have_text("renamed")
    await press(tab, "r")
    run = tab.locator("#run-dialog")
    await expect(run.get_by_label("Payload")).to_have_value('{\n  "n": 1\n}')
    await run.get_by_label("Payload").fill("[2")
    await expect(run.locator(".fault")).to_contain_text("not JSON")
    await run.get_by_label("Payload").fill("[12345678901234567890]")
    await run.get_by_label("Reason").fill("a try")
    await press(tab, "Enter")
    await expect(tab.locator("#done")).to_contain_text("The job is started")
    [execution] = (await page.client.get("/v1/executions")).json()["items"]
    assert execution["payload"] == [12345678901234567890]
    await tab.locator("#act-delete").press("Enter")
    await tab.locator("#delete-dialog [name=reason]").press("Enter")
    await expect(tab.locator(".titled .state")).to_have_text("Deleted")
    reasons = {entry["action"]: entry["reason"] for entry in (await page.client.get("/v1/audit")).json()["items"]}
    assert reasons["execution.run" if "execution.run" in reasons else "job.run"] == "a try"
    assert visitor.trouble == []


@proves("S7", "O5")
async def test_a_backfill_is_counted_before_it_starts(world: World, page: Served, browser: Browser) -> None:
    made = await world.submit(job("report", schedule=cron("*/10 * * * *")))
    visitor = await visit(browser, f"{page.url}/jobs/{made.id}", timezone_id="UTC")
    tab, dialog = visitor.page, visitor.page.locator("#backfill-dialog")
    await press(tab, "b")
    day = f"{world.now:%Y-%m-%d}"
    await dialog.get_by_label("From").fill(f"{day}T00:00:00")
    await dialog.get_by_label("To", exact=True).fill(f"{day}T01:00:00")
    await expect(dialog.locator("[data-count]")).to_have_text("7 of 7 fires would run.")
    assert (await page.client.get(f"/v1/jobs/{made.id}/backfills")).json()["items"] == []
    await dialog.get_by_label("Reason").press("Enter")
    await expect(tab.locator("#done")).to_contain_text("7 fires")
    await expect(tab.locator("#backfills")).to_contain_text("0 of 7")
    assert visitor.trouble == []


@proves("O5")
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_pages_of_jobs_fit_their_screen_and_axe_finds_nothing(
    world: World, page: Served, browser: Browser, scheme: Literal["light", "dark"]
) -> None:
    worker = await world.worker()
    made = await world.submit(
        job("x" * 60 + HOSTILE, schedule=every(60, world.now), labels={"team": "b" * 80}, key="k")
    )
    paused = await world.submit(job("paused", schedule=cron("0 9 * * 1-5")))
    await pause(world.database, DEFAULT_TENANT, paused.id)
    for report in (None, failed("no", retryable=False)):
        await world.advance(60)
        await world.plan()
        for assignment in await worker.lease():
            await worker.complete(assignment, report)
    width, other = (320, 1280) if scheme == "light" else (1280, 320)
    for path in ("/jobs", f"/jobs/{made.id}", f"/jobs/{made.id}/edit", "/jobs/new", "/schedules", "/executions"):
        viewport = {"width": width, "height": 800}
        visitor = await visit(browser, page.url + path, viewport=viewport, color_scheme=scheme)
        assert await visitor.overflow() <= 0, (path, width)
        assert await violations(visitor) == [], (path, width)
        if path == "/jobs":
            for key, dialog in (("Control+k", "find"), ("?", "keys")):
                await press(visitor.page, key)
                await expect(visitor.page.locator(f"#{dialog}-dialog")).to_be_visible()
                assert await violations(visitor) == [], (dialog, width)
                await press(visitor.page, "Escape")
        await visitor.page.set_viewport_size({"width": other, "height": 800})
        assert await visitor.overflow() <= 0, (path, other)
        assert visitor.trouble == []
        await visitor.page.close()


@proves("O5")
async def test_the_form_of_a_job_works_without_javascript(world: World, page: Served, browser: Browser) -> None:
    await world.worker()  # has registered the function
    visitor = await visit(browser, f"{page.url}/jobs/new", java_script_enabled=False)
    tab = visitor.page
    await tab.get_by_label("Name", exact=True).fill("plain")
    await tab.get_by_label("Calls").select_option("function")
    await tab.get_by_label("Function", exact=True).fill("f")
    await tab.get_by_label("Expression").fill("61 * * * *")
    await tab.get_by_role("button", name="Create job").click()
    await expect(tab.locator("#fault-expression")).not_to_have_text("")
    await tab.get_by_label("Expression").fill("1 * * * *")
    await tab.get_by_role("button", name="Create job").click()
    await expect(tab.locator("#h-job")).to_have_text("plain")
