"""Executions and dead letters in a real browser, with a real worker: followed, cancelled, replayed, on a phone."""

import asyncio
from collections.abc import AsyncIterator
from typing import Literal, get_args

import pytest
from playwright.async_api import Browser, expect

from ondot import Context, Ondot
from ondot.flow.bulk.turns import bulk_pass
from ondot.model.gates import Limits
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.outcome import AttemptError, Failed
from ondot.model.retry import Retry
from ondot.store.logs import LogLine, Progress, Stream, add_log_lines, save_progress
from tests.proves import proves
from tests.ui.browsing import needs_chromium, open_browser, visit
from tests.ui.serving import served
from tests.ui.test_browser import FAINT
from tests.ui.working import run_function, working
from tests.world import World, every, failed, job

pytestmark = needs_chromium


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as browser:
        yield browser


@proves("E9", "E14", "O5")
async def test_log_and_progress_are_shown_live(database_url: str, browser: Browser) -> None:
    app, go = Ondot(), asyncio.Event()

    @app.job
    async def report(ctx: Context) -> str:
        ctx.log("began", rows=3)
        print("<b>printed</b>")  # noqa: T201 - what a handler prints is captured
        await go.wait()
        ctx.progress(0.6, "more than half")
        ctx.heartbeat(checkpoint={"page": 7})
        ctx.log("went on")
        await end.wait()
        return "all well"

    end = asyncio.Event()
    async with working(database_url, app) as database, served(database) as page:
        id_ = await run_function(page, "report")
        visitor = await visit(browser, f"{page.url}/executions/{id_}")
        log = visitor.page.locator("#log")
        await expect(log).to_contain_text("began rows=3")
        await expect(log.locator(".stdout .text")).to_have_text("<b>printed</b>")
        await expect(log.locator(".handler .from").first).to_have_text("log")
        await expect(visitor.page.locator(".titled .state")).to_have_text("Running")
        go.set()
        await expect(log).to_contain_text("went on")
        await expect(visitor.page.locator(".advance progress")).to_have_js_property("value", 60)
        await expect(visitor.page.locator(".advance")).to_contain_text("more than half")
        await visitor.page.get_by_text("Checkpoint: a retry continues").click()
        await expect(visitor.page.locator("#checkpoint")).to_contain_text('"page": 7')
        end.set()
        await expect(visitor.page.locator(".titled .state")).to_have_text("Succeeded")
        await expect(visitor.page.locator("#result")).to_have_text('"all well"')
        await expect(visitor.page.locator("#log-state")).to_have_text("complete")
        await expect(log.locator(".line")).to_have_count(3)
        whole = await visitor.page.locator("#whole-log").get_attribute("href")
        assert "went on" in (await page.client.get(str(whole))).text
        assert visitor.trouble == []
        await visitor.page.close()


@proves("E8", "O5")
async def test_a_running_execution_is_cancelled_from_its_page(database_url: str, browser: Browser) -> None:
    app = Ondot()

    @app.job
    async def endless(ctx: Context) -> None:
        ctx.log("began")
        await asyncio.Event().wait()

    async with working(database_url, app) as database, served(database) as page:
        id_ = await run_function(page, "endless")
        visitor = await visit(browser, f"{page.url}/executions/{id_}")
        await expect(visitor.page.locator("#log")).to_contain_text("began")
        await visitor.page.get_by_role("button", name="Cancel", exact=True).click()
        await visitor.page.get_by_role("button", name="Keep it").click()
        assert (await page.client.get(f"/v1/executions/{id_}")).json()["cancel_requested_at"] is None
        await visitor.page.get_by_role("button", name="Cancel", exact=True).click()
        await visitor.page.locator("#cancel-dialog").get_by_label("Reason (recorded)").fill("wrong region")
        await visitor.page.get_by_role("button", name="Cancel it").click()
        await expect(visitor.page.locator("#done")).to_have_text("The execution was asked to stop.")
        await expect(visitor.page.locator(".titled .state")).to_have_text("Cancelled", timeout=15_000)
        await expect(visitor.page.locator(".sentence")).to_contain_text("cancelled by local: wrong region")
        [entry] = (await page.client.get("/v1/audit", params={"subject": str(id_)})).json()["items"]
        assert (entry["actor"], entry["action"], entry["detail"]["reason"]) == (
            "local",
            "execution.cancel",
            "wrong region",
        )
        assert visitor.trouble == []
        await visitor.page.close()


@proves("E10", "O5")
async def test_a_dead_letter_is_replayed_with_an_edited_payload(database_url: str, browser: Browser) -> None:
    app = Ondot()

    @app.job
    async def order(number: int) -> int:
        if number < 9_007_199_254_740_993:
            raise ValueError(f"there is no order {number}")
        return number

    async with working(database_url, app) as database, served(database) as page:
        id_ = await run_function(page, "order", {"number": 1}, max_retries=0)
        visitor = await visit(browser, f"{page.url}/dead-letters")
        group = visitor.page.get_by_role("link", name="there is no order")
        await group.click(timeout=15_000)
        await visitor.page.get_by_role("link", name="Edit and replay").click()
        payload = visitor.page.get_by_label("Payload, as JSON")
        await expect(payload).to_have_value('{\n  "number": 1\n}')
        await payload.fill('{"number": ')
        await expect(visitor.page.locator("#again-dialog .fault")).to_contain_text("This is not JSON")
        await visitor.page.get_by_role("button", name="Replay it").click()
        await expect(payload).to_be_visible()
        await payload.fill('{"number": 9007199254740993}')
        await visitor.page.get_by_role("button", name="Replay it").click()
        await visitor.page.get_by_role("link", name="the new execution").click()
        await expect(visitor.page.locator(".titled .state")).to_have_text("Succeeded")
        await expect(visitor.page.locator("#result")).to_have_text("9007199254740993")
        await visitor.page.locator("#replay-of").click()
        await expect(visitor.page.locator(".letter")).to_contain_text("Replayed")
        await expect(visitor.page.locator("nav .badge")).to_have_count(0)
        assert visitor.page.url.endswith(str(id_))
        assert visitor.trouble == []
        await visitor.page.close()


async def letters(world: World, count: int = 4) -> list[str]:
    """Dead letters of one group."""
    await world.submit_all([job(f"order-{n}", retry=Retry(max_retries=0)) for n in range(count)])
    worker = await world.worker()
    leased = await worker.lease()
    for n, one in enumerate(leased):
        await worker.complete(one, failed(f"order {n} is gone"))
    return [str(one.leased.id) for one in leased]


@proves("E10", "O5")
async def test_selected_letters_are_counted_and_replayed(world: World, browser: Browser) -> None:
    first, second, *_ = await letters(world)
    async with served(world.database) as page:
        visitor = await visit(browser, f"{page.url}/dead-letters")
        await visitor.page.locator(".group h3 a").click()
        await expect(visitor.page.locator("#replay-picked")).to_be_disabled()
        await visitor.page.locator(f"#pick-{first}").check()
        await visitor.page.locator(f"#pick-{second}").check()
        await expect(visitor.page.locator("#picked")).to_have_text("2 selected")
        # Another client discards one of them meanwhile: only the other is counted.
        await page.client.post("/v1/dead-letters/discard", json={"ids": [first], "reason": "not needed"})
        await visitor.page.locator("#replay-picked").click()
        await expect(visitor.page.locator("#h-replay")).to_have_text("Run this letter again?")
        await visitor.page.get_by_role("button", name="Replay", exact=True).last.click()
        await expect(visitor.page.locator("#done")).to_contain_text("1 letter was replayed.")
        await expect(visitor.page.locator("#done")).to_contain_text("It was discarded by local")
        await expect(visitor.page.locator(".letter-list li")).to_have_count(2)
        assert visitor.trouble == []
        await visitor.page.close()


@proves("E10", "O8", "O5")
async def test_a_whole_group_is_counted_and_discarded_in_the_background_with_progress(
    world: World, browser: Browser
) -> None:
    await letters(world, 5)
    async with served(world.database) as page:
        visitor = await visit(browser, f"{page.url}/dead-letters")
        await visitor.page.get_by_role("button", name="Discard all").click()
        await expect(visitor.page.locator("#h-discard")).to_have_text("Discard 5 letters?")
        await visitor.page.get_by_role("button", name="Discard", exact=True).last.click()
        await expect(visitor.page.locator("#discard-dialog")).to_be_visible()  # a reason is required
        await visitor.page.locator("#discard-dialog").get_by_label("Reason (recorded)").fill("orders were cancelled")
        await visitor.page.locator("#discard-dialog").get_by_label("Per second").fill("1")
        await visitor.page.get_by_role("button", name="Discard", exact=True).last.click()
        operations = visitor.page.locator("#operations")
        await expect(operations).to_contain_text("0 of 5 letters")
        await bulk_pass(world.database, world.dispatcher)
        await expect(operations.locator("progress")).to_have_js_property("value", 1)
        for _ in range(5):
            await world.advance(1)
            await bulk_pass(world.database, world.dispatcher)
        await expect(operations).to_contain_text("5 of 5 letters")
        await expect(visitor.page.locator("#letters")).to_contain_text("No failed execution waits")
        assert visitor.trouble == []
        await visitor.page.close()


@proves("O5")
async def test_open_details_stay_open_when_the_page_requests_itself_again(world: World, browser: Browser) -> None:
    await world.submit(job("report"))
    worker = await world.worker()
    (running,) = await worker.lease()
    async with world.database.connection() as connection:
        await save_progress(connection, worker.id, [Progress(running.leased.id, 1, '{"page": 1}', 0.1, "page 1")])
    async with served(world.database) as page:
        visitor = await visit(browser, f"{page.url}/executions/{running.leased.id}")
        details = visitor.page.locator("#checkpoint-details")
        await details.locator("summary").click()
        shown = await visitor.page.locator("#execution").element_handle()
        await world.advance(5)
        await visitor.page.evaluate(
            "new Promise((settled) => { document.body.addEventListener('htmx:afterSettle', settled, { once: true });"
            " htmx.trigger('#execution', 'changed'); }).then(() => null)"
        )
        assert await shown.evaluate("(element) => element.isConnected")  # nothing changed: nothing was swapped
        await expect(visitor.page.locator("#liveness time")).to_have_attribute("datetime", world.now.isoformat())
        async with world.database.connection() as connection:
            await save_progress(connection, worker.id, [Progress(running.leased.id, 1, '{"page": 2}', 0.2, "page 2")])
        await expect(visitor.page.locator(".advance")).to_contain_text("page 2")
        assert await details.evaluate("(details) => details.open")
        await visitor.page.close()


@proves("E17", "O5")
async def test_a_job_shows_why_it_is_not_running_and_its_limits(world: World, browser: Browser) -> None:
    accepted = await world.submit(
        job("report", pool="gpu", schedule=every(3600, world.now), limits=Limits(concurrency=2))
    )
    id_ = await world.run_now(accepted.id)
    async with served(world.database) as page:
        visitor = await visit(browser, f"{page.url}/jobs/{accepted.id}")
        await expect(visitor.page.locator("#why-not")).to_contain_text("1 execution running or planned")
        await visitor.page.get_by_text("Why it waits, in detail").click()
        await expect(visitor.page.locator(f"#why a[href='/executions/{id_}']")).to_be_visible()
        await expect(visitor.page.locator(".facts")).to_contain_text("At most 2 at a time")
        assert visitor.trouble == []
        await visitor.page.close()


@proves("O5")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
async def test_these_pages_fit_their_screen_in_both_themes(
    world: World, browser: Browser, width: int, scheme: Literal["light", "dark"]
) -> None:
    long = "quite_a_long-name" * 8
    await world.submit_all([job(long, retry=Retry(max_retries=0)), job("other", payload=b'"' + b"x" * 300 + b'"')])
    worker = await world.worker()
    broke, running = await worker.lease()
    await worker.complete(broke, Failed(AttemptError("broken", "y" * 300, "trace " + "z" * 400), retryable=False))
    at = running.leased
    async with world.database.connection() as connection:
        await save_progress(connection, worker.id, [Progress(at.id, 1, '"' + "c" * 300 + '"', 0.3, "m" * 200)])
        lines = [
            LogLine(at.id, 1, n + 1, DEFAULT_TENANT, world.now, stream, "w" * 300)
            for n, stream in enumerate(get_args(Stream))
        ]
        await add_log_lines(connection, lines)
    letter = broke.leased.id
    async with served(world.database) as page:
        group = (await page.client.get("/v1/dead-letters/groups")).json()["items"][0]["fingerprint"]
        for path in (
            f"/executions/{at.id}",
            f"/executions/{letter}#again",
            "/executions",
            "/dead-letters",
            f"/dead-letters?fingerprint={group}",
        ):
            viewport = {"width": width, "height": 800}
            visitor = await visit(browser, page.url + path, viewport=viewport, color_scheme=scheme)
            if path == f"/executions/{at.id}":
                await expect(visitor.page.locator("#log .line")).to_have_count(3)
            if path.endswith("#again"):
                await expect(visitor.page.locator("#again-dialog")).to_be_visible()
            assert await visitor.overflow() <= 0, path
            assert await visitor.page.evaluate(FAINT) == [], path
            assert visitor.trouble == [], path
            await visitor.page.close()
