"""The page as it is served: the real API application and its feed behind uvicorn on a free port.

The test calls the feed's passes, unless it lets the feed run by itself. So events arrive when the test wants them, and
nothing sleeps.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx2
from fastapi import FastAPI

from ondot.api.auth import Auth
from ondot.api.dependencies import Services
from ondot.api.page_writes import PageWrites
from ondot.api.serve import serve
from ondot.api.server import build_api
from ondot.document.requests import preview_request
from ondot.flow.dispatch import Dispatcher
from ondot.kms import open_kms
from ondot.settings import Settings
from ondot.store.database import Database
from ondot.transports.polling import PollingTransport
from ondot.ui.feed import Feed
from ondot.ui.pages import build_pages


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    feed: Feed
    client: httpx2.AsyncClient

    async def until_watched(self, watchers: int = 1) -> None:
        async with asyncio.timeout(60):
            while self.feed.watchers != watchers:
                await asyncio.sleep(0)


def key_in(page: Served) -> dict[str, str]:
    """The header of the client's key, for a browser."""
    return {"authorization": page.client.headers["authorization"]}


def build(database: Database, settings: Settings) -> tuple[FastAPI, Feed]:
    auth = Auth(database, settings, in_process=True)
    services = Services(database, Dispatcher(PollingTransport()), auth, kms=open_kms(settings.secret_key))
    app = build_api(services)
    return app, build_pages(app, database, auth, preview_request, PageWrites(services))


@asynccontextmanager
async def served(
    database: Database, *, auth: str = "off", port: int = 0, by_itself: bool = False
) -> AsyncIterator[Served]:
    before = database.settings
    database.settings = before.model_copy(update={"auth": auth})  # as in a process: they name actors
    app, feed = build(database, database.settings)
    try:
        # Closed here too: a failed test must not leave a socket open, which a later test would be blamed for.
        with socket.create_server(("127.0.0.1", port)) as listener:
            async with _serve_at(listener, app, feed, by_itself=by_itself) as page:
                yield page
    finally:
        database.settings = before


@asynccontextmanager
async def _serve_at(listener: socket.socket, app: FastAPI, feed: Feed, *, by_itself: bool) -> AsyncIterator[Served]:
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(serve(app, listener, stop))
        running = group.create_task(feed.run()) if by_itself else None
        async with httpx2.AsyncClient(base_url=url, timeout=60) as client:
            try:
                yield Served(url, feed, client)
            finally:
                feed.close()
                stop.set()
                if running:
                    running.cancel()
        await serving


async def events(response: httpx2.Response) -> AsyncIterator[tuple[str, str]]:
    """The events of a stream, as name and data."""
    name, data = "", []
    async for line in response.aiter_lines():
        field, _, value = line.partition(":")
        if field == "event":
            name = value.strip()
        elif field == "data":
            data.append(value.removeprefix(" "))
        elif not line and name:
            yield name, "\n".join(data)
            name, data = "", []
