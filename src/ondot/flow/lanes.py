"""④a The lanes that a worker knows of its pools: where it looks, from which instant on, and whose turn it is (E2, L6).

Any tenant may have work in a pool. A survey reads the head of each known lane from its bound on, and finds the others
by jumps. Where another survey would cost more than it is worth, one serves several leases: for a moment, while due work
is left in it. The lower bound of each lane keeps all scans off the dead rows that pile up at a lane's head while a
transaction keeps an old snapshot; housekeeping looks there instead.

Tenants take turns by the time for which their attempts hold slots (`model.turns`). While all that this worker runs is
of one tenant, nothing is counted.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from ondot.flow.in_flight import Attempt, InFlight
from ondot.flow.quotas import hold_free
from ondot.flow.served_tenants import TenantNos
from ondot.model.fairness import NO_SCOPES, Lane, Scopes, Take, Waiting
from ondot.model.ids import EPOCH, PoolNo, TenantNo, WorkerId
from ondot.model.turns import MOST_LANES, NO_ROOMS, Turns
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.queue import LARGEST_LEASE, Leased, Survey, read_reserved, read_slots_held, survey_lanes

BOUND_BEHIND: Final = timedelta(seconds=2)
"""How far a lane's bound stays behind the last row taken: rows may commit in another order than their instants."""
QUIET_BEHIND: Final = timedelta(seconds=30)
"""How far it stays behind the head that a survey saw, where nothing was taken. Housekeeping finds the rows of
transactions that were open for longer."""
KEPT_FOR_S: Final = 600.0
"""A lane without work stays known for this long, while scans might still meet its dead rows."""
FRESH_FOR_S, FRESH_AT_MOST_S = 0.05, 2.0
COST_SHARE: Final = 20
"""A survey is fresh for this many times what it took: with thousands of lanes surveys cost a twentieth of the time."""
FEW_LANES, LARGE_BATCH = 16, 100
"""With so few lanes each lease has its own survey, unless the last batch was large and all work is of one tenant: the
order of classes is exact, and work of a tenant that was idle is found by the next lease."""
SHARED_BATCH: Final = 250
"""With few lanes of several tenants, one lease brings no more: work of a tenant that was idle waits for the rest of a
batch."""
ACCRUE_EVERY_S: Final = 0.05
CHARGED_BACK_S: Final = 10.0
"""Attempts are charged from their lease on, but no further back: the database's clock may have been set forward."""
RESERVED_EVERY_S: Final = 0.25
FULL_FOR_S: Final = 0.2
"""A tenant without room is left out for this long, if more tenants wait than one lease takes from."""


class Lanes:
    """The lanes of its pools that one incarnation of a worker knows."""

    def __init__(
        self,
        database: Database,
        worker_id: WorkerId,
        pool_nos: Sequence[PoolNo],
        tenants: Callable[[], TenantNos] = lambda: None,
        in_flight: InFlight | None = None,
    ) -> None:
        """`tenants`: those that the worker serves at this moment. `in_flight`: the attempts that run, whose ends are
        charged; None: nothing ends."""
        self._database = database
        self._worker_id = worker_id
        self._tenants = tenants
        self._pool_nos = tuple(pool_nos)
        self._in_flight = in_flight
        self._turns = Turns(self._weight_of)
        self._only: TenantNo | None = None
        """The tenant of everything that this worker has leased."""
        self._is_shared = False
        """Several tenants had leases: slots are counted."""
        self._are_several = False
        """Lanes of several tenants are known: they had work lately."""
        self._accrued_s = 0.0
        self._has_begun = False
        """The first turns are set, by what tenants hold on other workers."""
        self._held_free: Mapping[TenantNo, int] = NO_ROOMS
        self._held_until_s = 0.0
        self._full_until_s: dict[TenantNo, float] = {}
        self._from_ats: dict[Lane, datetime] = {}
        self._seen_s: dict[Lane, float] = {}
        self._last: Survey | None = None
        self._heads: dict[Lane, datetime] = {}
        """Of the last survey: the lanes with due work, without those that were emptied since."""
        self._scopes: dict[Lane, Scopes] = {}
        self.next_at: datetime | None = None
        """When the next work known to this worker may start, or be admitted, after the last survey."""
        self._fresh_until_s = 0.0
        self._last_batch = 0

    @property
    def bounds(self) -> list[tuple[Lane, datetime]]:
        """This worker looks at no row below these. Every beat names them, so that housekeeping can sweep there."""
        return list(self._from_ats.items())

    @property
    def has_due(self) -> bool:
        return self._turns.has_work

    def heads_of(self, takes: Iterable[Take]) -> list[datetime]:
        """Where to start taking: at the head that the survey saw, which is above every row that was dead then."""
        return [self._heads.get(take.lane, EPOCH) for take in takes]

    @property
    def most_at_once(self) -> int:
        """How many one lease may bring."""
        return SHARED_BATCH if self._are_several and len(self._heads) <= FEW_LANES else LARGEST_LEASE

    def scopes_of(self, lane: Lane) -> Scopes:
        return self._scopes.get(lane, NO_SCOPES)

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
            await self._read_reserved(connection, survey)
        now_s = time.monotonic()
        self._fresh_until_s = now_s + max(FRESH_FOR_S, min(COST_SHARE * (now_s - started_s), FRESH_AT_MOST_S))
        self._last, self._last_batch = survey, 0
        self._update(survey, asked_at, now_s)
        if self._turns.is_shared:
            await self._learn_of_tenants()
        return survey

    async def _learn_of_tenants(self) -> None:
        """Several tenants wait: their weights count, and at first the slots that they hold on other workers."""
        await self._database.tenants.snapshot()
        if self._has_begun:
            return
        self._has_begun = True
        async with self._database.connection() as connection:
            held = await read_slots_held(connection, self._pool_nos, self._worker_id)
        self._turns.begin_from(held)

    async def _read_reserved(self, connection: Connection, survey: Survey | None) -> None:
        """What is kept free for tenants with reserved slots changes with what runs, on all workers."""
        now_s = time.monotonic()
        if survey is None or not survey.has_reserved:
            self._held_free = NO_ROOMS
        elif now_s >= self._held_until_s:
            entries = await read_reserved(connection, self._pool_nos, self._worker_id)
            self._held_free = hold_free(entries) or NO_ROOMS
            self._held_until_s = now_s + RESERVED_EVERY_S

    def start_round(self) -> None:
        """All that wait have their turn again in `next_in_turn`."""
        self._turns.start_round()

    def next_in_turn(self) -> list[Lane]:
        return self._turns.next_in_turn()

    def share_out(
        self, lanes: Sequence[Lane], limit: int, *, free: int, rooms: Mapping[TenantNo, int] = NO_ROOMS
    ) -> list[Take]:
        return self._turns.share_out(lanes, limit, free=free, rooms=rooms, held_free=self._held_free)

    def not_kept(self, free: int, of: TenantNo | None = None) -> int:
        """How many of the free slots are not kept for tenants other than this one."""
        return free - sum(slots for tenant_no, slots in self._held_free.items() if tenant_no != of)

    def leave_out(self, tenant_nos: Iterable[TenantNo]) -> None:
        """Nothing of these may start by their quotas, until the next survey at least."""
        now_s = time.monotonic()
        for tenant_no in tenant_nos:
            self._turns.leave_out(tenant_no)
            self._full_until_s[tenant_no] = now_s + FULL_FOR_S

    def record(self, takes: Sequence[Take], leased: Sequence[Leased], limit: int) -> None:
        """Record what a lease yielded: bounds rise, and lanes that are empty now leave the survey."""
        instants: defaultdict[tuple[int, int, int], list[float]] = defaultdict(list)
        for row in leased:
            instants[row.pool_no, row.priority_class, row.tenant_no].append(row.ready_s)
        taken: dict[Lane, int] = {}
        for take in takes:
            lane = take.lane
            if of_lane := instants.get(lane):
                taken[lane] = len(of_lane)
                last_at = datetime.fromtimestamp(max(of_lane), UTC)
                self._raise_bound(lane, last_at - BOUND_BEHIND)
                self._heads[lane] = last_at
        for lane in self._turns.record(takes, taken, limit):
            self._heads.pop(lane, None)
        self._last_batch = len(leased)

    # Slots -----------------------------------------------------------------------------------------------------------

    def start(self, leased: Sequence[Leased]) -> None:
        """These attempts hold slots until `end`."""
        if not self._is_shared:
            tenants = {row.tenant_no for row in leased}
            if self._only is None and len(tenants) == 1:
                [self._only] = tenants
            if tenants <= {self._only}:
                return
            self._count_from_now_on()
        # Their slots are taken since the lease, not since its answer was read: on a busy machine short attempts hold
        # them longer before they start than while they run.
        held_s = self._database.clock.now().timestamp() - leased[0].started_s
        since_s = time.monotonic() - min(max(held_s, 0.0), CHARGED_BACK_S)
        by_tenant: defaultdict[TenantNo, list[Attempt]] = defaultdict(list)
        for row in leased:
            by_tenant[row.tenant_no].append((row.id, row.attempt_no))
        for tenant_no, attempts in by_tenant.items():
            self._turns.start_all(attempts, tenant_no, since_s)

    def end(self, attempt: Attempt) -> None:
        self._turns.end(attempt, time.monotonic())

    @property
    def slots_held(self) -> dict[TenantNo, int]:
        """By tenant; the heartbeat's thread reads it."""
        if self._is_shared:
            return self._turns.slots_held()
        return {} if self._only is None or not self._in_flight else {self._only: len(self._in_flight)}

    def _count_from_now_on(self) -> None:
        """A second tenant has a lease. All other attempts that run here are of the first."""
        self._is_shared = True
        if self._in_flight is None:
            return
        if self._only is not None:
            self._turns.start_all(self._in_flight.attempts, self._only, time.monotonic())
        self._in_flight.on_end = self.end

    def _accrue(self, now_s: float) -> None:
        if self._is_shared and now_s - self._accrued_s >= ACCRUE_EVERY_S:
            self._accrued_s = now_s
            self._turns.accrue(now_s)

    def _weight_of(self, tenant_no: TenantNo) -> float:
        tenant = self._database.tenants.known.get(tenant_no)
        return 1.0 if tenant is None else tenant.weight

    # ---

    def _is_fresh(self, survey: Survey) -> bool:
        if time.monotonic() >= self._fresh_until_s:
            return False
        if (survey.gates_at is not None and survey.gates_at <= survey.now) or survey.rates:
            return False
        due = len(self._heads)
        return due > FEW_LANES or (due > 0 and self._last_batch >= LARGE_BATCH and not self._are_several)

    def _update(self, survey: Survey | None, asked_at: datetime, now_s: float) -> None:
        waiting = [] if survey is None else survey.waiting
        heads = {entry.lane: entry.ready_at for entry in waiting}
        for lane in self._from_ats.keys() - heads.keys():
            if self._seen_s.setdefault(lane, now_s) < now_s - KEPT_FOR_S:
                del self._from_ats[lane], self._seen_s[lane]
            else:
                self._raise_bound(lane, asked_at - QUIET_BEHIND)
        for lane, ready_at in heads.items():
            self._seen_s[lane] = now_s
            self._raise_bound(lane, min(ready_at, asked_at) - QUIET_BEHIND)
        first = next(iter(self._from_ats), None)
        self._are_several = first is not None and any(lane.tenant_no != first.tenant_no for lane in self._from_ats)
        self._accrue(now_s)
        due = [] if survey is None else self._due_of(survey, now_s)
        self._heads = {entry.lane: entry.ready_at for entry in due}
        self._scopes = {entry.lane: entry.scopes for entry in due if entry.scopes}
        self.next_at = None if survey is None else _next_at(survey)
        self._turns.update(due)

    def _due_of(self, survey: Survey, now_s: float) -> list[Waiting]:
        left_out = survey.stopped
        if self._full_until_s:
            full = {tenant_no: until_s for tenant_no, until_s in self._full_until_s.items() if until_s > now_s}
            self._full_until_s = full
            if len(survey.waiting) > MOST_LANES:
                left_out = left_out | full.keys()
        if left_out:
            waiting = [entry for entry in survey.waiting if entry.lane.tenant_no not in left_out]
        else:
            waiting = survey.waiting
        return [entry for entry in waiting if entry.ready_at <= survey.now]

    def _raise_bound(self, lane: Lane, from_at: datetime) -> None:
        self._from_ats[lane] = max(from_at, self._from_ats.get(lane, EPOCH))


def _next_at(survey: Survey) -> datetime | None:
    """When the next work may start, or be admitted, that is not due."""
    instants = [entry.ready_at for entry in survey.waiting if entry.lane.tenant_no not in survey.stopped]
    instants += [pool.look_at for pool in survey.rates]
    if survey.gates_at is not None:
        instants.append(survey.gates_at)
    return min((instant for instant in instants if instant > survey.now), default=None)
