"""The short way to the two busiest routes, `POST /v1/jobs` and `/v1/jobs/batch`: past the search for a route.

Looking through all routes and working out what an endpoint depends on takes FastAPI several times as long as reading
the body. So a request that is exactly one of these, without parameters to be checked, goes straight to the function
that the route calls too; every other request, and all of the documentation, is FastAPI's.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ondot.model.errors import OndotError


@dataclass(frozen=True, slots=True)
class Entry:
    """`path`: as the metrics name it."""

    path: str
    answer: Callable[[Request], Awaitable[Response]]


Refused = Callable[[Request, OndotError], Awaitable[Response]]


class Door:
    def __init__(self, app: ASGIApp, entries: Mapping[str, Entry], refused: Refused) -> None:
        """`entries`: by path, for POST."""
        self._app = app
        self._entries = entries
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        entry = None
        if scope["type"] == "http" and scope["method"] == "POST" and not scope["query_string"]:
            entry = self._entries.get(scope["path"])
        if entry is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = entry
        request = Request(scope, receive, send)
        try:
            response = await entry.answer(request)
        except OndotError as error:
            response = await self._refused(request, error)
        await response(scope, receive, send)
