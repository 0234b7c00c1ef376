"""A cache of API keys: few requests cost a statement, and a revoked key stops working within a second (T1).

A key is cached for half a second. Keys that are not cached wait for the statement that runs now, and are then looked up
in one statement. So a flood of wrong keys uses one connection, and a right key among them is still found.
"""

import asyncio
import re
from dataclasses import dataclass
from time import monotonic
from typing import Final

from ondot.model.access import Caller
from ondot.model.errors import Unavailable
from ondot.store.database import Database
from ondot.store.keys import find_callers, hash_key

CACHED_S: Final = 0.5
MAX_CACHED: Final = 10_000
KEYS_A_STATEMENT: Final = 1_000
FORM: Final = re.compile(r"ondot_[A-Za-z0-9_-]{20,100}")


@dataclass(slots=True)
class _Cached:
    caller: Caller
    read_s: float


class KnownKeys:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._cache: dict[bytes, _Cached] = {}
        self._wanted: dict[bytes, asyncio.Future[Caller | Unavailable | None]] = {}
        self._finding: asyncio.Task[None] | None = None

    async def find(self, key: str) -> Caller | None:
        """The caller that a key stands for; None if it is unknown, revoked or expired. Text that does not look like a
        key costs no statement."""
        if not FORM.fullmatch(key):
            return None
        digest = hash_key(key)
        cached = self._cache.get(digest)
        if cached is not None and monotonic() - cached.read_s < CACHED_S:
            return cached.caller
        # Wait for the next statement, not for the one that runs now: that one may have read the key before it was
        # revoked, which is seconds ago if the database is slow.
        wanted = self._wanted.setdefault(digest, asyncio.get_running_loop().create_future())
        if self._finding is None:
            # A task of its own: a caller that disconnects must not cancel the lookup of others.
            self._finding = asyncio.create_task(self._find_wanted(), name="keys")
        found = await asyncio.shield(wanted)
        if isinstance(found, Unavailable):
            raise Unavailable(found.message)
        return found

    async def _find_wanted(self) -> None:
        batch: dict[bytes, asyncio.Future[Caller | Unavailable | None]] = {}
        try:
            while self._wanted:
                batch = dict(list(self._wanted.items())[:KEYS_A_STATEMENT])
                for digest in batch:
                    del self._wanted[digest]
                await self._find_batch(batch)
        finally:
            self._finding = None
            # After a bug no request may wait for ever.
            for future in (*batch.values(), *self._wanted.values()):
                if not future.done():
                    future.set_result(Unavailable("The API key could not be looked up. Try again."))
            self._wanted.clear()

    async def _find_batch(self, batch: dict[bytes, asyncio.Future[Caller | Unavailable | None]]) -> None:
        read_s = monotonic()
        try:
            async with self._database.connection() as connection:
                callers = await find_callers(connection, list(batch))
        except Unavailable as error:
            for future in batch.values():
                future.set_result(error)
            return
        if len(self._cache) + len(callers) > MAX_CACHED:
            self._cache.clear()
        for digest, future in batch.items():
            caller = callers.get(digest)
            if caller is None:
                self._cache.pop(digest, None)
            else:
                self._cache[digest] = _Cached(caller, read_s)
            future.set_result(caller)
