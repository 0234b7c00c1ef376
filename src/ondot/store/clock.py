"""The database's clock as seen from this process: to mint ids and to sleep precisely, never to decide what is due.

Decisions are made in SQL by `ondot.clock()`. Here its distance from this process's monotonic clock is estimated from
round trips; the node's own wall clock, which may be an hour off, is never read.
"""

import math
import os
import struct
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

from asyncpg.pgproto import pgproto

from ondot.model.ids import ticks_at, uuid7

DRIFT = 0.001
"""How far the two clocks may go apart in a second, generously: so much less an older reading tells."""
STEP_S = 0.5
"""A reading that is further off than both can be, and by this much more: the clock was set."""


class DatabaseClock:
    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offset: timedelta | None = None
        self._uncertain_s = math.inf
        self._seen_s = 0.0
        self._frozen: datetime | None = None
        self._last_tick = 0

    def see(self, database_now: datetime, sent_s: float) -> None:
        """Take a reading: the database said `database_now` to a question sent at `sent_s` (monotonic)."""
        received_s = self._monotonic()
        middle_s, uncertain_s = (sent_s + received_s) / 2, (received_s - sent_s) / 2
        offset = database_now - datetime.fromtimestamp(0, UTC) - timedelta(seconds=middle_s)
        if self._offset is not None and uncertain_s > (known_s := self.uncertain_s):
            off_s = abs((offset - self._offset).total_seconds())
            if off_s < uncertain_s + known_s + STEP_S:
                return
        self._offset = offset
        self._uncertain_s, self._seen_s = uncertain_s, received_s

    @property
    def uncertain_s(self) -> float:
        """How far off the estimate may be by now."""
        return self._uncertain_s + (self._monotonic() - self._seen_s) * DRIFT

    def freeze(self, now: datetime | None) -> None:
        """Stand still at this instant, as a clock turned by hand does (`ondot.testing`)."""
        self._frozen = now

    def now(self) -> datetime:
        if self._frozen is not None:
            return self._frozen
        assert self._offset is not None, "the database was not asked for its time yet"
        return datetime.fromtimestamp(0, UTC) + self._offset + timedelta(seconds=self._monotonic())

    def new_id(self) -> UUID:
        return self.new_ids(1)[0]

    def new_ids(self, count: int) -> list[UUID]:
        """Ids in order, also within one instant: a list by id is a list by age, and a burst fills index pages from
        one side. Ten thousand at once run 2.4 ms ahead of the clock. Of the driver's own kind, as all ids that are
        read: the standard library's takes four times as long to make and to send."""
        first = max(ticks_at(self.now()), self._last_tick + 1)
        self._last_tick = first + count - 1
        random = struct.unpack(f"{count}Q", os.urandom(8 * count))
        return [pgproto.UUID(uuid7(first + number, bits)) for number, bits in enumerate(random)]
