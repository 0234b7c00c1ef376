"""Bounds of request bodies: their size, their time, and how many large ones are read and parsed at once.

`Content-Length` is checked before anything is read, and the bytes that arrive are counted in any case. Bodies of more
than `LARGE` bytes are decoded and checked in a thread, at most `AT_ONCE` at a time, so that `/livez`, heartbeats and
other requests are answered meanwhile. Large bodies that are read at the same time take at most the memory of
`MOST_BATCHES` of the largest batch; beyond that a large body gets a 503. Small bodies are never rejected for it.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from ondot.document.json_text import too_large
from ondot.model.errors import Busy, InvalidRequest
from ondot.settings import Settings

WITHIN_S: Final = 30.0
"""A client that stops in the middle of its body is cut off after this."""
LARGE: Final = 16 * 1024
"""A body of up to this many bytes is parsed in the event loop: 1 ms, or 20 ms if every field is wrong."""
MOST_BATCHES: Final = 2
AT_ONCE: Final = 2

_BYTES: Final = "ondot.body_bytes"

Read = TypeVar("Read")


class Intake:
    """The bodies of one process."""

    def __init__(self, settings: Settings) -> None:
        self.max_bytes = settings.max_body_bytes
        self.max_batch_bytes = settings.max_batch_bytes
        self._most = MOST_BATCHES * max(self.max_bytes, self.max_batch_bytes)
        self._in_memory = 0
        self._parsing = asyncio.Semaphore(AT_ONCE)

    async def raw(self, request: Request, max_bytes: int) -> bytes:
        """Read a body, in bounded space and time."""
        claimed = request.headers.get("content-length", "")
        if claimed.isdecimal() and int(claimed[:20]) > max_bytes:
            raise too_large(max_bytes, int(claimed[:20]))
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(WITHIN_S):
                async for chunk in request.stream():
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > max_bytes:
                        raise too_large(max_bytes)
                    if size > LARGE:
                        self._take(request.scope, size)
        except TimeoutError:
            raise InvalidRequest(f"The body did not end within {WITHIN_S:g} s. Send all of it, or end it.") from None
        except ClientDisconnect:
            raise InvalidRequest("The connection ended before the body did.") from None
        return b"".join(chunks)

    async def parse(self, parse: Callable[[], Read], *, is_slow: bool) -> Read:
        """A slow parse runs in a thread, two at a time: other requests must not wait for it."""
        if not is_slow:
            return parse()
        async with self._parsing:
            return await asyncio.to_thread(parse)

    def _take(self, scope: Scope, size: int) -> None:
        more = size - scope.get(_BYTES, 0)
        if self._in_memory + more > self._most:
            raise Busy(f"ondot is reading {self._in_memory:,} bytes of other large bodies; send this one again in 2 s.")
        self._in_memory += more
        scope[_BYTES] = size

    def release(self, scope: Scope) -> None:
        """The request has ended: free the memory that was counted for its body."""
        self._in_memory -= scope.pop(_BYTES, 0)


class ReleaseBody:
    """Middleware that releases a request's body when the request has ended."""

    def __init__(self, app: ASGIApp, intake: Intake) -> None:
        self._app = app
        self._intake = intake

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            self._intake.release(scope)
