"""Many jobs changed from their list, in a real browser: selected, counted, confirmed, followed, undone."""

from playwright.async_api import expect

from ondot.flow.bulk.turns import bulk_pass
from tests.flow.workflows import start, step
from tests.proves import proves
from tests.ui.browsing import needs_chromium, open_browser, visit
from tests.ui.serving import served
from tests.world import World, every, job

pytestmark = needs_chromium


@proves("O8", "O5")
async def test_selected_jobs_and_all_that_match_are_paused_and_an_undo_resumes_them(world: World) -> None:
    await world.submit_all([job(f"bi-{n}", schedule=every(3600, world.now), labels={"team": "bi"}) for n in range(3)])

    async def paused() -> int:
        return int(await world.value("SELECT count(*) FROM ondot.job WHERE state = 'PAUSED'"))

    async with open_browser() as browser, served(world.database) as page:
        visitor = await visit(browser, f"{page.url}/jobs?q=label.team%3Dbi")
        tab = visitor.page
        await tab.get_by_label("Select bi-0").check()
        await expect(tab.locator("#picked")).to_have_text("1 selected")
        await tab.locator("[data-picked][data-act=pause]").click()
        await expect(tab.locator("#h-many")).to_have_text("Pause 1 job?")
        await tab.locator("#many-dialog").get_by_role("button", name="Start").click()
        await expect(tab.locator("#operations")).to_contain_text("0 of 1 job")
        await bulk_pass(world.database, world.dispatcher)
        await expect(tab.locator("#operations")).to_contain_text("1 of 1 job")
        assert await paused() == 1
        await tab.locator("[data-q][data-act=pause]").click()
        await expect(tab.locator("#h-many")).to_have_text("Pause 3 jobs?")
        await tab.locator("#many-dialog").get_by_role("button", name="Start").click()
        await expect(tab.locator("#operations")).to_contain_text("0 of 3 jobs")
        await world.advance(1)
        await bulk_pass(world.database, world.dispatcher)
        await expect(tab.locator("#operations")).to_contain_text("2 of 3 jobs")
        assert await paused() == 3
        await tab.get_by_role("button", name="Undo").first.click()
        await expect(tab.locator("#operations")).to_contain_text("0 of 2 jobs")
        await world.advance(1)
        await bulk_pass(world.database, world.dispatcher)
        await expect(tab.locator("#operations")).to_contain_text("2 of 2 jobs")
        assert await paused() == 1
        assert visitor.trouble == []
        await tab.close()


@proves("O8", "O5")
async def test_an_operation_on_runs_leads_to_its_progress_where_it_is_followed_stopped_and_undone(world: World) -> None:
    worker = await world.worker()
    for _ in range(2):
        await start(world, worker, {"a": step()})
        await worker.lease()
    async with open_browser() as browser, served(world.database) as page:
        visitor = await visit(browser, f"{page.url}/runs", viewport={"width": 390, "height": 800})
        tab = visitor.page
        await tab.locator("#pick-all").check()
        await expect(tab.locator("#picked")).to_have_text("2 selected")
        await tab.locator("[data-picked][data-act=pause]").click()
        await tab.locator("#many-dialog").get_by_role("button", name="Start").click()
        await tab.get_by_role("link", name="See its progress and results").click()
        await expect(tab.locator(".percent")).to_have_text("0 of 2 done")
        await bulk_pass(world.database, world.dispatcher)
        await expect(tab.locator(".percent")).to_have_text("2 of 2 done")
        await expect(tab.locator("tbody th a")).to_have_text(["flow", "flow"])
        assert await visitor.overflow() <= 0
        await tab.get_by_role("button", name="Undo").click()
        await visitor.agree()
        await tab.get_by_role("link", name="See its progress").click()
        await expect(tab.locator(".percent")).to_have_text("0 of 2 done")
        await tab.get_by_role("button", name="Stop").press("Enter")
        await expect(tab.locator("#operation .state").first).to_have_text("Stopped")
        await tab.get_by_role("link", name="All operations").click()
        await expect(tab.locator(".bulk-list tbody th a")).to_have_text(["Resume 2 runs", "Pause 2 runs"])
        assert await visitor.overflow() <= 0
        assert visitor.trouble == []
        await tab.close()
