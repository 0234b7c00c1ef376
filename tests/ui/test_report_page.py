"""The report and the expectations of a job where people see them: pages and commands, against one served world."""

import asyncio
import json

from ondot.flow.expect.watch import expect_pass
from ondot.model.access import Role
from ondot.model.expect import Expect
from tests.api.conftest import key_of
from tests.cli.running import ondot
from tests.proves import proves
from tests.ui.serving import served
from tests.world import World, every, failed, job


@proves("O10", "O11", "O5")
async def test_pages_and_commands_show_what_was_missed_and_how_to_repair_it(world: World) -> None:
    schedule = every(600, world.now)
    made = await world.submit(job("ex<b>port", schedule=schedule, expect=Expect(start_within_s=60, end_by="06:00")))
    await world.submit(job("broken"))
    worker = await world.worker()
    [attempt] = await worker.lease()
    await worker.complete(attempt, failed("<script>alert(1)</script>", retryable=False))
    await expect_pass(world.database)
    await world.advance(600)
    await world.plan()
    await world.advance(61)
    await expect_pass(world.database)
    async with served(world.database) as page:
        html = (await page.client.get("/report")).text
        assert "2 things need a person" in html
        assert "missed start_within" in html
        assert f'data-path="/v1/jobs/{made.id}/run"' in html
        assert 'data-path="/v1/dead-letters/replay"' in html
        assert "<script>alert" not in html
        assert "ex<b>port" not in html
        faulty = (await page.client.get("/report", params={"since": "soon", "zone": "Mars"})).text
        assert "There is no time zone" in faulty
        shown = (await page.client.get(f"/jobs/{made.id}")).text
        assert "Missed expectations" in shown
        assert "has succeeded by 06:00 UTC" in shown
        explained = (await page.client.get(f"/v1/jobs/{made.id}/explain")).json()
        [reason] = [one for one in explained["reasons"] if one["code"] == "expectation"]
        assert reason["message"].startswith("It has not started 1 minute after it was due")
        [live] = [row for row in await world.executions(made.id) if row.fire_at <= world.now]
        of_run = (await page.client.get(f"/v1/executions/{live.id}/explain")).json()
        assert "expectation" in {one["code"] for one in of_run["reasons"]}
        [miss] = (await page.client.get(f"/v1/jobs/{made.id}/misses")).json()["items"]
        assert (miss["which"], miss["cleared_at"], miss["execution_id"]) == ("start_within", None, str(live.id))
        read = (await page.client.get(f"/v1/jobs/{made.id}")).json()["expect"]
        assert read == {"start_within": 60, "end_within": None, "end_by": "06:00", "success_every": None}
        printed = await asyncio.to_thread(ondot, "report", "--since", "yesterday", "--exit-code", url=page.url)
        assert printed.code == 1
        assert "FAILED FOR GOOD" in printed.out
        assert f"Replay: ondot dead-letter replay {attempt.leased.id}" in printed.out
        as_json = await asyncio.to_thread(ondot, "report", "-o", "json", url=page.url)
        assert json.loads(as_json.out)["open"] == 2
        listed = await asyncio.to_thread(ondot, "job", "misses", str(made.id), url=page.url)
        assert "missed start_within (open)" in listed.out
    async with served(world.database, auth="on") as page:
        viewer = (await page.client.get("/report", headers=await key_of(world, 1, Role.VIEWER))).text
        assert "2 things need a person" in viewer
        assert "data-path" not in viewer
