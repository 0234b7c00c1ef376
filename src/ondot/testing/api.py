"""The API of a world: the real application without a network, also for the threads of plain functions.

While the world is open, the SDK's client of the app under test sends its requests here, so that `enqueue` and
`schedule` do what they do elsewhere: a request that is checked and stored by the same code.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import httpx2
import msgspec

from ondot.api.auth import Auth
from ondot.api.dependencies import Services
from ondot.api.problems import CONTENT_TYPE, problem
from ondot.api.server import build_api
from ondot.flow.dispatch import Dispatcher
from ondot.model.errors import Conflict
from ondot.ports.kms import Kms
from ondot.sdk.client import Client
from ondot.store.database import Database

ADDRESS = "http://127.0.0.1:1200"
WAIT = "/v1/jobs/wait"
NEVER = (
    "The job has not ended, and in a world no time passes by itself. Turn the clock first: "
    "`await world.advance(hours=1)`."
)


class WorldTransport(httpx2.AsyncBaseTransport):
    """Passes requests to the API in the world's own loop, from any loop."""

    def __init__(self, database: Database, dispatcher: Dispatcher, kms: Kms) -> None:
        self._loop = asyncio.get_running_loop()
        services = Services(database, dispatcher, Auth(database, database.settings, in_process=True), kms=kms)
        self._asgi = httpx2.ASGITransport(app=build_api(services))
        self.created: set[str] = set()
        """The names of the jobs in requests that create or change jobs."""
        self.run_due: Callable[[], Awaitable[bool]] | None = None
        """Runs what is due; False: it cannot now, because it runs already or the world is down."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        # Read here: a body belongs to the loop that it was created in.
        body = await request.aread()
        if request.method in {"POST", "PUT", "PATCH"}:
            self.created.update(_names(body))
        if asyncio.get_running_loop() is self._loop:
            return await self._answer(request)
        answering = asyncio.run_coroutine_threadsafe(self._answer(request), self._loop)
        return await asyncio.wrap_future(answering)

    async def _answer(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path != WAIT or self.run_due is None:
            return await self._asgi.handle_async_request(request)
        asked = msgspec.json.decode(await request.aread())
        if not asked["wait"] or not await asyncio.shield(self.run_due()):
            return await self._asgi.handle_async_request(request)
        # A test awaits a result: what is due runs first. No time passes by itself, so nothing else will ever end.
        body = msgspec.json.encode({**asked, "wait": 0})
        headers = {"content-type": "application/json"}
        response = await self._asgi.handle_async_request(
            httpx2.Request("POST", request.url, content=body, headers=headers)
        )
        answer = msgspec.json.decode(await response.aread())
        if response.is_success and not answer["items"] and not answer["unknown"]:
            return httpx2.Response(409, json=problem(Conflict(NEVER)), headers={"content-type": CONTENT_TYPE})
        return httpx2.Response(response.status_code, json=answer, headers={"content-type": "application/json"})


@contextmanager
def redirect(client: Client, transport: httpx2.AsyncBaseTransport) -> Iterator[None]:
    """Send the client's requests to this transport, and not to the server of its settings."""

    def open_here() -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=transport, base_url=ADDRESS, headers={"accept": "application/json"})

    if "_open" in vars(client):
        raise RuntimeError("This app is already in another world: open one after the other.")
    client._open = open_here  # type: ignore[method-assign]
    client.forget_connections()
    try:
        yield
    finally:
        del client._open
        client.forget_connections()


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
