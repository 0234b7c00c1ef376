"""A fast path to the busiest routes, `POST /v1/jobs`, `/v1/jobs/batch` and `/v1/events`, without FastAPI's search for a
route.

FastAPI takes several times as long to find a route and resolve its dependencies as ondot takes to read the body. So a
request that is exactly one of these, without query parameters to check, goes straight to the function of the route.
FastAPI serves every other request, and all of the documentation.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ondot.model.errors import OndotError


@dataclass(frozen=True, slots=True)
class Entry:
    """`path` is the route's name in the metrics. `dependencies`: the right that it needs, as of other routes; `answer`
    checks it by itself."""

    path: str
    answer: Callable[[Request], Awaitable[Response]]
    dependencies: Sequence[Any] = ()


RenderError = Callable[[Request, OndotError], Awaitable[Response]]


class FastPath:
    def __init__(self, app: ASGIApp, entries: Mapping[str, Entry], render_error: RenderError) -> None:
        """`entries` are POST routes by path."""
        self._app = app
        self._entries = entries
        self._render_error = render_error

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
            response = await self._render_error(request, error)
        await response(scope, receive, send)
