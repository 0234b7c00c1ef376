"""④a The lanes that a worker knows of its pools: where it looks, from which instant on, and whose turn it is (E2, L6).

Any tenant may have work in a pool. A survey looks at the head of each known lane by its bound, and finds the others by
jumps. What it found serves several leases where looking again would cost more than it tells: for a moment, while there
is due work left in it. The lower bound of each lane keeps all scans off the dead rows that pile up at a lane's head
while somebody holds an old snapshot; housekeeping looks there instead.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import Final

from ondot.model.execution import PriorityClass
from ondot.model.fairness import Lane, Take, Turns, Waiting
from ondot.model.ids import EPOCH, PoolNo
from ondot.store.database import Database
from ondot.store.queue import Leased, Survey, survey_lanes

BOUND_BEHIND: Final = timedelta(seconds=2)
"""How far a lane's bound stays behind the last row taken: commits may come in another order than their instants."""
QUIET_BEHIND: Final = timedelta(seconds=30)
"""And how far behind what a survey saw, where nothing was taken: what a transaction brings that was open for longer
than this, housekeeping finds."""
KEPT_FOR_S: Final = 600.0
"""A lane without work is known for this long: as long as its dead rows may be there to be walked over."""
GOOD_FOR_S, GOOD_AT_MOST_S = 0.05, 1.0
COST_SHARE: Final = 20
"""A survey is good for this many times what it took: with thousands of lanes surveys cost a twentieth of the time."""
FEW_LANES, LARGE_BATCH = 16, 100
"""So few lanes are looked at anew for each lease that is not a large one: the order of classes is exact."""

_place = attrgetter("pool_no", "priority_class", "tenant_no")


class Lanes:
    """What one incarnation of a worker knows of the lanes of its pools."""

    def __init__(self, database: Database, pool_nos: Sequence[PoolNo]) -> None:
        self._database = database
        self._pool_nos = tuple(pool_nos)
        self._turns = Turns()
        self._from_ats: dict[Lane, datetime] = {}
        self._seen_s: dict[Lane, float] = {}
        self._last: Survey | None = None
        self._good_until_s = 0.0
        self._brought = 0

    @property
    def bounds(self) -> list[tuple[Lane, datetime]]:
        """Below these this worker looks no more; told with every beat, so that housekeeping can sweep there."""
        return list(self._from_ats.items())

    def heads_of(self, takes: Iterable[Take]) -> list[datetime]:
        """Where to begin to take: at what the survey saw, which lies above every dead row that was there then."""
        heads = {} if self._last is None else {entry.lane: entry.ready_at for entry in self._last.waiting}
        return [heads.get(take.lane, EPOCH) for take in takes]

    async def survey(self, *, anew: bool = False) -> Survey | None:
        """What waits for this worker; None when nothing does. `anew`: something has changed since the last one."""
        if self._last is not None and not anew and self._is_good(self._last):
            return self._last
        lanes = list(self._from_ats)
        began_s, asked_at = time.monotonic(), self._database.clock.now()
        async with self._database.connection() as connection:
            survey = await survey_lanes(connection, self._pool_nos, lanes, list(self._from_ats.values()))
        now_s = time.monotonic()
        self._good_until_s = now_s + max(GOOD_FOR_S, min(COST_SHARE * (now_s - began_s), GOOD_AT_MOST_S))
        self._last, self._brought = survey, 0
        self._see([] if survey is None else survey.waiting, asked_at, now_s)
        return survey

    def in_turn(self, waiting: Iterable[Waiting]) -> list[Lane]:
        return self._turns.in_turn(waiting)

    def shares(self, lanes: Sequence[Lane], limit: int) -> list[Take]:
        return self._turns.shares(lanes, limit)

    def took(self, takes: Sequence[Take], leased: Sequence[Leased], limit: int) -> None:
        """A lease was asked for these and brought that: bounds rise, turns go on, and lanes that gave all are left."""
        taken: dict[Lane, int] = {}
        last_ats: dict[Lane, datetime] = {}
        by_lane = sorted(leased, key=_place)
        for (pool_no, class_no, tenant_no), rows in groupby(by_lane, key=_place):
            lane = Lane(pool_no, PriorityClass(class_no), tenant_no)
            instants = [row.ready_s for row in rows]
            taken[lane] = len(instants)
            last_ats[lane] = datetime.fromtimestamp(max(instants), UTC)
            self._raise_bound(lane, last_ats[lane] - BOUND_BEHIND)
        emptied = set(self._turns.took(takes, taken, limit))
        self._brought = len(leased)
        if self._last is not None:
            waiting = [
                entry._replace(ready_at=last_ats[entry.lane]) if entry.lane in last_ats else entry
                for entry in self._last.waiting
                if entry.lane not in emptied
            ]
            self._last = replace(self._last, waiting=waiting)

    def _is_good(self, survey: Survey) -> bool:
        if time.monotonic() >= self._good_until_s:
            return False
        if (survey.gates_at is not None and survey.gates_at <= survey.now) or survey.rates:
            return False
        due = sum(entry.ready_at <= survey.now for entry in survey.waiting)
        return due > FEW_LANES or (due > 0 and self._brought >= LARGE_BATCH)

    def _see(self, waiting: list[Waiting], asked_at: datetime, now_s: float) -> None:
        self._turns.see(waiting)
        heads = {entry.lane: entry.ready_at for entry in waiting}
        for lane in self._from_ats.keys() - heads.keys():
            if self._seen_s.setdefault(lane, now_s) < now_s - KEPT_FOR_S:
                del self._from_ats[lane], self._seen_s[lane]
            else:
                self._raise_bound(lane, asked_at - QUIET_BEHIND)
        for lane, ready_at in heads.items():
            self._seen_s[lane] = now_s
            self._raise_bound(lane, min(ready_at, asked_at) - QUIET_BEHIND)

    def _raise_bound(self, lane: Lane, from_at: datetime) -> None:
        self._from_ats[lane] = max(from_at, self._from_ats.get(lane, EPOCH))
