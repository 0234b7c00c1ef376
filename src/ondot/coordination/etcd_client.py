"""Calls to etcd, over the JSON gateway that every etcd since 3.4 serves at its client URL (C6).

Chosen over etcd's gRPC clients for Python: they know no TLS or pin old packages, and gRPC's asyncio must not run in the
loop of a second thread, which is where a node beats. Every call has a deadline, for each endpoint: a frozen etcd keeps
its connections open and answers nothing. The endpoint that answered last is asked first.
"""

import asyncio
import json
import ssl
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final

import aiohttp

from ondot.model.etcd_url import EtcdAddress

UNAUTHENTICATED: Final = 16
ANOTHER_MAY_ANSWER: Final = frozenset({4, 8, 14})
"""gRPC's deadline exceeded, resource exhausted, unavailable: a member without a leader, or one that starts."""
LONGEST_LINE: Final = 1024 * 1024
"""Of a watch: the changes of one transaction, with some 300 bytes for each of 64 partitions."""
NO_GATEWAY: Final = "this etcd does not serve its JSON gateway: set --enable-grpc-gateway, or use etcd 3.4 or newer"

Json = dict[str, Any]


class EtcdError(Exception):
    """etcd cannot be reached, or refuses. `code`: of gRPC, if it answered."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class EtcdClient:
    """Belongs to the loop in which it is made."""

    def __init__(self, address: EtcdAddress, *, ca: Path | None, try_s: float) -> None:
        """`try_s`: how long one endpoint may take for one call."""
        self._address = address
        self._try_s = try_s
        self._first = 0
        self._token: str | None = None
        verify = ssl.create_default_context(cafile=ca) if address.endpoints[0].startswith("https") else True
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=verify), read_bufsize=LONGEST_LINE, trust_env=False
        )

    async def close(self) -> None:
        await self._http.close()

    async def call(self, path: str, body: Mapping[str, Any]) -> Json:
        """Ask one endpoint after the other: all calls may be repeated. Raises EtcdError."""
        for again in (True, False):
            try:
                return await self._ask_all(path, body)
            except EtcdError as error:
                if error.code != UNAUTHENTICATED or self._address.user is None or not again:
                    raise
                self._token = None
        raise AssertionError

    async def watch(self, create: Mapping[str, Any], *, for_s: float) -> AsyncIterator[Json]:
        """The messages of a watch, for that long. Raises EtcdError when it breaks."""
        endpoint = self._address.endpoints[self._first]
        try:
            async with self._http.post(
                f"{endpoint}/v3/watch",
                json={"create_request": create},
                headers=self._headers(),
                timeout=aiohttp.ClientTimeout(total=for_s, sock_connect=self._try_s),
            ) as answer:
                async for line in answer.content:
                    message = _decode(answer.status, line)
                    yield message["result"]
        except TimeoutError:
            return
        except (aiohttp.ClientError, OSError, ValueError, KeyError) as error:
            raise EtcdError(_why(error)) from error

    async def _ask_all(self, path: str, body: Mapping[str, Any]) -> Json:
        endpoints, why = self._address.endpoints, []
        order = [(self._first + number) % len(endpoints) for number in range(len(endpoints))]
        # One that refused a connection again at the end: a restart has closed those that were kept.
        repeated: list[int] = []
        for number in chain(order, repeated):
            try:
                reply = await self._ask(endpoints[number], path, body)
            except TimeoutError:
                why.append(f"{endpoints[number]} does not answer within {self._try_s:g} s")
            except (aiohttp.ClientError, OSError) as error:
                why.append(f"{endpoints[number]}: {_why(error)}")
                if not repeated:
                    repeated.append(number)
            except EtcdError as error:
                if error.code is not None and error.code not in ANOTHER_MAY_ANSWER:
                    raise
                why.append(f"{endpoints[number]}: {error}")
            else:
                self._first = number
                return reply
        raise EtcdError("; ".join(dict.fromkeys(why)))

    async def _ask(self, endpoint: str, path: str, body: Mapping[str, Any]) -> Json:
        async with asyncio.timeout(self._try_s):
            if self._address.user is not None and self._token is None:
                self._token = await self._sign_in(endpoint)
            return await self._post(endpoint, path, body)

    async def _sign_in(self, endpoint: str) -> str:
        body = {"name": self._address.user, "password": self._address.password or ""}
        try:
            return str((await self._post(endpoint, "auth/authenticate", body))["token"])
        except EtcdError as error:
            raise EtcdError(f"etcd refuses the user {self._address.user}: {error}", error.code) from error

    async def _post(self, endpoint: str, path: str, body: Mapping[str, Any]) -> Json:
        async with self._http.post(f"{endpoint}/v3/{path}", json=body, headers=self._headers()) as answer:
            return _decode(answer.status, await answer.read())

    def _headers(self) -> dict[str, str]:
        return {} if self._token is None else {"Authorization": self._token}


def encode(text: str) -> str:
    """A key or a value, as the gateway has them."""
    return b64encode(text.encode()).decode()


def decode(text: str) -> str:
    return b64decode(text).decode(errors="replace")


def end_of(prefix: str) -> str:
    """Where the keys with this prefix end. Its last character is ASCII."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _decode(status: int, body: bytes) -> Json:
    try:
        reply = json.loads(body)
    except ValueError:
        reply = None
    if not isinstance(reply, dict):
        raise EtcdError(NO_GATEWAY if status == 404 else f"not an answer of etcd: HTTP {status}")
    fault = reply.get("error")
    if isinstance(fault, dict):  # of a stream
        raise EtcdError(str(fault.get("message", fault)), fault.get("grpc_code"))
    if fault is not None or status != 200:
        raise EtcdError(str(reply.get("message") or fault or f"HTTP {status}"), reply.get("code"))
    return reply


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__
