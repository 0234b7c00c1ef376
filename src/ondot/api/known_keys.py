"""A short memory of API keys: a request rarely costs a statement, and a revoked key stops working within a second (T1).

A key is believed for half a second. What is asked for meanwhile waits for one statement, and all of it goes together:
a flood of wrong keys costs one connection, however many there are, and a right one among them is found.
"""

import asyncio
import re
from dataclasses import dataclass
from time import monotonic
from typing import Final

from ondot.model.errors import Unavailable
from ondot.store.database import Database
from ondot.store.keys import KeyOwner, find_owners, hash_key

REMEMBERED_S: Final = 0.5
KEYS_KEPT: Final = 10_000
TOGETHER: Final = 1_000
FORM: Final = re.compile(r"ondot_[A-Za-z0-9_-]{20,100}")


@dataclass(slots=True)
class _Remembered:
    owner: KeyOwner
    read_s: float


class KnownKeys:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._remembered: dict[bytes, _Remembered] = {}
        self._wanted: dict[bytes, asyncio.Future[KeyOwner | Unavailable | None]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def find(self, key: str) -> KeyOwner | None:
        """Whose key it is; None: nobody's, or revoked. What is not formed like a key costs no statement."""
        if not FORM.fullmatch(key):
            return None
        digest = hash_key(key)
        known = self._remembered.get(digest)
        if known is not None and monotonic() - known.read_s < REMEMBERED_S:
            return known.owner
        # Not the statement that is under way: it may have read before the key was revoked, and a slow database would
        # make that seconds.
        wanted = self._wanted.setdefault(digest, asyncio.get_running_loop().create_future())
        if self._looking is None:
            # A task of its own: a caller that goes away takes nobody else's answer with it.
            self._looking = asyncio.create_task(self._look(), name="keys")
        found = await asyncio.shield(wanted)
        if isinstance(found, Unavailable):
            raise Unavailable(found.message)
        return found

    async def _look(self) -> None:
        batch: dict[bytes, asyncio.Future[KeyOwner | Unavailable | None]] = {}
        try:
            while self._wanted:
                batch = dict(list(self._wanted.items())[:TOGETHER])
                for digest in batch:
                    del self._wanted[digest]
                await self._look_up(batch)
        finally:
            self._looking = None
            # After a bug: nobody waits for ever.
            for future in (*batch.values(), *self._wanted.values()):
                if not future.done():
                    future.set_result(Unavailable("The API key could not be looked up: try again."))
            self._wanted.clear()

    async def _look_up(self, batch: dict[bytes, asyncio.Future[KeyOwner | Unavailable | None]]) -> None:
        read_s = monotonic()
        try:
            async with self._database.connection() as connection:
                owners = await find_owners(connection, list(batch))
        except Unavailable as error:
            for future in batch.values():
                future.set_result(error)
            return
        if len(self._remembered) + len(owners) > KEYS_KEPT:
            self._remembered.clear()
        for digest, future in batch.items():
            owner = owners.get(digest)
            if owner is None:
                self._remembered.pop(digest, None)
            else:
                self._remembered[digest] = _Remembered(owner, read_s)
            future.set_result(owner)
