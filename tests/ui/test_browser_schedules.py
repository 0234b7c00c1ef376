"""The preview of a schedule and a job's page in a real browser: typing, sharing, buttons, small screens, dark theme."""

import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Literal

import pytest
from playwright.async_api import Browser, expect

from ondot.model.schedule import Cron, Schedule
from tests.proves import proves
from tests.ui.browsing import needs_chromium, open_browser, visit
from tests.ui.serving import served
from tests.ui.test_browser import FAINT
from tests.world import World, cron, every, failed, job

pytestmark = needs_chromium

SPRING = "/schedules?expression=30+2+*+*+*&timezone=Europe/Berlin&after=2026-03-28T12:00&n=3&country=DE"


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as browser:
        yield browser


@proves("S9")
async def test_typing_updates_the_preview_and_the_address_can_be_shared(world: World, browser: Browser) -> None:
    async with served(world.database) as page:
        visitor = await visit(browser, f"{page.url}/schedules")
        expression = visitor.page.get_by_label("Expression")
        await expect(expression).to_be_focused()
        await expression.fill("30 2 * * *")
        await expect(visitor.page.get_by_role("status")).to_have_text("At 02:30, Europe/Berlin")
        await visitor.page.get_by_label("After (in that zone)").fill("2026-03-28T12:00:00")
        await expect(visitor.page.locator(".coming tbody tr").first).to_contain_text("shifted")
        await visitor.page.get_by_label("In a skipped hour").select_option("skip")
        await expect(visitor.page.locator(".skips").first).to_contain_text("Sun 29 Mar 2026, 02:30")
        assert "gap=skip" in visitor.page.url
        assert "fold" not in visitor.page.url

        colleague = await visit(browser, visitor.page.url)
        assert await colleague.page.get_by_label("Expression").input_value() == "30 2 * * *"
        written = await visitor.page.locator("#as-json").text_content()
        assert await colleague.page.locator("#as-json").text_content() == written
        assert visitor.trouble + colleague.trouble == []


@proves("S9")
async def test_an_error_is_shown_at_its_field_until_it_is_fixed(world: World, browser: Browser) -> None:
    async with served(world.database) as page:
        visitor = await visit(browser, f"{page.url}/schedules")
        expression = visitor.page.get_by_label("Expression")
        await expression.fill("0 0 30 2 *")
        await expect(visitor.page.locator("#fault-expression")).to_contain_text("never")
        await expect(expression).to_have_attribute("aria-invalid", "true")
        await expect(visitor.page.locator("#preview table")).to_have_count(0)
        await expression.fill("0 0 28 2 *")
        await expect(expression).to_have_attribute("aria-invalid", "false")
        await expect(visitor.page.locator("#fault-expression")).to_have_text("")
        await expect(visitor.page.locator("#preview table")).to_have_count(1)
        assert visitor.trouble == []


@proves("S9")
async def test_each_invalid_field_has_its_error_and_the_old_preview_is_removed(world: World, browser: Browser) -> None:
    async with served(world.database) as page:
        visitor = await visit(browser, f"{page.url}/schedules")
        await expect(visitor.page.locator("#preview table")).to_have_count(1)
        for label, text in (("How many", "5000"), ("Exclude holidays of", "XX"), ("Jitter", "2d")):
            await visitor.page.get_by_label(label).fill(text)
        for name in ("n", "country", "jitter"):
            await expect(visitor.page.locator(f"#fault-{name}")).not_to_have_text("")
        await expect(visitor.page.locator("#preview table")).to_have_count(0)
        await expect(visitor.page.locator("#in-words")).to_contain_text("is not valid")
        assert visitor.trouble == []


@proves("S9")
async def test_a_preview_is_marked_as_outdated_if_the_server_does_not_answer(world: World, browser: Browser) -> None:
    async with served(world.database) as page:
        visitor = await visit(browser, f"{page.url}/schedules")
        await visitor.page.route("**/schedules?**", lambda route: route.abort())
        await visitor.page.get_by_label("Expression").fill("0 10 * * *")
        await expect(visitor.page.locator("#fault-form")).to_contain_text("does not answer")
        await expect(visitor.page.locator("#preview")).to_have_class("outdated")
        await visitor.page.unroute("**/schedules?**")
        await visitor.page.get_by_label("Expression").fill("0 11 * * *")
        await expect(visitor.page.locator("#in-words")).to_have_text("At 11:00, Europe/Berlin")
        await expect(visitor.page.locator("#fault-form")).to_have_text("")


@proves("S9", "S3")
async def test_each_kind_keeps_its_own_text_and_a_rule_may_have_lines(world: World, browser: Browser) -> None:
    async with served(world.database) as page:
        visitor = await visit(browser, f"{page.url}/schedules")
        kind, expression = visitor.page.get_by_label("Kind"), visitor.page.get_by_label("Expression")
        status = visitor.page.get_by_role("status")
        await expression.fill("0 10 * * *")
        await kind.select_option("every")
        await expect(status).to_have_text("Every 15 minutes")
        await kind.select_option("rrule")
        await expression.fill("DTSTART:20300101T090000")
        await expression.press("End")
        await expression.press("Enter")
        await expression.press_sequentially("RRULE:FREQ=YEARLY")
        await expect(visitor.page.locator(".coming tbody tr").first).to_contain_text("1 Jan 2030")
        await expect(visitor.page.locator("#fault-expression")).to_have_text("")
        await kind.select_option("cron")
        await expect(expression).to_have_value("0 10 * * *")
        await expression.press("Enter")
        await expect(status).to_have_text("At 10:00, Europe/Berlin")
        await expect(expression).to_have_value("0 10 * * *")
        assert visitor.trouble == []


@proves("S9")
async def test_no_field_is_clipped_on_a_narrow_screen(world: World, browser: Browser) -> None:
    async with served(world.database) as page:
        visitor = await visit(browser, f"{page.url}/schedules", viewport={"width": 390, "height": 800})
        for label in ("In a skipped hour", "In a repeated hour", "Business days", "After (in that zone)"):
            box = await visitor.page.get_by_label(label).bounding_box()
            assert box is not None
            assert box["width"] > 300, label


@proves("S9")
async def test_the_copied_json_is_that_of_the_last_input(world: World, browser: Browser) -> None:
    async with served(world.database) as page:
        context = await browser.new_context(permissions=["clipboard-read", "clipboard-write"])
        typing = await context.new_page()
        await typing.goto(f"{page.url}/schedules")
        await typing.get_by_label("Kind").select_option("every")
        await typing.get_by_label("Expression").fill("15m")
        await expect(typing.get_by_role("status")).to_have_text("Every 15 minutes")
        await expect(typing.get_by_label("Time zone")).to_be_hidden()
        await typing.locator(".copyable", has=typing.locator("#as-json")).get_by_role("button").click()
        await expect(typing.get_by_role("button", name="Copied")).to_be_visible()
        assert await typing.evaluate("navigator.clipboard.readText()") == '{\n  "every": "15m"\n}'
        await context.close()


@proves("S9")
async def test_without_javascript_the_form_can_be_sent_by_hand(world: World, browser: Browser) -> None:
    async with served(world.database) as page:
        context = await browser.new_context(java_script_enabled=False)
        plain = await context.new_page()
        await plain.goto(f"{page.url}/schedules")
        await plain.get_by_label("Expression").fill("@hourly")
        await plain.get_by_role("button", name="Show").click()
        await expect(plain.locator("#in-words")).to_have_text("Every hour, Europe/Berlin")
        await context.close()


@proves("S9", "O5")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
async def test_both_pages_fit_their_screen_in_both_themes(
    world: World, browser: Browser, width: int, scheme: Literal["light", "dark"]
) -> None:
    crowded = Schedule(when=Cron(expression="*/20 9-17 1,15 1-6 1-5", timezone="America/Argentina/Buenos_Aires"))
    coming = await world.submit(job("quite_a_long-name_for_a_job" * 4, schedule=crowded, labels={"team": "x" * 60}))
    ran = await world.submit(job("short"))
    await (await world.worker()).run_one(failed("x" * 200, retryable=False))
    async with served(world.database) as page:
        for path in (SPRING, "/schedules?expression=99+*", "/jobs", f"/jobs/{coming.id}", f"/jobs/{ran.id}"):
            viewport = {"width": width, "height": 800}
            visitor = await visit(browser, page.url + path, viewport=viewport, color_scheme=scheme)
            assert await visitor.overflow() <= 0, path
            assert await visitor.page.evaluate(FAINT) == [], path
            await visitor.page.close()


@proves("S8", "O5")
async def test_a_job_is_paused_and_resumed_by_its_buttons(world: World, browser: Browser) -> None:
    accepted = await world.submit(job("report", schedule=every(600, world.now)))
    async with served(world.database) as page:
        visitor = await visit(browser, f"{page.url}/jobs/{accepted.id}")
        pause = visitor.page.get_by_role("button", name="Pause", exact=True)
        await pause.click()
        await visitor.page.keyboard.press("Escape")
        await expect(pause).to_be_focused()
        assert (await world.job(accepted.id)).state.value == "ACTIVE"
        await pause.click()
        await visitor.page.locator("dialog[open] [name=reason]").press("Enter")
        await expect(visitor.page.locator(".titled .state")).to_have_text("Paused")
        await expect(visitor.page.locator("#done")).to_have_text("The job is paused.")
        assert (await world.job(accepted.id)).state.value == "PAUSED"
        await visitor.page.get_by_role("button", name="Resume", exact=True).click()
        await visitor.agree()
        await expect(visitor.page.locator(".titled .state")).to_have_text("Active")
        assert visitor.trouble == []


@proves("O5")
async def test_run_now_starts_an_execution_and_an_error_is_shown_in_words(world: World, browser: Browser) -> None:
    accepted = await world.submit(job("report", schedule=every(600, world.now)))
    async with served(world.database) as page:
        visitor = await visit(browser, f"{page.url}/jobs/{accepted.id}")
        run = visitor.page.get_by_role("button", name="Run now")
        await run.click()
        await visitor.agree()
        await expect(visitor.page.locator(".executions .mark")).to_have_text("run")
        await run.click()
        await page.client.delete(f"/v1/jobs/{accepted.id}")
        await visitor.agree()
        await expect(visitor.page.locator("#refusal")).to_contain_text("is deleted: create it again")


@proves("S7", "O5")
async def test_backfills_are_listed_with_their_progress_and_cancelled_by_a_button(
    world: World, browser: Browser
) -> None:
    accepted = await world.submit(job("report", schedule=cron("*/10 * * * *")))
    day = f"{world.now - timedelta(days=1):%Y-%m-%d}"
    body = {"from_at": f"{day}T10:00:00Z", "to_at": f"{day}T11:00:00Z", "concurrency": 2}
    async with served(world.database) as page:
        made = await page.client.post(f"/v1/jobs/{accepted.id}/backfill", json=body)
        assert made.status_code == 202
        await world.advance(1)
        await world.work_off()
        worker = await world.worker()
        await worker.complete_all(await worker.lease())
        visitor = await visit(browser, f"{page.url}/jobs/{accepted.id}")
        backfills = visitor.page.locator("#backfills")
        await expect(backfills).to_contain_text("2 of 7")
        await expect(backfills.locator("th[scope=row]")).to_contain_text("10:00:00 to")
        await expect(backfills.locator("th[scope=row]")).to_contain_text("11:00:00")
        assert not re.search(r"[AP]M", await backfills.inner_text())
        await expect(backfills.locator("progress")).to_have_js_property("value", 2)
        await backfills.get_by_role("button", name="Cancel").click()
        await visitor.agree()
        await expect(backfills.locator(".state")).to_have_text("Cancelled")
        await expect(backfills.get_by_role("button", name="Cancel")).to_have_count(0)
        assert visitor.trouble == []


@proves("S7", "O5")
async def test_the_range_of_a_backfill_takes_few_lines_on_a_narrow_screen(world: World, browser: Browser) -> None:
    accepted = await world.submit(job("report", schedule=cron("*/10 * * * *")))
    day = f"{world.now - timedelta(days=1):%Y-%m-%d}"
    async with served(world.database) as page:
        body = {"from_at": f"{day}T10:00:00Z", "to_at": f"{day}T11:00:00Z"}
        await page.client.post(f"/v1/jobs/{accepted.id}/backfill", json=body)
        visitor = await visit(browser, f"{page.url}/jobs/{accepted.id}", viewport={"width": 390, "height": 800})
        box = await visitor.page.locator("#backfills th[scope=row]").bounding_box()
        assert box is not None
        assert box["height"] < 75  # two lines, and one of notes
        assert await visitor.overflow() <= 0
