"""What holds for every request and every answer, whatever the path: also for files, metrics, documents and errors (T1).

A request passes the checks of `sender` and has no NUL in its path. An answer tells the browser not to guess what it is,
not to keep it and not to show it in a frame, unless it says otherwise itself.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ondot.api.auth import Auth
from ondot.api.sender import check_host, refuse_foreign
from ondot.model.errors import InvalidRequest, OndotError

HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)

Refused = Callable[[Request, OndotError], Awaitable[Response]]


class Guard:
    def __init__(self, app: ASGIApp, auth: Auth, refused: Refused) -> None:
        self._app = app
        self._auth = auth
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = self._complete(message["status"], list(message.get("headers", ())))
            await send(message)

        try:
            check_host(scope["headers"])
            if self._auth.is_open:
                refuse_foreign(scope["method"], scope["headers"])
            if "\0" in scope["path"]:
                raise InvalidRequest("The path must not contain NUL (%00).")
        except OndotError as error:
            response = await self._refused(Request(scope), error)
            await response(scope, receive, sending)
            return
        await self._app(scope, receive, sending)

    def _complete(self, status: int, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        there = {name for name, _ in headers}
        headers += [header for header in HEADERS if header[0] not in there]
        if status == 401:
            headers += [(b"www-authenticate", challenge.encode()) for challenge in self._auth.challenges]
        return headers
