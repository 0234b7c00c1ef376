"""④a The lanes that a worker knows of its pools: where it looks, from which instant on, and whose turn it is (E2, L6).

Any tenant may have work in a pool. A survey reads the head of each known lane from its bound on, and finds the others
by jumps. Where another survey would cost more than it is worth, one serves several leases: for a moment, while due work
is left in it. The lower bound of each lane keeps all scans off the dead rows that pile up at a lane's head while a
transaction keeps an old snapshot; housekeeping looks there instead.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import Final

from ondot.flow.served_tenants import TenantNos
from ondot.model.execution import PriorityClass
from ondot.model.fairness import Lane, Take, Turns, Waiting
from ondot.model.ids import EPOCH, PoolNo
from ondot.store.database import Database
from ondot.store.queue import Leased, Survey, survey_lanes

BOUND_BEHIND: Final = timedelta(seconds=2)
"""How far a lane's bound stays behind the last row taken: rows may commit in another order than their instants."""
QUIET_BEHIND: Final = timedelta(seconds=30)
"""How far it stays behind the head that a survey saw, where nothing was taken. Housekeeping finds the rows of
transactions that were open for longer."""
KEPT_FOR_S: Final = 600.0
"""A lane without work stays known for this long, while scans might still meet its dead rows."""
FRESH_FOR_S, FRESH_AT_MOST_S = 0.05, 1.0
COST_SHARE: Final = 20
"""A survey is fresh for this many times what it took: with thousands of lanes surveys cost a twentieth of the time."""
FEW_LANES, LARGE_BATCH = 16, 100
"""With so few lanes each lease has its own survey, unless the last batch was large: the order of classes is exact."""

_lane_of = attrgetter("pool_no", "priority_class", "tenant_no")


class Lanes:
    """The lanes of its pools that one incarnation of a worker knows."""

    def __init__(
        self, database: Database, pool_nos: Sequence[PoolNo], tenants: Callable[[], TenantNos] = lambda: None
    ) -> None:
        """`tenants`: those that the worker serves at this moment."""
        self._database = database
        self._tenants = tenants
        self._pool_nos = tuple(pool_nos)
        self._turns = Turns()
        self._from_ats: dict[Lane, datetime] = {}
        self._seen_s: dict[Lane, float] = {}
        self._last: Survey | None = None
        self._fresh_until_s = 0.0
        self._last_batch = 0

    @property
    def bounds(self) -> list[tuple[Lane, datetime]]:
        """This worker looks at no row below these. Every beat names them, so that housekeeping can sweep there."""
        return list(self._from_ats.items())

    def heads_of(self, takes: Iterable[Take]) -> list[datetime]:
        """Where to start taking: at the head that the survey saw, which is above every row that was dead then."""
        heads = {} if self._last is None else {entry.lane: entry.ready_at for entry in self._last.waiting}
        return [heads.get(take.lane, EPOCH) for take in takes]

    async def survey(self, *, again: bool = False) -> Survey | None:
        """What waits for this worker; None: nothing does. `again`: something has changed since the last survey."""
        if self._last is not None and not again and self._is_fresh(self._last):
            return self._last
        tenant_nos = self._tenants()
        for lane in [lane for lane in self._from_ats if tenant_nos is not None and lane.tenant_no not in tenant_nos]:
            del self._from_ats[lane]
            self._seen_s.pop(lane, None)
        lanes = list(self._from_ats)
        started_s, asked_at = time.monotonic(), self._database.clock.now()
        async with self._database.connection() as connection:
            survey = await survey_lanes(connection, self._pool_nos, lanes, list(self._from_ats.values()), tenant_nos)
        now_s = time.monotonic()
        self._fresh_until_s = now_s + max(FRESH_FOR_S, min(COST_SHARE * (now_s - started_s), FRESH_AT_MOST_S))
        self._last, self._last_batch = survey, 0
        self._update([] if survey is None else survey.waiting, asked_at, now_s)
        return survey

    def order(self, waiting: Iterable[Waiting]) -> list[Lane]:
        return self._turns.order(waiting)

    def share_out(self, lanes: Sequence[Lane], limit: int) -> list[Take]:
        return self._turns.share_out(lanes, limit)

    def record(self, takes: Sequence[Take], leased: Sequence[Leased], limit: int) -> None:
        """Record what a lease yielded: bounds rise, turns move on, and lanes that are empty now leave the survey."""
        taken: dict[Lane, int] = {}
        last_ats: dict[Lane, datetime] = {}
        by_lane = sorted(leased, key=_lane_of)
        for (pool_no, class_no, tenant_no), rows in groupby(by_lane, key=_lane_of):
            lane = Lane(pool_no, PriorityClass(class_no), tenant_no)
            instants = [row.ready_s for row in rows]
            taken[lane] = len(instants)
            last_ats[lane] = datetime.fromtimestamp(max(instants), UTC)
            self._raise_bound(lane, last_ats[lane] - BOUND_BEHIND)
        emptied = set(self._turns.record(takes, taken, limit))
        self._last_batch = len(leased)
        if self._last is not None:
            waiting = [
                entry._replace(ready_at=last_ats[entry.lane]) if entry.lane in last_ats else entry
                for entry in self._last.waiting
                if entry.lane not in emptied
            ]
            self._last = replace(self._last, waiting=waiting)

    def _is_fresh(self, survey: Survey) -> bool:
        if time.monotonic() >= self._fresh_until_s:
            return False
        if (survey.gates_at is not None and survey.gates_at <= survey.now) or survey.rates:
            return False
        due = sum(entry.ready_at <= survey.now for entry in survey.waiting)
        return due > FEW_LANES or (due > 0 and self._last_batch >= LARGE_BATCH)

    def _update(self, waiting: list[Waiting], asked_at: datetime, now_s: float) -> None:
        self._turns.update(waiting)
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
