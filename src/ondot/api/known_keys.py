"""A cache of API keys: few requests cost a statement, and a revoked key stops working within a second (T1).

A key is cached for half a second, or until it expires. Keys that are not cached wait for the statement that runs now,
and are then looked up in one statement. So a flood of wrong keys uses one connection, and a right key among them is
still found. The last use of a key is written by a pass of its own, never by a request.
"""

import asyncio
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final

from ondot.model.access import Caller
from ondot.model.errors import Unavailable
from ondot.model.keys import LONGEST, looks_like_a_key
from ondot.store.database import Database
from ondot.store.keys import Presented, find_callers, hash_key, present, record_uses

if TYPE_CHECKING:
    from uuid import UUID

CACHED_S: Final = 0.5
MAX_CACHED: Final = 10_000
KEYS_A_STATEMENT: Final = 1_000
USES_EVERY_S: Final = 5.0
USE_AGAIN_S: Final = 60.0
"""The last use of a key is written at most once in this time."""

_Answer = Caller | Unavailable | None


@dataclass(slots=True)
class _Cached:
    caller: Caller
    until_s: float


class KnownKeys:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._cache: dict[bytes, _Cached] = {}
        self._wanted: dict[Presented, asyncio.Future[_Answer]] = {}
        self._finding: asyncio.Task[None] | None = None
        self._used: set[UUID] = set()
        self._use_written_s: dict[UUID, float] = {}

    async def find(self, key: str) -> Caller | None:
        """The caller that a key stands for; None if it is unknown, revoked or expired. Text that does not look like a
        key costs no statement."""
        if len(key) > LONGEST:
            return None
        cached = self._cache.get(hash_key(key))
        if cached is not None and monotonic() < cached.until_s:
            return cached.caller
        if not looks_like_a_key(key):
            return None
        # Wait for the next statement, not for the one that runs now: that one may have read the key before it was
        # revoked, which is seconds ago if the database is slow.
        wanted = self._wanted.setdefault(present(key), asyncio.get_running_loop().create_future())
        if self._finding is None:
            # A task of its own: a caller that disconnects must not cancel the lookup of others.
            self._finding = asyncio.create_task(self._find_wanted(), name="keys")
        found = await asyncio.shield(wanted)
        if isinstance(found, Unavailable):
            raise Unavailable(found.message)
        return found

    async def write_uses(self) -> int:
        """One pass: write the last use of the keys that were used."""
        now_s = monotonic()
        self._use_written_s = {id_: at_s for id_, at_s in self._use_written_s.items() if now_s - at_s < USE_AGAIN_S}
        used = self._used - self._use_written_s.keys()
        self._used.clear()
        if used:
            async with self._database.connection() as connection:
                await record_uses(connection, used)
            self._use_written_s.update(dict.fromkeys(used, now_s))
        return 0

    async def _find_wanted(self) -> None:
        batch: dict[Presented, asyncio.Future[_Answer]] = {}
        try:
            while self._wanted:
                batch = dict(list(self._wanted.items())[:KEYS_A_STATEMENT])
                for presented in batch:
                    del self._wanted[presented]
                await self._find_batch(batch)
        finally:
            self._finding = None
            # After a bug no request may wait for ever.
            for future in (*batch.values(), *self._wanted.values()):
                if not future.done():
                    future.set_result(Unavailable("The API key could not be looked up. Try again."))
            self._wanted.clear()

    async def _find_batch(self, batch: dict[Presented, asyncio.Future[_Answer]]) -> None:
        read_s = monotonic()
        try:
            async with self._database.connection() as connection:
                found = await find_callers(connection, batch.keys())
        except Unavailable as error:
            for future in batch.values():
                future.set_result(error)
            return
        if len(self._cache) + len(found) > MAX_CACHED:
            self._cache.clear()
        for presented, future in batch.items():
            one = found.get(presented)
            if one is None:
                self._cache.pop(presented.hash, None)
                future.set_result(None)
                continue
            valid_s = CACHED_S if one.left_s is None else min(CACHED_S, one.left_s)
            self._cache[presented.hash] = _Cached(one.caller, read_s + valid_s)
            if one.caller.key_id is not None:
                self._used.add(one.caller.key_id)
            future.set_result(one.caller)
