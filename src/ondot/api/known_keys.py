"""The API keys that requests send (T1): which caller each stands for, and when it was last used.

Keys are looked up together and cached (`store.lookup`), each at most until it expires. The last use of a key is written
by a pass of its own, never by a request.
"""

import math
from collections.abc import Mapping, Sequence
from operator import attrgetter
from time import monotonic
from typing import TYPE_CHECKING, Final

from ondot.model.access import Caller
from ondot.model.keys import LONGEST, looks_like_a_key
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.keys import Found, Presented, find_callers, hash_key, present, record_uses
from ondot.store.lookup import Lookup

if TYPE_CHECKING:
    from uuid import UUID

USES_EVERY_S: Final = 5.0
USE_AGAIN_S: Final = 60.0
"""The last use of a key is written at most once in this time."""


def _valid_s(found: Found) -> float:
    return math.inf if found.left_s is None else found.left_s


class KnownKeys:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._lookup: Lookup[Presented, Found] = Lookup(
            database, self._find_and_note, attrgetter("hash"), name="keys", valid_s=_valid_s
        )
        self._used: set[UUID] = set()
        self._use_written_s: dict[UUID, float] = {}

    async def find(self, key: str) -> Caller | None:
        """The caller that a key stands for; None if it is unknown, revoked or expired. Text that does not look like a
        key costs no statement."""
        if len(key) > LONGEST:
            return None
        # By its hash first: checking the form takes longer.
        found = self._lookup.cached(hash_key(key))
        if found is None and looks_like_a_key(key):
            found = await self._lookup.get(present(key))
        return None if found is None else found.caller

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

    async def _find_and_note(self, connection: Connection, keys: Sequence[Presented]) -> Mapping[Presented, Found]:
        found = await find_callers(connection, keys)
        self._used.update(one.caller.key_id for one in found.values() if one.caller.key_id is not None)
        return found
