"""The API of a world: the real application without a network, also for the threads of plain functions.

While the world is open, the SDK's client of the app under test sends its requests here, so that `enqueue` and
`schedule` do what they do elsewhere: a request that is checked and stored by the same code.
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
from ondot.ports.kms import Kms
from ondot.sdk.client import Client
from ondot.store.database import Database

ADDRESS = "http://127.0.0.1:1200"


class WorldTransport(httpx2.AsyncBaseTransport):
    """Passes requests to the API in the world's own loop, from any loop."""

    def __init__(self, database: Database, dispatcher: Dispatcher, kms: Kms) -> None:
        self._loop = asyncio.get_running_loop()
        services = Services(database, dispatcher, Auth(database, database.settings, in_process=True), kms=kms)
        self._asgi = httpx2.ASGITransport(app=build_api(services))
        self.created: set[str] = set()
        """The names of the jobs in requests that create or change jobs."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        # Read here: a body belongs to the loop that it was created in.
        body = await request.aread()
        if request.method in {"POST", "PUT", "PATCH"}:
            self.created.update(_names(body))
        if asyncio.get_running_loop() is self._loop:
            return await self._asgi.handle_async_request(request)
        answering = asyncio.run_coroutine_threadsafe(self._asgi.handle_async_request(request), self._loop)
        return await asyncio.wrap_future(answering)


@contextmanager
def redirect(client: Client, transport: httpx2.AsyncBaseTransport) -> Iterator[None]:
    """Send the client's requests to this transport, and not to the server of its settings."""

    def open_here() -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=transport, base_url=ADDRESS, headers={"accept": "application/json"})

    if "_open" in vars(client):
        raise RuntimeError("This app is already in another world: open one after the other.")
    client._open = open_here  # type: ignore[method-assign]
    client._http = None
    try:
        yield
    finally:
        del client._open
        client._http = None


def _names(body: bytes) -> Iterator[str]:
    """The names in a job or a batch of jobs. The API validates them."""
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return
    jobs = decoded.get("jobs", [decoded]) if isinstance(decoded, dict) else []
    for job in jobs if isinstance(jobs, list) else []:
        if isinstance(job, dict) and isinstance(job.get("name"), str):
            yield job["name"]
