"""One night with everything that goes wrong in it, repaired in the morning with the pages alone, from the first page.

Each repair is two clicks and a confirmation: "Last night", and the button beside the reason.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
from playwright.async_api import expect

from ondot.flow.alerts.conditions import report_condition
from ondot.flow.alerts.evaluate import Evaluator
from ondot.flow.bulk.turns import bulk_pass
from ondot.flow.expect.watch import expect_pass
from ondot.model.expect import Expect
from ondot.model.gates import Limits
from ondot.model.ids import DEFAULT_TENANT, JobId
from ondot.model.retry import Retry
from tests.flow.test_alerts import Alerts
from tests.flow.test_recover import lose
from tests.proves import proves
from tests.ui.browsing import needs_chromium, open_browser, visit
from tests.ui.serving import served
from tests.ui.test_runs_page import blocked_run
from tests.world import World, every, failed, job

Effect = Callable[[], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Night:
    late: JobId
    missed: JobId
    crowded: JobId


async def let_it_go_wrong(world: World) -> Night:
    """Failures, a blocked run, a missed fire, a late start, a lost worker, a limit, a quota and a channel."""
    await blocked_run(world)
    worker = await world.worker()
    for _ in range(2):
        await world.submit(job("import", key=None, retry=Retry(max_retries=0)))
    for attempt in await worker.lease():
        await worker.complete(attempt, failed("line 17 has no e-mail address", retryable=False))
    late = await world.submit(job("export", schedule=every(600, world.now), expect=Expect(start_within_s=60)))
    missed = await world.submit(job("backup", schedule=every(3600, world.now)))
    await world.fetch(
        "INSERT INTO ondot.skipped (job_id, from_at, to_at, tenant_no, reason, count, at)"
        " VALUES ($1, $2, $2, 1, 'misfire', 1, $2)",
        missed.id,
        world.now,
    )
    crowded = await world.submit(job("crawl", schedule=every(30, world.now), limits=Limits(concurrency=1)))
    await world.submit(job("long"))
    await worker.lease()
    await expect_pass(world.database)
    for _ in range(12):
        await world.advance(60)
        await world.plan()
    await lose(world, worker)
    await world.recover()
    await world.advance(1)
    await expect_pass(world.database)
    alerts = Alerts(world)
    for kind in ("quota", "delivery"):
        await alerts.define(kind, {kind: {}}, notify=[])
        async with world.database.connection() as connection:
            await report_condition(connection, kind, DEFAULT_TENANT, "s", f"the {kind} is at its end")
    await Evaluator(world.database, alerts.queue, rests=0).one_pass()
    return Night(late.id, missed.id, crowded.id)


@pytest.mark.timeout(240)
@needs_chromium
@proves("O10", "O5", "O4")
async def test_a_person_finds_and_repairs_the_night_from_the_first_page(world: World) -> None:
    night = await let_it_go_wrong(world)

    async def count(sql: str, *arguments: object) -> int:
        return int(await world.value(f"SELECT count(*) FROM ondot.{sql}", *arguments))

    async def letters() -> int:
        await bulk_pass(world.database, world.dispatcher)
        return await count("dead_letter WHERE resolution = 'replayed'")

    repairs: list[tuple[str, str, str, Effect]] = [
        ("Failed for good", "line 17 has no e-mail address", "Replay", letters),
        (
            "Blocked runs",
            "step check failed",
            "Retry from the failed step",
            lambda: count("run WHERE state <> 'BLOCKED'"),
        ),
        (
            "Missed fires",
            "missed in an outage",
            "Run the missed fires",
            lambda: count("backfill WHERE job_id = $1", night.missed),
        ),
        (
            "Expectations that were missed",
            "missed start_within",
            "Run now",
            lambda: count("execution WHERE job_id = $1", night.late),
        ),
        (
            "Held back by limits",
            "1 at a time",
            "Raise the limit to 2",
            lambda: count("job WHERE id = $1 AND version = 2", night.crowded),
        ),
        (
            "Open incidents",
            "the quota is at its end",
            "Acknowledge",
            lambda: count("incident WHERE acknowledged_at IS NOT NULL"),
        ),
    ]
    async with open_browser() as browser, served(world.database) as page:
        visitor = await visit(browser, page.url)
        tab = visitor.page
        # The first page names what waits for a person, without a click.
        for text in ("Open incidents", "Failed for good", "Blocked runs"):
            await expect(tab.get_by_role("heading", name=text)).to_be_visible()
        await expect(tab.locator("#open_incidents")).to_contain_text("the delivery is at its end")
        await tab.get_by_role("link", name="Last night", exact=True).click()
        for title, reason, button, effect in repairs:
            before = await effect()
            panel = tab.locator("section.panel", has=tab.get_by_role("heading", name=title)).first
            await expect(panel).to_contain_text(reason)
            finding = panel.locator("li.finding", has_text=reason).first
            await finding.get_by_role("button", name=button).first.click()
            await visitor.agree()
            # An operation on many has only started: its page shows the progress.
            await expect(tab.locator("#done")).to_contain_text(re.compile(f"(Done|Started): {button}"))
            assert await effect() > before, title
            await tab.reload()
        lost = tab.locator("section.panel", has=tab.get_by_role("heading", name="Lost workers"))
        await expect(lost).to_contain_text("was marked lost with 1 attempt")
        assert visitor.trouble == []
        # The navigation works without JavaScript and on a phone.
        plain = await visit(
            browser, f"{page.url}/report", java_script_enabled=False, viewport={"width": 320, "height": 640}
        )
        await plain.page.get_by_role("link", name="Settings").click()
        await plain.page.get_by_role("link", name="Channels").click()
        await expect(plain.page.get_by_role("heading", name="Channels")).to_be_visible()
        await plain.page.get_by_role("link", name="Operate").click()
        pages = plain.page.get_by_role("navigation", name="Operate")
        await expect(pages.get_by_role("link", name="Incidents")).to_be_visible()
