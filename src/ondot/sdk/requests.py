"""Requests to a server over HTTP: connections, timeouts, retries, and problems as errors. `client` has the calls.

A problem is raised as the error of `model.errors` that has its code, so that client and server use the same errors. A
request that creates something carries an idempotency key. It is retried if the server cannot be reached or asks for a
retry; with the same key the server creates it once (P2).
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import uuid4
from weakref import WeakSet

import msgspec

from ondot import __version__
from ondot.model.errors import TooManyWrongKeys, Unavailable
from ondot.model.urls import without_userinfo
from ondot.proxies import is_this_machine
from ondot.sdk.problems import TYPE, error_of
from ondot.telemetry.trace_context import current_trace

if TYPE_CHECKING:
    import httpx2  # loaded at the first request: 35 ms that importing a module with functions need not take

    from ondot.sdk.awaited import AwaitedJobs

RETRIES: Final = 3
LONGEST_WAIT_S: Final = 10.0

Json = dict[str, Any]


@dataclass(slots=True)
class OfLoop:
    """What a client has in one event loop: connections, and the jobs that are awaited (`awaited`)."""

    http: "httpx2.AsyncClient"
    awaited: "AwaitedJobs | None" = None


class Requests:
    """Can be used in any event loop, also in several at the same time: each gets its own connections."""

    def __init__(
        self, url: str | None = None, api_key: str | None = None, timeout_s: float = 30, *, tenant: str | None = None
    ) -> None:
        """`tenant`: an owner of the installation acts for it."""
        self._tenant = tenant
        self._given_url = url
        self._given_key = api_key
        self._timeout_s = timeout_s
        self._of_loops: dict[asyncio.AbstractEventLoop, OfLoop] = {}

    async def close(self) -> None:
        """Close the connections of the running loop."""
        if (of_loop := self._of_loops.pop(asyncio.get_running_loop(), None)) is not None:
            await of_loop.http.aclose()

    @staticmethod
    async def close_all() -> None:
        """Close the connections that all clients have in the running loop."""
        for client in list(_OPENED):
            await client.close()

    def forget_connections(self) -> None:
        """Open new ones for the next request of each loop."""
        self._of_loops.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _make(
        self,
        path: str,
        body: Mapping[str, Any],
        idempotency_key: str | None,
        query: Mapping[str, Any] | None = None,
    ) -> Json:
        """A POST that creates something once, even if it is sent several times."""
        headers = {"idempotency-key": idempotency_key or str(uuid4())}
        for tries in range(1, RETRIES + 1):
            try:
                response = await self._send("POST", path, body=body, headers=headers, query=query)
            except Unavailable:
                await asyncio.sleep(0.1 * 2**tries)
                continue
            wait_s = _retry_after_s(response)
            if wait_s is None:
                return self._answer(response)
            await asyncio.sleep(wait_s)
        return self._answer(await self._send("POST", path, body=body, headers=headers, query=query))

    async def _call(self, method: str, path: str, **request: Any) -> Json:
        return self._answer(await self._send(method, path, **request))

    async def _pieces(self, path: str, query: Mapping[str, Any] | None = None) -> AsyncIterator[bytes]:
        client = self._client()
        with self._unavailable_if_unreachable(client):
            async with client.stream("GET", path, params=_params(query)) as response:
                if not response.is_success:
                    await response.aread()
                    self._answer(response)
                async for piece in response.aiter_bytes():
                    yield piece

    def _answer(self, response: "httpx2.Response") -> Json:
        answer = body_of(response)
        if response.is_success and isinstance(answer, dict):
            return answer
        raise error_of(response.status_code, answer, _show_url(self._client()))

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | list[dict[str, Any]] | None = None,
        headers: Mapping[str, str] | None = None,
        longer_s: float = 0,
    ) -> "httpx2.Response":
        """`longer_s`: how long the server may wait before it answers, beyond the timeout."""
        client = self._client()
        timeout = self._timeout_s + longer_s
        if (trace := current_trace()) is not None:
            headers = {**(headers or {}), "traceparent": trace.traceparent}
            if trace.state is not None:
                headers["tracestate"] = trace.state
        with self._unavailable_if_unreachable(client):
            return await client.request(
                method, path, params=_params(query), json=body, headers=headers, timeout=timeout
            )

    @contextmanager
    def _unavailable_if_unreachable(self, client: "httpx2.AsyncClient") -> Iterator[None]:
        """Raise errors of the network as Unavailable, with what to do."""
        import httpx2

        try:
            yield
        except httpx2.TimeoutException as error:
            raise Unavailable(f"{_show_url(client)} did not answer within {self._timeout_s:g} s.") from error
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            raise Unavailable(
                f"No ondot server can be reached at {_show_url(client)} ({error}). "
                "Start one with `ondot up`, or set its address: ONDOT_URL=http://host:1200."
            ) from error

    def _client(self) -> "httpx2.AsyncClient":
        return self.of_loop().http

    def of_loop(self) -> OfLoop:
        """What belongs to the running loop. Loops of several threads use one client at the same time."""
        loop = asyncio.get_running_loop()
        found = self._of_loops.get(loop)
        if found is None:
            # Connections of a loop that has ended (an earlier `asyncio.run`) cannot be used again.
            for ended in [known for known in list(self._of_loops) if known.is_closed()]:
                self._of_loops.pop(ended, None)
            found = self._of_loops[loop] = OfLoop(self._open())
            _OPENED.add(self)
        return found

    def _open(self) -> "httpx2.AsyncClient":
        import httpx2

        url, key, tenant = self._given_url, self._given_key, self._tenant
        if url is None or key is None:
            from ondot.account.token import token_for
            from ondot.settings import default_home, load_settings

            settings = load_settings(url=url, api_key=key)
            url, key = settings.server
            tenant = tenant or settings.tenant
            # A server without keys may be unable to see that this is its own account, and then needs the token.
            key = key or token_for(url, settings.home or default_home())
        headers = {"user-agent": f"ondot/{__version__}", "accept": "application/json"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        if tenant is not None:
            headers["ondot-tenant"] = tenant
        return httpx2.AsyncClient(
            base_url=url.rstrip("/"),
            headers=headers,
            timeout=self._timeout_s,
            # A proxy for the internet cannot reach a server on this machine.
            trust_env=not is_this_machine(url),
        )


_OPENED: Final[WeakSet[Requests]] = WeakSet()
"""Clients that have connections: those of the bridge of `sync` are closed when it ends."""


def _show_url(client: "httpx2.AsyncClient") -> str:
    return without_userinfo(str(client.base_url))


def _params(query: Mapping[str, Any] | None) -> Json:
    return {name: plain(value) for name, value in (query or {}).items() if value is not None}


def plain(value: Any) -> Any:
    """A value as it is written in a query or a body."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def body_of(response: "httpx2.Response") -> Any:
    """The JSON of a response; None if it is not JSON."""
    try:
        return msgspec.json.decode(response.content)
    except ValueError:
        return None


def _retry_after_s(response: "httpx2.Response") -> float | None:
    """How long to wait before a retry: the database is unavailable, or the queue is full. None: do not retry."""
    text = response.headers.get("retry-after", "")
    if response.status_code not in {429, 503} or not (text.isascii() and text.isdigit()):
        return None
    answer = body_of(response)
    if isinstance(answer, dict) and answer.get("type") == f"{TYPE}{TooManyWrongKeys.code}":
        return None  # a retry would send the same wrong key
    return min(float(text), LONGEST_WAIT_S)
