"""Live pages: one reader in each API process polls once a second while a page is watched, and fans out (O5).

There is no outbox on the hot path: pages are read from the tables. Each fragment is rendered once for all watchers of a
tenant, once more for owners who act for it, and only when its data has changed. A watcher remembers the version that it
got last, so a slow watcher misses versions and no queue grows.
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
CHECK_EVERY_S = 0.4
"""How often a watcher's key is checked. Keys are cached for half a second, so a revoked one loses its stream in 1 s."""
WATCHERS = 500
"""The most streams in one process: each holds a connection and a task."""

log = get_logger()

Liveness = Literal["live", "away"]
RenderSection = Callable[[str, Any, datetime], str]
RenderLiveness = Callable[[Liveness, datetime | None], str]


class LiveView(Protocol):
    """A live page as read from the database: its sections, by the names of their templates."""

    @property
    def now(self) -> datetime: ...

    @property
    def sections(self) -> Mapping[str, object]: ...


class Read(Protocol):
    """`is_whole`: with the processes and the load of all tenants."""

    def __call__(self, database: Database, tenant_no: TenantNo, /, *, is_whole: bool) -> Awaitable[LiveView]: ...


@dataclass(slots=True)
class Channel:
    """The fragments of one page and tenant, whole or not, each with the version in which it last changed."""

    version: int = 0
    fragments: dict[str, tuple[int, str]] = field(default_factory=dict)
    view: LiveView | None = None
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
        """`pages`: how to read each live page, by its name."""
        self._database = database
        self._pages = pages
        self._render_section = render_section
        self._render_liveness = render_liveness
        self._tick_s = tick_s
        self._channels: dict[tuple[str, TenantNo, bool], Channel] = {}
        self._wake = asyncio.Event()
        self._closed = False

    async def run(self) -> None:
        """Read while pages are watched, until cancelled; without a watcher, wait and run no statement."""
        while True:
            self._wake.clear()
            if self._channels:
                await self.one_pass()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._tick_s if self._channels else None):
                    await self._wake.wait()

    async def one_pass(self) -> int:
        """Read and render once for each page and tenant that is watched. Returns how many fragments changed."""
        changed = 0
        for (page, tenant_no, is_whole), channel in list(self._channels.items()):
            try:
                changed += self._update(channel, await self._pages[page](self._database, tenant_no, is_whole=is_whole))
            except Unavailable:
                channel.put({"live": self._render_liveness("away", channel.view.now if channel.view else None)})
            except Exception:  # the boundary of a pass: a page that cannot be rendered must not end the API
                log.exception("pass.failed", loop="feed")
        return changed

    @property
    def watchers(self) -> int:
        return sum(len(channel.watchers) for channel in self._channels.values())

    def close(self) -> None:
        """End every stream now: a stop must not wait for browsers."""
        self._closed = True
        for channel in self._channels.values():
            for wake in channel.watchers:
                wake.set()

    def watch(
        self, page: str, tenant_no: TenantNo, may_go_on: Callable[[], Awaitable[bool]], *, is_whole: bool
    ) -> AsyncGenerator[dict[str, str]]:
        """First all fragments, by name, then those that change. Ends with the feed, or when `may_go_on` is false."""
        if self.watchers >= WATCHERS:
            raise Unavailable(f"{WATCHERS} live pages are open already. Close some, or reload this page to update it.")
        return self._follow(page, tenant_no, may_go_on, is_whole=is_whole)

    async def _follow(
        self, page: str, tenant_no: TenantNo, may_go_on: Callable[[], Awaitable[bool]], *, is_whole: bool
    ) -> AsyncGenerator[dict[str, str]]:
        channel = self._channels.setdefault((page, tenant_no, is_whole), Channel())
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
                        async with asyncio.timeout(CHECK_EVERY_S):
                            await wake.wait()
        finally:
            channel.watchers.discard(wake)
            if not channel.watchers:
                # Dropped, not kept: the next watcher must not see the fragments of an hour ago.
                self._channels.pop((page, tenant_no, is_whole), None)

    def _update(self, channel: Channel, view: LiveView) -> int:
        before = channel.view.sections if channel.view else {}
        changed = {
            name: self._render_section(name, section, view.now)
            for name, section in view.sections.items()
            if before.get(name) != section
        }
        channel.view = view
        channel.put({**changed, "live": self._render_liveness("live", view.now)})
        return len(changed)
