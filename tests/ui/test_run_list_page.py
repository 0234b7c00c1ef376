"""`/runs`: runs of all workflows, searched, filtered, page by page, and how a person gets there (W8, O1, O5)."""

import re

import pytest

from ondot.model.access import Role
from ondot.store import search_runs
from ondot.ui import runs as runs_page
from tests.api.conftest import key_of
from tests.flow.workflows import run_steps, start, step
from tests.proves import proves
from tests.ui.serving import served
from tests.world import World, failed


def shown(html: str) -> list[str]:
    return re.findall(r'id="run-([0-9a-f-]{36})"', html)


@proves("W8", "O1", "O5")
async def test_runs_of_all_workflows_are_found_by_a_search_a_state_and_page_by_page(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await world.worker()
    good = await start(world, worker, {"a": step(), "b": step("a")}, labels={"team": "bi"})
    await run_steps(world, worker, good)
    bad = await start(world, worker, {"a": step(), "b": step("a")})
    await run_steps(world, worker, bad, {"a": failed("no <b>answer</b>", retryable=False)})
    async with served(world.database) as page:

        async def read(**query: str) -> str:
            answer = await page.client.get("/runs", params=query)
            assert answer.status_code == 200
            return str(answer.text)

        html = await read()
        assert shown(html) == [str(bad), str(good)]
        assert "2 of 2" in html
        assert "0 of 2" in html
        assert "1 failed, 1 blocked" in html
        assert "<b>answer" not in html
        assert shown(await read(state="BLOCKED")) == shown(await read(q="state:blocked")) == [str(bad)]
        assert shown(await read(q="label.team=bi", within="24h")) == [str(good)]
        wrong = await read(q="stat:failed")
        assert "Unknown field &#39;stat&#39;. Did you mean state?" in wrong
        none = await read(state="CANCELLED")
        assert "No run matches." in none
        assert shown(await read(state="nonsense", within="x", cursor="y")) == shown(html)
        monkeypatch.setattr(runs_page, "PAGE_SIZE", 1)
        first = await read()
        assert shown(first) == [str(bad)]
        [older] = re.findall(r'href="(/runs\?cursor=[^"]+)"', first)
        assert shown((await page.client.get(older)).text) == [str(good)]
        monkeypatch.setattr(search_runs.search_runs, "__defaults__", (None, 50, 1e-9))
        assert "Search further back" in await read(q="job:no-such")


@proves("W8", "O5")
async def test_the_list_of_runs_is_reached_from_the_workflow_and_offers_files_and_views(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, {"a": step()})
    async with served(world.database) as page:
        item = (await page.client.get(f"/v1/runs/{run}")).json()
        for path in (f"/jobs/{item['job_id']}", f"/jobs/{item['job_id']}/runs"):
            [address] = re.findall(r'href="(/runs\?q=job:[^"]+)"', (await page.client.get(path)).text)
            html = (await page.client.get(address)).text
            assert shown(html) == [str(run)]
        assert '<a href="/runs" title="Runs of workflows" aria-current="page">Runs</a>' in html
        [file] = re.findall(r'href="(/v1/runs\?[^"]*format=csv)"', html)
        lines = (await page.client.get(file.replace("&amp;", "&"))).text.splitlines()
        assert len(lines) == 2
        saved = {"name": "flows", "of": "runs", "q": "job:flow", "shared": True}
        assert (await page.client.post("/v1/views", json=saved)).status_code == 201
        assert '<a href="/runs?q=job%3Aflow"' in (await page.client.get("/runs")).text
        assert '<a href="/runs" title="Runs of workflows"' in (await page.client.get(f"/runs/{run}")).text


@proves("T1", "O5")
async def test_a_viewer_sees_runs_without_buttons_and_another_tenant_sees_none(world: World) -> None:
    acme = await world.add_tenant("acme")
    worker = await world.worker()
    run = await start(world, worker, {"a": step()})
    async with served(world.database, auth="on") as page:
        admin = (await page.client.get("/runs", headers=await key_of(world, 1, Role.ADMIN))).text
        assert 'data-act="cancel"' in admin
        viewer = (await page.client.get("/runs", headers=await key_of(world, 1, Role.VIEWER))).text
        assert shown(viewer) == [str(run)]
        assert "data-act=" not in viewer
        other = (await page.client.get("/runs", headers=await key_of(world, acme, Role.ADMIN))).text
        assert shown(other) == []
        assert "No workflow has run yet." in other
