"""The page of sinks: what waits, why one fails, and the buttons for those who may use them (E3)."""

from aiohttp import web

from tests.api.keys import make_key_with
from tests.proves import proves
from tests.sinks import open_sinks
from tests.ui.serving import served
from tests.world import World, job


@proves("E3", "O5")
async def test_the_page_shows_what_waits_and_why(world: World) -> None:
    viewer, admin = await make_key_with(world, "viewer"), await make_key_with(world, "admin")
    async with open_sinks(world) as sinks, served(world.database, auth="on") as page:
        assert "There are no sinks yet." in (await page.client.get("/sinks", headers=admin)).text
        await sinks.add("ondot.execution.succeeded", path="/?q=<b>")
        sinks.receiver.answer(lambda: web.Response(status=500))
        await world.submit(job())
        await (await world.worker()).run_one()
        await sinks.deliver()
        html = (await page.client.get("/sinks", headers=admin)).text
        assert "FAILING" in html
        assert "The receiver answered 500 Internal Server Error." in html
        assert 'data-act="pause"' in html
        assert "<b>" not in html
        assert (
            'data-act="pause"'
            not in (await page.client.get("/sinks", headers={"authorization": f"Bearer {viewer}"})).text
        )
