"""Look-ups by hash, shared and cached: few requests cost a statement, and a change holds within a second (T1).

A row is cached for half a second. Hashes that are not cached wait for the statement that runs now, and are then looked
up in one statement. So a flood of unknown ones uses one connection, and a right one among them is still found.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import Final, Generic, TypeVar

from ondot.model.errors import Unavailable
from ondot.store.connection import Connection
from ondot.store.database import Database

CACHED_S: Final = 0.5
MAX_CACHED: Final = 10_000
MAX_BATCH: Final = 1_000

Found = TypeVar("Found")
Find = Callable[[Connection, Sequence[bytes]], Awaitable[Mapping[bytes, Found]]]


class Lookup(Generic[Found]):
    def __init__(self, database: Database, find: "Find[Found]", *, name: str) -> None:
        """`find` returns the rows of hashes; unknown ones are left out. `name`: of its task."""
        self._database = database
        self._find = find
        self._name = name
        self._cache: dict[bytes, tuple[Found, float]] = {}
        self._wanted: dict[bytes, asyncio.Future[Found | Unavailable | None]] = {}
        self._finding: asyncio.Task[None] | None = None

    async def get(self, digest: bytes) -> Found | None:
        cached = self._cache.get(digest)
        if cached is not None and monotonic() - cached[1] < CACHED_S:
            return cached[0]
        # Wait for the next statement, not for the one that runs now: that one may have read the row before it changed,
        # which is seconds ago if the database is slow.
        wanted = self._wanted.setdefault(digest, asyncio.get_running_loop().create_future())
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

    async def _find_wanted(self) -> None:
        batch: dict[bytes, asyncio.Future[Found | Unavailable | None]] = {}
        try:
            while self._wanted:
                batch = dict(list(self._wanted.items())[:MAX_BATCH])
                for digest in batch:
                    del self._wanted[digest]
                await self._find_batch(batch)
        finally:
            self._finding = None
            # After a bug no request may wait for ever.
            for future in (*batch.values(), *self._wanted.values()):
                if not future.done():
                    future.set_result(Unavailable("The caller could not be looked up. Try again."))
            self._wanted.clear()

    async def _find_batch(self, batch: dict[bytes, asyncio.Future[Found | Unavailable | None]]) -> None:
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
        for digest, future in batch.items():
            row = rows.get(digest)
            if row is None:
                self._cache.pop(digest, None)
            else:
                self._cache[digest] = row, read_s
            future.set_result(row)
