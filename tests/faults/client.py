"""A client as a careful user would write one, without code of ondot.

It goes to another API when one does not answer, waits as long as a 503 or 429 says, and retries with the same
Idempotency-Key. On purpose it can also do what hasty users do: hang up before the answer, once or for good.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.faults.journal import Outcome

TRY_S = 4.0
PATIENCE_S = 60.0
PAUSE_S = 0.3
LONGEST_WAIT_S = 3.0
AT_ONCE = 24
NEVER_SENT = (aiohttp.ClientConnectorError,)
NO_ANSWER = (aiohttp.ClientError, TimeoutError, ConnectionError)

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    asked_s: float
    outcome: Outcome
    status: int | None = None
    answer: Body = field(default_factory=dict)
    acked_s: float | None = None
    tries: int = 1
    was_unclear: bool = False
    sent_s: float | None = None
    """When the try that was answered was sent."""


@dataclass(slots=True)
class Client:
    urls: Sequence[str]
    chance: random.Random
    happened: Counter[str] = field(default_factory=Counter)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Of every request."""
    _room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    _next_url: int = 0
    _session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with aiohttp.ClientSession() as self._session:
            yield
        self._session = None

    async def ask(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        give_up: bool = False,
        hasty: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> Reply:
        """Retry until a clear answer, or until patience ends. `hasty` hangs up on the first try, `give_up` for good."""
        async with self._room:
            asked_s = time.time()
            until_s = time.monotonic() + patience_s
            tries, unclear, status = 0, False, None
            while time.monotonic() < until_s:
                tries += 1
                try_s = self.chance.uniform(0.002, 0.03) if give_up or (hasty and tries == 1) else TRY_S
                wait_s = PAUSE_S * self.chance.uniform(0.5, 1.5)
                sent_s = time.time()
                try:
                    status, answered, answer = await self._send(method, path, body, key, headers or {}, try_s)
                except NEVER_SENT:
                    self.happened["not sent"] += 1
                except NO_ANSWER:
                    self.happened["no answer"] += 1
                    unclear, status = True, None
                else:
                    if 200 <= status < 300:
                        return Reply(asked_s, "acked", status, answer, time.time(), tries, unclear, sent_s)
                    self.happened[f"status {status}"] += 1
                    if status < 500 and status != 429:
                        outcome: Outcome = "unclear" if unclear else "refused"
                        return Reply(asked_s, outcome, status, answer, None, tries, unclear, sent_s)
                    unclear = unclear or status != 429
                    wait_s = min(float(answered.get("retry-after", wait_s)), LONGEST_WAIT_S)
                if give_up:
                    break
                await asyncio.sleep(wait_s)
            return Reply(asked_s, "unclear" if unclear else "refused", status, {}, None, tries, unclear)

    async def _send(
        self, method: str, path: str, body: Body | None, key: str | None, more: Mapping[str, str], within_s: float
    ) -> tuple[int, Any, Body]:
        """Each time to the next API: a repeated request meets another process."""
        assert self._session is not None, "open it first"
        self._next_url += 1
        url = self.urls[self._next_url % len(self.urls)].rstrip("/") + path
        headers = {"content-type": "application/json", **self.headers, **more} | (
            {"idempotency-key": key} if key else {}
        )
        data = None if body is None else json.dumps(body)
        timeout = aiohttp.ClientTimeout(total=within_s)
        async with self._session.request(method, url, data=data, headers=headers, timeout=timeout) as response:
            text = await response.text()
            return response.status, response.headers, json.loads(text) if text else {}
