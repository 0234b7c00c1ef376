"""HTTP targets in a world: everything is real but the network. The test sets the answers of each URL.

The call goes through the same `HttpCaller` as in a worker: headers, limits and how an answer is judged are the same.
Only the session below it is replaced: it records the request and returns the next answer of its URL. A URL without an
answer cannot be reached, and the attempt fails with an error that says how to set one.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import aiohttp
import msgspec
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from ondot.model.addresses import EVERYWHERE
from ondot.targets.addresses import Allowed
from ondot.targets.http.target import HttpCaller, KeysFor
from ondot.testing.records import Request


@dataclass(slots=True)
class _Answer:
    status: int
    body: bytes
    headers: Mapping[str, str]
    given: bool = False


class Receivers:
    """The answers of each URL, in the order they were added; the last one stays."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._answers: dict[str, list[_Answer]] = {}
        self.requests: list[Request] = []

    def add(self, url: str, *, status: int, json: Any, text: str | None, headers: Mapping[str, str] | None) -> None:
        if json is not None and text is not None:
            raise TypeError("An answer has one body: pass `json` or `text`.")
        if not 100 <= status <= 999:
            raise ValueError(f"{status} is not an HTTP status.")
        kind = {"content-type": "application/json"} if json is not None else {"content-type": "text/plain"}
        body = msgspec.json.encode(json) if json is not None else (text or "").encode()
        waiting = self._answers.setdefault(_normalize(url), [])
        # An answer that was already returned stayed as the last one; this one replaces it.
        waiting[:] = [answer for answer in waiting if not answer.given]
        waiting.append(_Answer(status, body, {**kind, **(headers or {})}))

    def answer(self, method: str, url: URL, payload: bytes | None, headers: Mapping[str, str]) -> _Answer:
        body = msgspec.json.decode(payload) if payload else None
        self.requests.append(Request(method, str(url), self._now(), body, CIMultiDictProxy(CIMultiDict(headers))))
        waiting = self._answers.get(_normalize(url))
        if not waiting:
            known = ", ".join(sorted(self._answers)) or "none"
            raise OSError(f'a world has no network: set the answer with world.on_http("{url}"); set so far: {known}')
        answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        answer.given = True
        return answer


def _normalize(url: str | URL) -> str:
    return str(URL(url))


class OfflineHttp(HttpCaller):
    """A worker's HTTP caller, whose session has only the answers that the test set."""

    def __init__(self, receivers: Receivers, keys_for: KeysFor) -> None:
        super().__init__(reach=EVERYWHERE, keys_for=keys_for)
        self._receivers = receivers

    def _open(self, _allowed: Allowed) -> aiohttp.ClientSession:
        session: Any = _Session(self._receivers)
        return session  # type: ignore[no-any-return]


class _Session:
    """The part of aiohttp's session that the caller uses."""

    def __init__(self, receivers: Receivers) -> None:
        self._receivers = receivers

    @asynccontextmanager
    async def request(
        self, method: str, url: URL, *, data: bytes | None, headers: Mapping[str, str], allow_redirects: bool
    ) -> AsyncIterator["_Response"]:
        assert not allow_redirects
        yield _Response(self._receivers.answer(method, url, data, headers))

    async def close(self) -> None:
        """There is nothing to close."""


class _Response:
    def __init__(self, answer: _Answer) -> None:
        self.status = answer.status
        self.headers: CIMultiDict[str] = CIMultiDict(answer.headers)
        self.content = asyncio.StreamReader()
        self.content.feed_data(answer.body)
        self.content.feed_eof()

    @property
    def content_type(self) -> str:
        return self.headers["content-type"].partition(";")[0].strip()

    def close(self) -> None:
        """There is no connection to close."""
