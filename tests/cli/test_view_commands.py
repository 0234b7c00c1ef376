"""`ondot view`, and `-V` and `-o csv` of the lists, on a real server."""

import asyncio
from typing import Any

import httpx2

from tests.cli.running import ondot
from tests.proves import proves
from tests.ui.serving import served
from tests.world import World, failed


@proves("O1", "O2")
async def test_a_saved_view_lists_what_its_query_finds(world: World) -> None:
    async with served(world.database) as api, httpx2.AsyncClient(base_url=api.url, timeout=60) as http:

        async def run(*words: str) -> Any:
            return await asyncio.to_thread(ondot, *words, url=api.url)

        for name in ("nightly", "=hourly"):
            job = {"name": name, "function": "f", "labels": {"team": "bi"}, "max_retries": 0}
            assert (await http.post("/v1/jobs", json=job)).status_code == 201
        worker = await world.worker()
        for assignment in await worker.lease():
            await worker.complete(assignment, failed("it timed out"))

        made = await run("view", "create", "bi failed", "-q", "state:failed label.team=bi")
        assert "ondot execution list -V 'bi failed'" in made.out, made.err
        wrong = await run("view", "create", "wrong", "-q", "stat:failed")
        assert wrong.code == 2
        assert "Did you mean state?" in wrong.err
        listed = await run("execution", "list", "-V", "bi failed", "-q", "nightly")
        assert ("nightly" in listed.out, "hourly" in listed.out) == (True, False)
        table = await run("execution", "list", "-V", "bi failed", "-o", "csv")
        assert table.out.startswith("id,job_id,")
        assert "'=hourly" in table.out, "a spreadsheet must not run it"
        assert (await run("execution", "list", "-V", "none")).code == 3
        assert "state:failed" in (await run("view", "list")).out

        await run("view", "create", "bi failed", "--of", "dead_letters", "-q", '"timed out" job:nightly')
        letters = await run("dead-letter", "list", "-V", "bi failed", "-o", "csv")
        assert letters.out.count("timed out") == 1
        several = await run("view", "delete", "bi failed", "--yes")
        assert several.code == 2
        assert "--of" in several.err
        renamed = await run("view", "update", "bi failed", "--of", "jobs", "--shared")
        assert renamed.code == 3
        renamed = await run("view", "update", "bi failed", "--of", "dead_letters", "--rename", "late", "--shared")
        assert renamed.code == 0, renamed.err
        for path, shown in (("/executions", "bi failed"), ("/dead-letters", "late")):
            assert f">{shown}</a>" in (await http.get(path)).text
        page = (await http.get("/executions", params={"q": "took>1s"})).text
        assert 'data-view-save="took&gt;1s"' in page
        assert "Deleted the view late." in (await run("view", "delete", "late", "--yes")).out
