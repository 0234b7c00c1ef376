"""The API of a world: the real application, reached without a network, also from the threads of plain functions.

The SDK's client of the app under test is led here while the world is open, so that `enqueue` and `schedule` do what
they do elsewhere: a request, checked and stored by the same code.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import msgspec

from ondot.api.auth import Auth
from ondot.api.dependencies import Services
from ondot.api.server import build_api
from ondot.flow.dispatch import Dispatcher
from ondot.sdk.client import Client
from ondot.store.database import Database

ADDRESS = "http://127.0.0.1:1200"


class WorldTransport(httpx2.AsyncBaseTransport):
    """Carries requests to the API in the world's own loop, whichever loop they come from."""

    def __init__(self, database: Database, dispatcher: Dispatcher) -> None:
        self._loop = asyncio.get_running_loop()
        services = Services(database, dispatcher, Auth(database, database.settings, in_process=True))
        self._asgi = httpx2.ASGITransport(app=build_api(services))
        self.created: set[str] = set()
        """The names of the jobs that were asked for."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        # Read here: a body belongs to the loop it was made in.
        body = await request.aread()
        if request.method in {"POST", "PUT", "PATCH"}:
            self.created.update(_names(body))
        if asyncio.get_running_loop() is self._loop:
            return await self._asgi.handle_async_request(request)
        answering = asyncio.run_coroutine_threadsafe(self._asgi.handle_async_request(request), self._loop)
        return await asyncio.wrap_future(answering)


@contextmanager
def reaching(client: Client, transport: httpx2.AsyncBaseTransport) -> Iterator[None]:
    """While it lasts the client reaches this transport, and no server that its settings name."""

    def open_here() -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=transport, base_url=ADDRESS, headers={"accept": "application/json"})

    if "_open" in vars(client):
        raise RuntimeError("This app is in another world already: open one after the other.")
    client._open = open_here  # type: ignore[method-assign]
    client._http = None
    try:
        yield
    finally:
        del client._open
        client._http = None


def _names(body: bytes) -> Iterator[str]:
    """The names in what may be a job, or a batch of them; whether it is good is the API's to say."""
    try:
        asked = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return
    jobs = asked.get("jobs", [asked]) if isinstance(asked, dict) else []
    for job in jobs if isinstance(jobs, list) else []:
        if isinstance(job, dict) and isinstance(job.get("name"), str):
            yield job["name"]
