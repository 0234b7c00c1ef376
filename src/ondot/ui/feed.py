"""Live pages: one reader in each API process polls each second, only while somebody watches, and fans out (O5).

There is no outbox on the hot path: what a page shows is read from the tables. Each fragment is rendered once for all
who watch the same tenant, and only when what it shows has changed. A watcher remembers the version it was sent, so a
slow one misses versions and never makes a queue grow.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

from ondot.model.errors import Unavailable
from ondot.model.ids import TenantNo
from ondot.store.database import Database
from ondot.telemetry.log import get_logger

TICK_S = 1.0
ASK_EVERY_S = 0.4
"""How often it is asked whether a watcher may go on: with the memory of keys, half a second, it is under one second."""
WATCHERS = 500
"""Streams in one process, at most: each holds a connection and a task."""

log = get_logger()

Liveness = Literal["live", "away"]
RenderSection = Callable[[str, Any, datetime], str]
RenderLiveness = Callable[[Liveness, datetime | None], str]


class Shown(Protocol):
    """A page as it was read: its sections by the names of their templates."""

    @property
    def now(self) -> datetime: ...

    @property
    def sections(self) -> Mapping[str, object]: ...


Read = Callable[[Database, TenantNo], Awaitable[Shown]]


@dataclass(slots=True)
class Channel:
    """What the watchers of one page and tenant see: each fragment with the version in which it last changed."""

    version: int = 0
    fragments: dict[str, tuple[int, str]] = field(default_factory=dict)
    shown: Shown | None = None
    watchers: set[asyncio.Event] = field(default_factory=set)

    def put(self, fragments: dict[str, str]) -> None:
        self.version += 1
        self.fragments.update({name: (self.version, html) for name, html in fragments.items()})
        for wake in self.watchers:
            wake.set()

    def since(self, version: int) -> dict[str, str]:
        return {name: html for name, (changed_in, html) in self.fragments.items() if changed_in > version}


class Feed:
    def __init__(
        self,
        database: Database,
        pages: Mapping[str, Read],
        render_section: RenderSection,
        render_liveness: RenderLiveness,
        *,
        tick_s: float = TICK_S,
    ) -> None:
        """`pages`: how each live page is read, by its name."""
        self._database = database
        self._pages = pages
        self._render_section = render_section
        self._render_liveness = render_liveness
        self._tick_s = tick_s
        self._channels: dict[tuple[str, TenantNo], Channel] = {}
        self._wake = asyncio.Event()
        self._closed = False

    async def run(self) -> None:
        """Read for those who watch, until cancelled; while nobody does, wait without a statement."""
        while True:
            self._wake.clear()
            if self._channels:
                await self.one_pass()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._tick_s if self._channels else None):
                    await self._wake.wait()

    async def one_pass(self) -> int:
        """Read and render once for each page and tenant that is watched; gives how many fragments changed."""
        changed = 0
        for (page, tenant_no), channel in list(self._channels.items()):
            try:
                changed += self._show(channel, await self._pages[page](self._database, tenant_no))
            except Unavailable:
                channel.put({"live": self._render_liveness("away", channel.shown.now if channel.shown else None)})
            except Exception:  # the boundary of a pass: the API outlives a page that cannot be drawn
                log.exception("pass.failed", loop="feed")
        return changed

    @property
    def watchers(self) -> int:
        return sum(len(channel.watchers) for channel in self._channels.values())

    def close(self) -> None:
        """End every stream at once: a stop must not wait for browsers."""
        self._closed = True
        for channel in self._channels.values():
            for wake in channel.watchers:
                wake.set()

    def watch(
        self, page: str, tenant_no: TenantNo, may_go_on: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[dict[str, str]]:
        """The fragments that changed, by name: all of them first, then as they change. Ends with the feed, or when the
        watcher may not go on."""
        if self.watchers >= WATCHERS:
            raise Unavailable(f"{WATCHERS} live pages are open already: close some, or reload this one now and then.")
        return self._follow(page, tenant_no, may_go_on)

    async def _follow(
        self, page: str, tenant_no: TenantNo, may_go_on: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[dict[str, str]]:
        channel = self._channels.setdefault((page, tenant_no), Channel())
        wake = asyncio.Event()
        channel.watchers.add(wake)
        if not channel.fragments:
            self._wake.set()
        seen = 0
        try:
            while not self._closed and await may_go_on():
                wake.clear()
                if fresh := channel.since(seen):
                    seen = channel.version
                    yield fresh
                elif not self._closed:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(ASK_EVERY_S):
                            await wake.wait()
        finally:
            channel.watchers.discard(wake)
            if not channel.watchers:
                # Forgotten, not kept for the next one: who comes back must not be shown what was true an hour ago.
                self._channels.pop((page, tenant_no), None)

    def _show(self, channel: Channel, page: Shown) -> int:
        shown = channel.shown.sections if channel.shown else {}
        changed = {
            name: self._render_section(name, section, page.now)
            for name, section in page.sections.items()
            if shown.get(name) != section
        }
        channel.shown = page
        channel.put({**changed, "live": self._render_liveness("live", page.now)})
        return len(changed)
