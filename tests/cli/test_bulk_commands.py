"""`ondot bulk`, `-q` of other commands, and `ondot export`, against the API as it is served."""

import asyncio
import json
import re
from pathlib import Path

from fastapi.routing import APIRoute

from ondot.api.export import columns_of
from ondot.api.server import PARTS
from ondot.cli.export import LISTS
from ondot.flow.bulk.turns import bulk_pass
from tests.cli.running import Ran
from tests.cli.test_dead_letter_commands import answer, flat, run
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import World, every, job, once


async def run_while_working(world: World, page: Served, *words: str) -> Ran:
    """Run a command that follows an operation, while a scheduler works it off."""
    running = asyncio.create_task(run(page, *words))
    async with asyncio.timeout(60):
        while not running.done():
            await bulk_pass(world.database, world.dispatcher)
            await world.advance(1)
            await asyncio.sleep(0.01)
    return await running


@proves("O8", "O5")
async def test_jobs_that_match_are_counted_paused_and_resumed_by_an_undo(world: World, tmp_path: Path) -> None:
    await world.submit_all([job(schedule=every(3600, world.now), labels={"team": "bi"}) for _ in range(3)])
    await world.submit_all([job(schedule=every(3600, world.now), labels={"team": "ops"})])
    query = ("-q", "label.team=bi")
    async with served(world.database) as page:
        counted = await run(page, "job", "pause", *query, "--dry-run")
        assert counted.out == "It would pause 3 jobs.\n"
        unasked = await run(page, "job", "pause", *query)
        assert (unasked.code, "Add --yes" in flat(unasked.err)) == (2, True)
        both = await run(page, "job", "pause", "019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a", *query)
        assert (both.code, "only one of them" in flat(both.err)) == (2, True)
        paused = await run_while_working(world, page, "job", "pause", *query, "--yes", "--reason", "a release")
        assert (paused.code, paused.out.startswith("Done: pause 3 jobs: 3 done. Undo it: ondot bulk undo ")) == (
            0,
            True,
        )
        assert await world.value("SELECT count(*) FROM ondot.job WHERE state = 'PAUSED'") == 3
        [operation] = (await answer(page, "bulk", "list"))["items"]
        for filters, found in ((("--of", "jobs", "--state", "done"), 1), (("--of", "dead-letters"), 0)):
            assert len((await answer(page, "bulk", "list", *filters))["items"]) == found
        table = await run(page, "bulk", "list")
        assert "pause jobs" in table.out
        undone = await run_while_working(world, page, "bulk", "undo", operation["id"])
        assert (undone.code, undone.out.startswith("Done: resume 3 jobs: 3 done.")) == (0, True)
        changed = await run_while_working(
            world, page, "bulk", "update", *query, "--label", "team:", "--priority", "high", "--yes"
        )
        assert changed.code == 0
        assert (await run(page, "job", "pause", *query, "--yes")).out == "No job matches.\n"
        stopped = await run(page, "bulk", "stop", operation["id"])
        assert stopped.out.startswith("Done: pause 3 jobs"), "it had ended"
        shown = await answer(page, "bulk", "get", operation["id"])
        assert (shown["state"], shown["refusals"]) == ("DONE", [])
        file = tmp_path / "jobs.jsonl"
        exported = await run(page, "export", "jobs", "--format", "jsonl", "--to", str(file), "--where", "state=ACTIVE")
        assert exported.code == 0, exported.err
        priorities = [json.loads(line)["priority"] for line in file.read_text().splitlines()]
        assert sorted(priorities) == ["high"] * 3 + ["normal"]
        refused = await run(page, "export", "jobs", "--to", str(file), "-q", "nosuchfield:1")
        assert (refused.code, len(file.read_text().splitlines())) == (2, 4), "it leaves the file as it is"
        table = await run(page, "export", "jobs", "-q", "label.team=ops")
        assert len(table.out.splitlines()) == 2, "a header and a job"


@proves("O8", "O5")
async def test_a_dry_run_counts_what_would_change_without_what_would_be_refused(world: World) -> None:
    worker = await world.worker()
    for _ in range(2):
        await world.submit(job(schedule=once(world.now)))
        await worker.run_one()
    await world.submit_all([job(schedule=every(3600, world.now)) for _ in range(2)])
    async with served(world.database) as page:
        counted = await run(page, "job", "pause", "-q", "report", "--dry-run")
    [refused, summary] = counted.out.splitlines()
    assert refused.startswith("2 would be refused, for example: The job ")
    assert "a one-time job can be changed only before it runs" in refused
    assert summary == "It would pause 2 of 4 jobs."


@proves("O2", "O5")
async def test_every_list_of_the_api_can_be_exported(world: World) -> None:
    made = await world.submit(job(schedule=every(3600, world.now)))
    async with served(world.database) as page:
        listed = await run(page, "export", f"jobs/{made.id}/misses")
        assert (listed.code, listed.out.startswith("id,")) == (0, True), listed
        for name in ("incidents", "alerts", "pings", "keys", "workers"):
            assert (await run(page, "export", name, "--format", "jsonl")).code == 0, name
        twice = await run(page, "export", "jobs", "--where", "q=a", "-q", "b")
        assert "is given 2 times" in flat(twice.err)
        wrong = await run(page, "export", "incident")
        assert (wrong.code, "Did you mean incidents?" in flat(wrong.err)) == (2, True)
    paths = {
        re.sub(r"\{(\w+)\}", lambda found: found[1].upper(), route.path.removeprefix("/"))
        for part in PARTS
        for route in part.router.routes
        if isinstance(route, APIRoute) and columns_of(route) is not None
    }
    assert paths == set(LISTS)
