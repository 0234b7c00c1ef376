"""A receiver of HTTP calls that is not ondot: it records every call, and its list is the truth of a fault run."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from tests.faults.fleet import BUSY


@dataclass(frozen=True, slots=True)
class Received:
    job_id: str
    execution_id: str
    attempt: int
    fire_at: str


@dataclass(slots=True)
class Receiver:
    url: str = ""
    calls: list[Received] = field(default_factory=list)
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    """While it is not set, calls are recorded and not answered."""
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def receive(self, request: web.Request) -> web.Response:
        headers = request.headers
        self.calls.append(
            Received(
                headers["ondot-job-id"], headers["webhook-id"], int(headers["ondot-attempt"]), headers["ondot-fire-at"]
            )
        )
        async with self._changed:
            self._changed.notify_all()
        await self.hold.wait()
        return web.json_response({"ok": True})

    async def until(self, count: int, *, within_s: float) -> None:
        """Wait for this many calls."""
        async with asyncio.timeout(within_s * BUSY), self._changed:
            await self._changed.wait_for(lambda: len(self.calls) >= count)


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    receiver.hold.set()
    app = web.Application()
    app.router.add_post("/", receiver.receive)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    receiver.url = f"http://127.0.0.1:{port}/"
    try:
        yield receiver
    finally:
        receiver.hold.set()
        await runner.cleanup()
