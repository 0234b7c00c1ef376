"""The database's clock as seen from this process: to mint ids and to sleep precisely, never to decide what is due.

Decisions are made in SQL by `ondot.clock()`. This module estimates its distance from this process's
monotonic clock by round trips; the node's own wall clock, which may be an hour off, is never read.

The database's clock may be set while this process believes the old one. So instants that are computed here and stored
(`in`, an interval's anchor, a first fire) start from a `Moment`, and the statement that stores them checks it: it
stores nothing if the database's clock is outside of `bounds`, and `ClockStepped` is raised. `Database.by_clock` then
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
"""How far the two clocks may drift apart in a second, at most: an older reading is less exact by this much."""
ROUNDING_S = 0.002
"""Two readings of one clock may differ by this: seconds are floats, instants whole microseconds."""
LAG_S = 1.0
"""How long a statement may be on its way. A clock that was set forward by less looks like a slow line."""
IDS_AHEAD_TICKS = 1_000 * TICKS_A_MILLISECOND
"""How far ids may run ahead of the clock to stay in order: a second, which is four million ids at once. More than this
means a clock that was set back, or one wrong reading of it (+100 days): ids follow the clock again."""
ANY_TIME = (-math.inf, math.inf)


class ClockStepped(Exception):
    """The database's clock contradicts the estimate. Nothing was stored; compute the instants again."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The estimated time, to compute instants from, and when that was on the monotonic clock."""

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
        """Take a reading: the database answered `database_now` to a query sent at `sent_s` (monotonic).

        The more exact reading is kept until a newer one contradicts it: then the clock was set.
        """
        received_s = self._monotonic()
        middle_s, uncertain_s = (sent_s + received_s) / 2, (received_s - sent_s) / 2
        offset = database_now - datetime.fromtimestamp(0, UTC) - timedelta(seconds=middle_s)
        if self._offset is not None and uncertain_s > (known_s := self.uncertain_s):
            off_s = abs((offset - self._offset).total_seconds())
            # A query that was sent before the kept answer arrived may have been answered before it.
            if off_s <= uncertain_s + known_s + ROUNDING_S or sent_s < self._seen_s:
                return
        self._offset = offset
        self._uncertain_s, self._seen_s = uncertain_s, received_s

    @property
    def uncertain_s(self) -> float:
        """How far off the estimate may be by now."""
        return self._uncertain_s + (self._monotonic() - self._seen_s) * DRIFT

    def freeze(self, now: datetime | None) -> None:
        """Stop at this instant, as a clock turned by hand (`ondot.testing`)."""
        self._frozen = now

    def now(self) -> datetime:
        if self._frozen is not None:
            return self._frozen
        assert self._offset is not None, "the database's time was not read yet"
        return datetime.fromtimestamp(0, UTC) + self._offset + timedelta(seconds=self._monotonic())

    def moment(self, lag_s: float = LAG_S) -> Moment:
        return Moment(self.now(), self._monotonic(), lag_s)

    def bounds(self, moments: Iterable[Moment]) -> tuple[float, float]:
        """Between which instants, in seconds since 1970, a statement sent now finds the clock if the moments are true.

        A slow line cannot put the clock behind them; each moment has its own `lag_s` for how far it may be ahead.
        """
        expected = [(self._expected_s(moment), moment.lag_s) for moment in moments]
        off_s = self._off_s
        return max(at_s for at_s, _ in expected) - off_s, min(at_s + lag_s for at_s, lag_s in expected) + off_s

    def confirm(self, database_now: datetime | None, sent_s: float) -> None:
        """Take the answer of a statement with `bounds`: when it stored its rows; None if it stored nothing."""
        if database_now is None:
            raise ClockStepped
        self.see(database_now, sent_s)

    def check(self, moment: Moment, database_now: datetime) -> None:
        """The same for a reading of the database's clock that was taken after the moment, in the same transaction."""
        if not self.agrees(moment, database_now):
            raise ClockStepped

    def agrees(self, moment: Moment, database_now: datetime) -> bool:
        earliest_s, latest_s = moment.at.timestamp() - self._off_s, self._expected_s(moment) + self._off_s
        return earliest_s <= database_now.timestamp() <= latest_s

    @property
    def _off_s(self) -> float:
        return ROUNDING_S + (0.0 if self._frozen is not None else self.uncertain_s)

    def _expected_s(self, moment: Moment) -> float:
        passed_s = 0.0 if self._frozen is not None else self._monotonic() - moment.since_s
        return moment.at.timestamp() + passed_s

    def new_id(self) -> UUID:
        return self.new_ids(1)[0]

    def new_ids(self, count: int, *, not_before: datetime | None = None) -> list[UUID]:
        """Ids in order, within one instant too: a list by id is a list by age, and a burst fills index pages from one
        side. Ten thousand at once run 2.4 ms ahead of the clock. If the clock goes back by more than a second, so do
        the ids, and their random bits keep them unique. They have the driver's own type, as all ids that are read: the
        standard library's takes four times as long to make and to send.

        `not_before`: a reading of the database; the estimate may lag if its clock was just set forward.
        """
        now = ticks_at(self.now())
        after_last = self._last_tick + 1 if self._last_tick <= now + IDS_AHEAD_TICKS else 0
        first = max(now, after_last, 0 if not_before is None else ticks_at(not_before))
        self._last_tick = first + count - 1
        random = struct.unpack(f"{count}Q", os.urandom(8 * count))
        return [pgproto.UUID(uuid7(first + number, bits)) for number, bits in enumerate(random)]
