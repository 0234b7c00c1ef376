"""The reader behind the live pages: its watchers, what it sends, and that it reads nothing without a watcher."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ondot.model.errors import Unavailable
from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.store.database import Database, open_database
from ondot.ui import feed as feed_module
from ondot.ui.feed import Feed
from ondot.ui.pages import LIVE
from ondot.ui.render import Renderer
from tests.proves import proves
from tests.servers import settings_for
from tests.world import World, job, once

SECTIONS = {
    *("health", "numbers", "running", "fires", "open_incidents", "failures", "blocked", "paused", "latest", "badge"),
}


class CountingFeed(Feed):
    """Counts its real passes."""

    passes = 0

    async def one_pass(self) -> int:
        self.passes += 1
        return await super().one_pass()


async def always() -> bool:
    return True


def make_feed(database: Database, tick_s: float = 1.0) -> CountingFeed:
    pages = Renderer()
    return CountingFeed(database, LIVE, pages.section, pages.liveness, tick_s=tick_s)


@asynccontextmanager
async def running(feed: Feed) -> AsyncIterator[None]:
    task = asyncio.create_task(feed.run())
    try:
        yield
    finally:
        task.cancel()


@proves("O5")
async def test_the_database_is_read_only_while_a_page_is_watched(world: World) -> None:
    feed = make_feed(world.database, tick_s=0)
    async with running(feed):
        await _round_trips(world)
        assert feed.passes == 0

        watching = feed.watch("overview", DEFAULT_TENANT, always, is_whole=True)
        await anext(watching)
        await anext(watching)
        assert feed.passes >= 2
        await watching.aclose()

        await _round_trips(world)  # a pass that has started may end
        passes = feed.passes
        await _round_trips(world)
        assert feed.passes == passes


@proves("O5")
async def test_a_watcher_gets_the_whole_page_and_then_the_changes(world: World) -> None:
    feed = make_feed(world.database)
    watching = feed.watch("overview", DEFAULT_TENANT, always, is_whole=True)
    first = asyncio.ensure_future(anext(watching))
    await _until_watched(feed)
    assert await feed.one_pass() == len(SECTIONS)
    assert set(await first) == SECTIONS | {"live"}

    assert await feed.one_pass() == 0
    assert set(await anext(watching)) == {"live"}

    await world.submit(job("surprise", schedule=once(world.after(90))))
    assert await feed.one_pass() == 1
    fragments = await anext(watching)
    assert set(fragments) == {"fires", "live"}
    assert "surprise" in fragments["fires"]
    await watching.aclose()


@proves("O5")
async def test_a_slow_watcher_misses_versions_and_gets_the_newest(world: World) -> None:
    feed = make_feed(world.database)
    watching = feed.watch("overview", DEFAULT_TENANT, always, is_whole=True)
    first = asyncio.ensure_future(anext(watching))
    await _until_watched(feed)
    await feed.one_pass()
    await first
    for name in ("one", "two"):
        await world.submit(job(name, schedule=once(world.after(90))))
        await feed.one_pass()
    fragments = await anext(watching)
    assert "one" in fragments["fires"]
    assert "two" in fragments["fires"]
    await watching.aclose()


@proves("O5")
async def test_a_watcher_that_returns_gets_nothing_old(world: World) -> None:
    feed = make_feed(world.database, tick_s=60)
    async with running(feed):
        watching = feed.watch("overview", DEFAULT_TENANT, always, is_whole=True)
        await anext(watching)
        await watching.aclose()
        await world.submit(job("meanwhile", schedule=once(world.after(90))))
        watching = feed.watch("overview", DEFAULT_TENANT, always, is_whole=True)
        assert "meanwhile" in (await anext(watching))["fires"]
        await watching.aclose()


@proves("T1")
async def test_tenants_watch_their_own_page(world: World) -> None:
    await world.submit(job("secret", schedule=once(world.after(90))))
    feed = make_feed(world.database, tick_s=60)
    async with running(feed):
        mine, theirs = (
            feed.watch("overview", DEFAULT_TENANT, always, is_whole=True),
            feed.watch("overview", TenantNo(2), always, is_whole=True),
        )
        assert "secret" in (await anext(mine))["fires"]
        assert "secret" not in "".join((await anext(theirs)).values())
        await mine.aclose()
        await theirs.aclose()


@proves("O5")
async def test_watchers_see_that_the_database_is_away() -> None:
    database = await open_database(settings_for("postgresql://nobody@127.0.0.1:1/none"))
    feed = make_feed(database, tick_s=60)
    async with running(feed):
        watching = feed.watch("overview", DEFAULT_TENANT, always, is_whole=True)
        fragments = await anext(watching)
        assert set(fragments) == {"live"}
        assert "Not live: the database does not answer" in fragments["live"]
        await watching.aclose()
    await database.close()


@proves("O5")
async def test_closing_ends_every_stream(world: World) -> None:
    feed = make_feed(world.database, tick_s=60)
    async with running(feed):
        streams = [feed.watch("overview", DEFAULT_TENANT, always, is_whole=True) for _ in range(3)]
        for stream in streams:
            await anext(stream)
        feed.close()
        for stream in streams:
            assert [fragments async for fragments in stream] == []
        assert feed.watchers == 0


@proves("O5")
async def test_too_many_streams_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "WATCHERS", 1)
    feed = make_feed(world.database, tick_s=60)
    async with running(feed):
        watching = feed.watch("overview", DEFAULT_TENANT, always, is_whole=True)
        await anext(watching)
        with pytest.raises(Unavailable, match="live pages are open"):
            feed.watch("overview", DEFAULT_TENANT, always, is_whole=True)
        await watching.aclose()


async def _round_trips(world: World) -> None:
    """Enough time for a feed without a tick to make many passes."""
    for _ in range(20):
        await world.value("SELECT 1")


async def _until_watched(feed: Feed) -> None:
    async with asyncio.timeout(60):
        while not feed.watchers:
            await asyncio.sleep(0)
