"""Checks of every request and headers of every response, for all paths: also files, metrics, documents, errors (T1).

A request gets its id (`request_id`), must pass the checks of `sender`, and its path must not contain NUL. A response
forbids the browser to guess its type, to store it and to show it in a frame, unless the route sets these headers.
"""

from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ondot.api.auth import Auth
from ondot.api.fast_path import RenderError
from ondot.api.request_id import HEADER, take_request_id
from ondot.api.sender import READING, check_host, refuse_foreign, refuse_other_sites
from ondot.model.errors import InvalidRequest, OndotError
from ondot.model.hook import is_token
from ondot.model.keys import holds_a_key
from ondot.model.ping import is_token as is_ping_token
from ondot.people.sessions import session_cookie

HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)


_API: Final = ("/v1/", "/api/v1/")
_PING: Final = "/ping/"


def refuse_key_in_url(scope: Scope) -> None:
    """Proxies and browsers store URLs: a key in one is no longer secret, and is never read."""
    query: bytes = scope["query_string"]
    if holds_a_key(scope["path"]) or (query and holds_a_key(query.decode("latin-1"))):
        raise InvalidRequest(
            "The URL has an API key in it, and URLs are stored in logs. Revoke this key, and send the new one as"
            " `Authorization: Bearer ondk_…`."
        )


def has_token(scope: Scope) -> bool:
    """Whether a request is sent to a hook or a ping, by its token. No page of another site knows one."""
    path: str = scope["path"]
    if path.startswith(_PING):
        return is_ping_token(path.removeprefix(_PING).partition("/")[0])
    return scope["method"] == "POST" and is_token(path.rpartition("/hooks/")[2])


class Guard:
    def __init__(self, app: ASGIApp, auth: Auth, render_error: RenderError, public_url: str | None = None) -> None:
        self._public_url = public_url
        self._app = app
        self._auth = auth
        self._render_error = render_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        request_id = take_request_id(scope)

        async def send_completed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = self._complete(message["status"], list(message.get("headers", ())))
                message["headers"] = [*headers, (HEADER, request_id)]
            await send(message)

        try:
            check_host(scope["headers"])
            is_form = not scope["path"].startswith(_API)
            # A webhook or a ping comes from elsewhere, often through a tunnel, and proves by its token that it may.
            is_known = has_token(scope)
            if self._auth.is_open and not is_known:
                refuse_foreign(scope["method"], scope["headers"], may_be_form=is_form)
            if (is_form and scope["method"] not in READING and not is_known) or session_cookie(
                scope["headers"]
            ) is not None:
                refuse_other_sites(scope["method"], scope["headers"], self._public_url)
            if "\0" in scope["path"]:
                raise InvalidRequest("The path must not contain NUL (%00).")
            refuse_key_in_url(scope)
        except OndotError as error:
            response = await self._render_error(Request(scope), error)
            await response(scope, receive, send_completed)
            return
        await self._app(scope, receive, send_completed)

    def _complete(self, status: int, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        present = {name for name, _ in headers}
        headers += [header for header in HEADERS if header[0] not in present]
        if status == 401:
            headers += [(b"www-authenticate", challenge.encode()) for challenge in self._auth.challenges]
        return headers
