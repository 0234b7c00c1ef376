"""Whether this installation still answers without keys (T1): it is one person's, with one tenant and no users.

The first user or the second tenant ends that, in every running process within a second: the answer is read again after
half a second, once for all requests of that time.
"""

import asyncio
from time import monotonic
from typing import Final

from ondot.model.errors import Unavailable
from ondot.store.database import Database
from ondot.store.users import read_population

CACHED_S: Final = 0.5


class Keyless:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._reading = asyncio.Lock()
        self._read_s: float | None = None
        self.why_ended: str | None = None
        """As it was read last; None: it has not ended."""

    async def has_ended(self) -> bool:
        if self._is_old():
            async with self._reading:
                if self._is_old():
                    await self._read()
        return self.why_ended is not None

    def _is_old(self) -> bool:
        return self._read_s is None or monotonic() - self._read_s >= CACHED_S

    async def _read(self) -> None:
        read_s = monotonic()
        try:
            async with self._database.connection() as connection:
                has_users, has_tenants = await read_population(connection)
        except Unavailable:
            # Nothing can be read or changed now; pages that need no database still open. Read again at once.
            return
        self._read_s = read_s
        self.why_ended = "it has users" if has_users else "it has several tenants" if has_tenants else None
