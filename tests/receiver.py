"""A small HTTP server on this machine for calls that ondot makes: it records requests, and answers as a test sets."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass(frozen=True, slots=True)
class Received:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Answering = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def _nothing(_: web.Request) -> web.StreamResponse:
    return web.Response(status=204)


@dataclass
class Receiver:
    url: str = ""
    received: list[Received] = field(default_factory=list)
    answering: Answering = _nothing

    def answer(self, response: Callable[[], web.StreamResponse]) -> None:
        """Answer every request with a new response."""

        async def answering(_: web.Request) -> web.StreamResponse:
            return response()

        self.answering = answering

    async def handle(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.received.append(Received(request.method, request.path_qs, headers, await request.read()))
        return await self.answering(request)


@asynccontextmanager
async def open_receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    application = web.Application(client_max_size=64 * 1024 * 1024)
    application.router.add_route("*", "/{path:.*}", receiver.handle)
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    receiver.url = f"http://{host}:{port}"
    try:
        yield receiver
    finally:
        await runner.cleanup()
