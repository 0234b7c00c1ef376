"""Look-ups by hash, shared and cached: few requests cost a statement, and a change holds within a second (T1).

A row is cached for half a second, or for as long as it is valid. Keys that are not cached wait for the statement that
runs now, and are then looked up in one statement. So a flood of unknown ones uses one connection, and a right one among
them is still found.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import Final, Generic, TypeVar

from ondot.model.errors import Unavailable
from ondot.store.connection import Connection
from ondot.store.database import Database

CACHED_S: Final = 0.5
MAX_CACHED: Final = 10_000
MAX_BATCH: Final = 1_000

Key = TypeVar("Key")
Found = TypeVar("Found")
Find = Callable[[Connection, Sequence[Key]], Awaitable[Mapping[Key, Found]]]


class Lookup(Generic[Key, Found]):
    def __init__(
        self,
        database: Database,
        find: "Find[Key, Found]",
        digest_of: Callable[[Key], bytes],
        *,
        name: str,
        valid_s: Callable[[Found], float] = lambda _: math.inf,
    ) -> None:
        """`find` returns the rows of keys; unknown ones are left out. `valid_s`: how long a row is true after it was
        read. `name`: of the task."""
        self._database = database
        self._find = find
        self._digest_of = digest_of
        self._valid_s = valid_s
        self._name = name
        self._cache: dict[bytes, tuple[Found, float]] = {}
        """By digest: the row, and until when it is used."""
        self._wanted: dict[Key, asyncio.Future[Found | Unavailable | None]] = {}
        self._finding: asyncio.Task[None] | None = None

    def cached(self, digest: bytes) -> Found | None:
        cached = self._cache.get(digest)
        return cached[0] if cached is not None and monotonic() < cached[1] else None

    async def get(self, key: Key) -> Found | None:
        if (cached := self.cached(self._digest_of(key))) is not None:
            return cached
        # Wait for the next statement, not for the one that runs now: that one may have read the row before it changed,
        # which is seconds ago if the database is slow.
        wanted = self._wanted.setdefault(key, asyncio.get_running_loop().create_future())
        if self._finding is None:
            # A task of its own: a caller that disconnects must not cancel the look-up of others.
            self._finding = asyncio.create_task(self._find_wanted(), name=self._name)
        found = await asyncio.shield(wanted)
        if isinstance(found, Unavailable):
            raise Unavailable(found.message)
        return found

    def forget(self, digest: bytes) -> None:
        """This process has changed the row: read it again."""
        self._cache.pop(digest, None)

    def clear(self) -> None:
        """This process has changed rows whose digests it does not know."""
        self._cache.clear()

    async def _find_wanted(self) -> None:
        batch: dict[Key, asyncio.Future[Found | Unavailable | None]] = {}
        try:
            while self._wanted:
                batch = dict(list(self._wanted.items())[:MAX_BATCH])
                for key in batch:
                    del self._wanted[key]
                await self._find_batch(batch)
        finally:
            self._finding = None
            # After a bug no request may wait for ever.
            for future in (*batch.values(), *self._wanted.values()):
                if not future.done():
                    future.set_result(Unavailable("The caller could not be looked up. Try again."))
            self._wanted.clear()

    async def _find_batch(self, batch: dict[Key, asyncio.Future[Found | Unavailable | None]]) -> None:
        read_s = monotonic()
        try:
            async with self._database.connection() as connection:
                rows = await self._find(connection, list(batch))
        except Unavailable as error:
            for future in batch.values():
                future.set_result(error)
            return
        if len(self._cache) + len(rows) > MAX_CACHED:
            self._cache.clear()
        for key, future in batch.items():
            row = rows.get(key)
            if row is None:
                self.forget(self._digest_of(key))
            else:
                self._cache[self._digest_of(key)] = row, read_s + min(CACHED_S, self._valid_s(row))
            future.set_result(row)
