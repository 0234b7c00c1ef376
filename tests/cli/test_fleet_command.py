"""`ondot fleet`, against the API as it is served: what is wrong above, ids in full, in 80 columns."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from ondot.cli.fleet_views import fleet_screen
from tests.cli.running import Ran, ondot
from tests.holding import COMMAND, WHY, hold
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.ui.test_fleet_page import node
from tests.ui.test_held_back import a_backlog
from tests.world import World, job


async def run(page: Served, *words: str) -> Ran:
    return await asyncio.to_thread(ondot, "fleet", *words, url=page.url)


def flat(text: str) -> str:
    return " ".join(text.split())


def drawn(*, nodes: list[dict[str, Any]], workers: list[dict[str, Any]]) -> str:
    """The screen of an answer, in 80 columns."""
    seen = {
        "nodes": {"partitions": 64, "unowned": [], "items": nodes},
        "workers": {"heartbeat_s": 10.0, "items": workers},
        "pools": {"items": []},
    }
    console = Console(width=80)
    with console.capture() as captured:
        console.print(fleet_screen(seen, datetime(2026, 11, 15, tzinfo=UTC)))
    return captured.get()


def scheduler(host: str, state: str, silent_s: float) -> dict[str, Any]:
    process = {"id": "019a1de9", "host": host, "pid": 7, "release": "1.2"}
    return process | {"state": state, "silent_s": silent_s, "partitions": []}


def worker(state: str, silent_s: float) -> dict[str, Any]:
    process = {"id": "019a1de9", "host": "here", "pid": 8, "release": "1.2", "pools": ["default"]}
    return process | {"state": state, "silent_s": silent_s, "slots": 100, "running": 3, "ended_at": None}


@proves("C1", "O5")
def test_the_latest_three_expired_schedulers_are_below_the_live_ones_and_the_rest_in_one_line() -> None:
    gone = [scheduler(f"gone-{n}", "EXPIRED", 60.0 * n) for n in range(15, 0, -1)]
    lines = drawn(nodes=[*gone, scheduler("here", "ALIVE", 1.0)], workers=[]).splitlines()
    named = [line.split()[0] for line in lines if ":7" in line]
    assert named == ["here:7", "gone-1:7", "gone-2:7", "gone-3:7"]
    [more] = [line for line in lines if "more" in line]
    assert more.split() == ["and", "12", "more", "in", "the", "last", "hour", "EXPIRED", *"---"]


@proves("E6", "O5")
def test_a_silent_worker_does_not_count_as_alive() -> None:
    workers = [*(worker("ALIVE", 1.0) for _ in range(4)), worker("ALIVE", 46.0), worker("LOST", 46.0)]
    assert "Workers: 4 alive, 1 silent, 15 of 500 slots busy\n" in drawn(nodes=[], workers=workers)
    assert "Workers: 4 alive, 12 of 400 slots busy\n" in drawn(nodes=[], workers=workers[:4])


@proves("D4")
def test_a_worker_is_shown_with_its_app_and_its_release() -> None:
    screen = drawn(nodes=[], workers=[worker("ALIVE", 1.0) | {"app": "billing", "app_release": "v7"}])
    assert "billing v7" in screen


@proves("P13", "O5")
def test_a_stalled_process_does_not_count_as_alive_and_is_shown_with_its_line() -> None:
    stalled = {"stalled_at": "2026-11-14T23:59:50Z", "stalled_in": "tasks.py:12 in crawl"}
    nodes = [scheduler("here", "ALIVE", 4.0) | stalled]
    workers = [worker("ALIVE", 1.0), worker("ALIVE", 6.0) | stalled, worker("LOST", 46.0) | stalled]
    shown = flat(drawn(nodes=nodes, workers=workers))
    assert "Workers: 1 alive, 1 stalled, 6 of 200 slots busy" in shown
    assert shown.count("STALLED") == 2
    assert "The scheduler here:7 is stalled: its event loop is blocked at tasks.py:12 in crawl" in shown
    assert "The worker here:8 is stalled: its event loop is blocked at tasks.py:12 in crawl" in shown
    assert "silent" not in shown, "reported once"


@proves("C1", "O5")
async def test_owners_and_since_when_are_shown(world: World) -> None:
    first = await node(world, "east.example", 22)
    second = await node(world, "west.example", 42)
    worker = await world.worker()
    async with served(world.database) as page:
        shown = await run(page, "-o", "wide")
        assert (shown.code, shown.err) == (0, "")
        for id_ in (first, second, worker.id):
            assert str(id_) in shown.out
        for words in ("22: 0–21", "42: 22–63", "64 of 64 partitions owned", "1 alive, 0 of 100 slots busy"):
            assert words in shown.out
        assert "All 64 partitions have an owner" in flat(shown.out)
        assert "\x1b" not in shown.out
        assert (await run(page, "-o", "name")).out.split() == [str(first), str(second), str(worker.id)]
        seen = json.loads((await run(page, "-o", "json")).out)
        assert [entry["id"] for entry in seen["nodes"]["items"]] == [str(first), str(second)]
        assert [entry["id"] for entry in seen["workers"]["items"]] == [str(worker.id)]
        assert seen["workers"]["heartbeat_s"] == 10
        assert [entry["name"] for entry in seen["pools"]["items"]] == ["default"]
        assert (await run(page, "--watch", "-o", "json")).code == 2


@proves("C1", "C7", "O5")
async def test_problems_are_at_the_top_with_what_to_do(world: World) -> None:
    await node(world, "east.example", 60)
    await world.worker()
    await world.submit(job(pool="mail"))
    await world.advance(6)
    await node(world, "west.example", 61)
    async with served(world.database) as page:
        lines = (await run(page)).out.splitlines()
        expected = flat(" ".join(lines[:12]))
        assert "! Partitions 61–63 of 64 have no live owner" in expected
        assert "! 1 due execution waits in pool mail, the oldest for 6 s, and no worker serves it." in expected
        assert "Start one: ondot worker --pool mail" in expected
        assert "1 worker is silent" in expected
        shown = flat(" ".join(lines))
        assert "EXPIRED" in shown
        assert "SILENT" in shown


@proves("O5")
async def test_an_empty_fleet_shows_what_to_start(world: World) -> None:
    async with served(world.database) as page:
        shown = flat((await run(page)).out)
        assert "! No scheduler is running, so no fire is planned. Start one: ondot scheduler" in shown
        assert "No worker is running, so due executions will wait" in shown
    assert (await asyncio.to_thread(ondot, "fleet", url=page.url)).code == 5


@proves("O5", "P3")
async def test_a_held_database_is_shown_with_what_to_do(world: World) -> None:
    await hold(world)
    async with served(world.database) as page:
        shown = flat((await run(page)).out)
        assert f"! Nothing starts since {world.now:%Y-%m-%d %H:%M:%S} UTC: {WHY}." in shown
        assert f"then run `{COMMAND}`." in shown
        assert "Start one" not in shown


@proves("O5")
async def test_a_host_cannot_steer_the_terminal(world: World) -> None:
    await node(world, "\x1b[31mred", 64)
    async with served(world.database) as page:
        shown = await run(page)
        assert "\x1b" not in shown.out
        assert "\\u001b[31mred" in shown.out


@proves("E13", "L7")
async def test_the_job_whose_limit_holds_executions_back_is_named_with_it(world: World) -> None:
    await a_backlog(world)
    async with served(world.database) as page:
        ran = await run(page)
    assert "executions wait for a limit, the oldest for" in flat(ran.out)
    assert "most of them wait for crawl's limit: 1 at a time" in flat(ran.out)
