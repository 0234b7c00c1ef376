"""The database's clock as seen from this process: to mint ids and to sleep precisely, never to decide what is due.

Decisions are made in SQL by `ondot.clock()`. Here its distance from this process's monotonic clock is estimated from
round trips; the node's own wall clock, which may be an hour off, is never read.

The database's clock may be set while this process believes the old one. So instants that are computed here and stored
(`in`, an interval's anchor, a first fire) come from a `Moment`, and the statement that stores them checks it: it stores
nothing if it finds the database's clock outside of `bounds`, and `ClockStepped` is raised. `Database.by_clock` then
reads the clock and computes them again.
"""

import math
import os
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from asyncpg.pgproto import pgproto

from ondot.model.ids import TICKS_A_MILLISECOND, ticks_at, uuid7

DRIFT = 0.001
"""How far the two clocks may go apart in a second, generously: so much less an older reading tells."""
ROUNDING_S = 0.002
"""By which two readings of one clock may differ for no reason: seconds as floats, instants as whole microseconds."""
LAG_S = 1.0
"""How long a statement may be on its way. A clock that was set forward by less is taken for a slow line."""
IDS_AHEAD_TICKS = 1_000 * TICKS_A_MILLISECOND
"""How far ids may run ahead of the clock to stay in order: a second, four million ids at once. More is a clock that was
set back, or one wrong reading of it (+100 days): ids follow the clock again."""
ANY_TIME = (-math.inf, math.inf)


class ClockStepped(Exception):
    """The database's clock is not where it was believed to be: nothing was stored; compute the instants again."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What time it is by the estimate, to compute instants from, and when on the monotonic clock that was."""

    at: datetime
    since_s: float
    lag_s: float = LAG_S


class DatabaseClock:
    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offset: timedelta | None = None
        self._uncertain_s = math.inf
        self._seen_s = 0.0
        self._frozen: datetime | None = None
        self._last_tick = 0

    def see(self, database_now: datetime, sent_s: float) -> None:
        """Take a reading: the database said `database_now` to a question sent at `sent_s` (monotonic).

        The more exact reading is kept, until a newer one contradicts it: both cannot be true, so the clock was set.
        """
        received_s = self._monotonic()
        middle_s, uncertain_s = (sent_s + received_s) / 2, (received_s - sent_s) / 2
        offset = database_now - datetime.fromtimestamp(0, UTC) - timedelta(seconds=middle_s)
        if self._offset is not None and uncertain_s > (known_s := self.uncertain_s):
            off_s = abs((offset - self._offset).total_seconds())
            # A question that was sent before the kept answer came may have been answered before it, too.
            if off_s <= uncertain_s + known_s + ROUNDING_S or sent_s < self._seen_s:
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

    def moment(self, lag_s: float = LAG_S) -> Moment:
        return Moment(self.now(), self._monotonic(), lag_s)

    def bounds(self, moments: Iterable[Moment]) -> tuple[float, float]:
        """Between which instants, as seconds since 1970, a statement sent now finds the clock if the moments are true.

        No line is so slow that the clock is behind them; by how much it may be ahead they say themselves.
        """
        expected = [(self._expected_s(moment), moment.lag_s) for moment in moments]
        off_s = self._off_s
        return max(at_s for at_s, _ in expected) - off_s, min(at_s + lag_s for at_s, lag_s in expected) + off_s

    def confirm(self, database_now: datetime | None, sent_s: float) -> None:
        """Take what a statement with `bounds` answered: when it stored, or None, nothing."""
        if database_now is None:
            raise ClockStepped
        self.see(database_now, sent_s)

    def check(self, moment: Moment, database_now: datetime) -> None:
        """The same for a reading of the database's clock that was taken since the moment, in the same transaction."""
        earliest_s, latest_s = moment.at.timestamp() - self._off_s, self._expected_s(moment) + self._off_s
        if not earliest_s <= database_now.timestamp() <= latest_s:
            raise ClockStepped

    @property
    def _off_s(self) -> float:
        return ROUNDING_S + (0.0 if self._frozen is not None else self.uncertain_s)

    def _expected_s(self, moment: Moment) -> float:
        passed_s = 0.0 if self._frozen is not None else self._monotonic() - moment.since_s
        return moment.at.timestamp() + passed_s

    def new_id(self) -> UUID:
        return self.new_ids(1)[0]

    def new_ids(self, count: int, *, not_before: datetime | None = None) -> list[UUID]:
        """Ids in order, also within one instant: a list by id is a list by age, and a burst fills index pages from
        one side. Ten thousand at once run 2.4 ms ahead of the clock. If it goes back by more than a second, so do they,
        and stay unique by their random bits. Of the driver's own kind, as all ids that are read: the standard library's
        takes four times as long to make and to send.

        `not_before`: the database said so itself; this estimate may lag when its clock was just set forward."""
        now = ticks_at(self.now())
        after_last = self._last_tick + 1 if self._last_tick <= now + IDS_AHEAD_TICKS else 0
        first = max(now, after_last, 0 if not_before is None else ticks_at(not_before))
        self._last_tick = first + count - 1
        random = struct.unpack(f"{count}Q", os.urandom(8 * count))
        return [pgproto.UUID(uuid7(first + number, bits)) for number, bits in enumerate(random)]
