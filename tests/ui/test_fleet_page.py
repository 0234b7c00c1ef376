"""`/fleet` as it is served: owners, queues and troubles of an empty, a healthy and a broken fleet."""

import re
from collections.abc import AsyncIterator

import pytest

from ondot.model.ids import NodeId
from ondot.store.nodes import beat_node, report_stalled_node, take_partitions
from ondot.store.workers import report_stalled_worker
from tests.holding import COMMAND, WHY, hold
from tests.proves import proves
from tests.ui.serving import Served, events, served
from tests.world import World, job


@pytest.fixture
async def page(world: World) -> AsyncIterator[Served]:
    async with served(world.database) as page:
        yield page


async def node(world: World, host: str, partitions: int, node_id: NodeId | None = None) -> NodeId:
    node_id = node_id or NodeId(world.database.clock.new_id())
    async with world.database.connection() as connection:
        await beat_node(connection, node_id, host=host, pid=7, release="1.2", lease_s=5)
        await take_partitions(connection, node_id, partitions)
    return node_id


async def html_of(page: Served) -> str:
    answer = await page.client.get("/fleet")
    assert answer.status_code == 200
    return answer.text


@proves("O5")
async def test_an_empty_fleet_shows_what_to_start(page: Served) -> None:
    html = await html_of(page)
    assert "No scheduler is running, so no fire is planned." in html
    assert "No worker has started" in html
    assert html.count('class="unowned"') == 64
    assert "<code>ondot scheduler</code>" in html
    assert '<a href="/fleet" title=' in (await page.client.get("/")).text


@proves("C1", "O5")
async def test_partitions_are_shown_with_their_owners(world: World, page: Served) -> None:
    first = await node(world, "east", 40)
    await node(world, "west", 24)
    await world.worker()
    html = await html_of(page)
    assert "All 64 partitions have an owner, and every pool with work has workers." in html
    assert len(re.findall(r'class="owner-0" title="Partition \d+: A, east:7, epoch 1">A<', html)) == 40
    assert len(re.findall(r'class="owner-1" title="Partition \d+: B, west:7, epoch 1">B<', html)) == 24
    assert "64 of 64 partitions have an owner. east:7 owns 0–39; west:7 owns 40–63" in html
    await world.advance(6)
    await node(world, "east", 0, first)
    html = await html_of(page)
    assert "Partitions 40–63 of 64 have no live owner" in html
    assert "40–63: not taken over yet" in html
    assert "Expired" in html
    assert html.count('class="unowned"') == 24


@proves("C1", "O5")
async def test_the_latest_three_expired_schedulers_are_shown_below_the_live_ones(world: World, page: Served) -> None:
    for n in range(5):
        await node(world, f"gone-{n}", 0)
        await world.advance(6)
    await node(world, "here", 64)
    html = await html_of(page)
    names = re.findall(r'<span title="[^"]+">([\w-]+):7</span>', html)
    assert names == ["here", "gone-4", "gone-3", "gone-2"]
    assert "And 2 more in the last hour." in html
    assert len((await page.client.get("/v1/nodes")).json()["items"]) == 6


@proves("C7", "O5")
async def test_a_pool_with_work_and_no_worker_is_at_the_top_with_the_command(world: World, page: Served) -> None:
    await node(world, "here", 64)
    await world.worker()
    await world.submit_all([job("a", pool="mail"), job("b", pool="mail")])
    await world.advance(3)
    await node(world, "here", 64)
    html = await html_of(page)
    assert "2 due executions wait in pool mail, the oldest for 3 s, and no worker serves it." in html
    assert html.index("ondot worker --pool mail") < html.index('id="h-pools"')


@proves("O5", "P3")
async def test_a_hold_is_shown_instead_of_what_to_start(world: World, page: Served) -> None:
    await world.submit(job("a", pool="mail"))
    await hold(world)
    await world.advance(3)
    html = await html_of(page)
    assert f"Nothing starts since {world.after(-3):%Y-%m-%d %H:%M:%S} UTC: {WHY}." in re.sub("</?time[^>]*>", "", html)
    assert f">{COMMAND}</code>." in html
    assert "No scheduler is running" not in html
    assert "ondot worker --pool mail" not in html
    first = (await page.client.get("/")).text
    assert "<strong>On hold:</strong> nothing has been planned or started for <time" in first
    assert f"3 s</time>. Reason: {WHY}. " in first
    assert COMMAND in first
    assert "Start one" not in first


@proves("O5")
async def test_hostile_host_names_are_shown_as_text(world: World, page: Served) -> None:
    await node(world, "<script>alert(1)</script>", 64)
    html = await html_of(page)
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(1)" in html


@proves("O5")
async def test_the_page_has_a_live_stream_of_its_own(world: World, page: Served) -> None:
    async with page.client.stream("GET", "/ui/live/fleet") as stream:
        await page.until_watched()
        await page.feed.one_pass()
        received = events(stream)
        names = {(await anext(received))[0] for _ in range(5)}
        assert names == {"fleet_health", "fleet_nodes", "fleet_workers", "fleet_pools", "live"}
        await world.worker()
        assert await page.feed.one_pass() == 3  # pools, workers and health show the new worker
        assert {(await anext(received))[0] for _ in range(4)} == names - {"fleet_nodes"}


@proves("T1")
async def test_the_fleet_needs_a_key_if_auth_is_on(world: World) -> None:
    async with served(world.database, auth="on") as page:
        for path in ("/fleet", "/ui/live/fleet"):
            assert (await page.client.get(path)).status_code == 401


@proves("P13", "O5")
async def test_a_stalled_worker_and_scheduler_are_shown_with_their_lines(world: World, page: Served) -> None:
    node_id = await node(world, "east", 64)
    worker = await world.worker()
    async with world.database.connection() as connection:
        await report_stalled_node(connection, node_id, stalled_s=3, where="plan.py:1 in plan")
        await report_stalled_worker(
            connection, worker.id, stalled_s=6, where="<tasks>.py:12", execution_id=None, function=None
        )
    html = await html_of(page)
    assert html.count(">Stalled<") == 2
    assert "The scheduler east:7 is stalled: its event loop is blocked at plan.py:1 in plan" in html
    assert "at &lt;tasks&gt;.py:12" in html
    assert "<tasks>" not in html
