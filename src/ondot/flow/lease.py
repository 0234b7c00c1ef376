"""④ A worker leases a batch (E1, E2, E11, E13): which lanes is policy (`model.fairness`), SQL only takes.

The lease id is minted before the first try: after a lost reply the worker asks by it, and adopts what it got. A worker
never leases more than its free slots, nor, where payloads are large and the line is slow, more than it can read within
a deadline. What there is to lease from is known to `flow.lanes`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from msgspec import Struct

from ondot.flow.gate import admit_pass
from ondot.flow.lanes import Lanes
from ondot.model.execution import PriorityClass
from ondot.model.fairness import Lane, Take, Waiting
from ondot.model.ids import JobId, LeaseId, PoolNo, WorkerId
from ondot.model.job import FunctionTarget, JobSpec
from ondot.model.retry import SUSPECT_FROM
from ondot.store.adaptive_batch import Portions
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.executions import find_payloads
from ondot.store.jobs import stopped_jobs
from ondot.store.queue import (
    Leased,
    RatedPool,
    Survey,
    admit_at_rates,
    find_lease,
    hold_briefly,
    lease_admitted,
    lease_executions,
    pool_room,
    take_tokens,
)
from ondot.telemetry.metrics import LATENESS, LEASED

BATCH = 1_000
MOST_GATES = 6
LOCKED_FOR = timedelta(milliseconds=5)
FULL_FOR = timedelta(seconds=1)


class Assignment(Struct, frozen=True):
    """One attempt to be run. `spec` None: it cannot be read any more, and the attempt fails with that reason."""

    leased: Leased
    lease_id: LeaseId
    spec: JobSpec | None
    payload: bytes
    over: str | None = None
    """Why the call may not be made any more: its job was deleted or paused before it ever began."""

    @property
    def is_suspect(self) -> bool:
        """A function that took workers with it runs apart, and few of them at once (E6)."""
        return (
            self.leased.losses >= SUSPECT_FROM
            and self.spec is not None
            and isinstance(self.spec.target, FunctionTarget)
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """What one pass brought. `next_at`: when the next work known to this worker may start, by the database's clock.

    `more`: there is due work left. `contended`: there was, but others had it locked.
    """

    assignments: list[Assignment]
    next_at: datetime | None = None
    more: bool = False
    contended: bool = False


class _IsLost(Exception):
    """This worker was declared lost and may lease no more: tokens and places go back with the transaction."""


@dataclass(frozen=True, slots=True)
class _Portion:
    """Lanes that are leased from in one statement."""

    lanes: list[Lane]
    limited_pool: PoolNo | None
    of_suspects: bool


def _portions(due: list[Waiting], in_turn: list[Lane]) -> list[_Portion]:
    """The lanes in their order, cut where they are counted apart: a pool with limits, suspects.

    A cut in the lanes of one tenant leaves those of the others together.
    """
    limited = {entry.lane.pool_no for entry in due if entry.is_limited}

    def apart(lane: Lane) -> tuple[PoolNo | None, bool]:
        pool_no = lane.pool_no if lane.pool_no in limited else None
        return pool_no, lane.priority_class is PriorityClass.SUSPECT

    if len(kinds := {apart(lane) for lane in in_turn}) == 1:
        return [_Portion(in_turn, *kinds.pop())]
    tenants = [
        [(how, list(lanes)) for how, lanes in groupby(own, key=apart)]
        for _, own in groupby(in_turn, key=lambda lane: lane.tenant_no)
    ]
    portions = []
    while tenants:
        how = tenants[0][0][0]
        portions.append(_Portion([lane for own in tenants if own[0][0] == how for lane in own[0][1]], *how))
        tenants = [rest for own in tenants if (rest := own[1:] if own[0][0] == how else own)]
    return portions


def _counted_apart(rates: list[RatedPool]) -> list[tuple[list[PoolNo], bool]]:
    """Pools to be asked together, and whether they have limits of their own: each of those alone."""
    together = [pool.pool_no for pool in rates if not pool.is_limited]
    apart: list[tuple[list[PoolNo], bool]] = [([pool.pool_no], True) for pool in rates if pool.is_limited]
    return [(together, False), *apart] if together else apart


def _next_at(survey: Survey) -> datetime | None:
    """When the next work known to this worker may start, or be admitted."""
    instants = [entry.ready_at for entry in survey.waiting] + [pool.look_at for pool in survey.rates]
    if survey.gates_at is not None:
        instants.append(survey.gates_at)
    return min((instant for instant in instants if instant > survey.now), default=None)


def _came_back(row: Leased) -> bool:
    return row.attempt_no > 1 and row.origin == "fire" and row.returned


class Leaser:
    """Leases for one incarnation of a worker."""

    def __init__(self, database: Database, worker_id: WorkerId, pool_nos: Sequence[PoolNo]) -> None:
        self._database = database
        self._worker_id = worker_id
        self._pool_nos = tuple(pool_nos)
        self._lanes = Lanes(database, pool_nos)
        self.pending: LeaseId | None = None
        """A lease that was asked for and is not held yet. It is named with every beat: while the loop is busy, or the
        reply is lost, nobody may take it for one that its worker never heard of."""
        self._at_once = Portions(BATCH)
        self._assigned: list[Assignment] = []
        """Of the pending lease, what was read before reading broke off: the next try goes on after it."""

    @property
    def bounds(self) -> list[tuple[Lane, datetime]]:
        """Below these this worker looks no more; told with every beat, so that housekeeping can sweep there."""
        return self._lanes.bounds

    async def one_pass(self, free_slots: int, free_for_suspects: int | None = None) -> Batch:
        """Admit who may pass a gate, then lease up to `free_slots` of what is due in the lanes that deserve it most.

        `free_for_suspects`: how many of them may go to work that has taken workers with it; None: as many.
        """
        if self.pending is not None:
            return await self._adopt(self.pending)
        survey = await self._lanes.survey()
        is_contended = False
        for _ in range(MOST_GATES):
            if survey is None or survey.gates_at is None or survey.gates_at > survey.now or is_contended:
                break
            # Once for each gate that stands behind another.
            is_contended = not await admit_pass(self._database, self._pool_nos)
            survey = await self._lanes.survey(anew=True)
        if survey is None:
            return Batch([])
        due = [entry for entry in survey.waiting if entry.ready_at <= survey.now]
        rates = [pool for pool in survey.rates if pool.look_at <= survey.now]
        next_at = _next_at(survey)
        if free_slots <= 0:
            return Batch([], next_at, more=bool(due or rates))
        is_rate_locked = False
        for pool_nos, is_limited in _counted_apart(rates):
            try:
                batch = await self._lease_by_rates(
                    pool_nos, free_slots, free_for_suspects, next_at, is_limited=is_limited
                )
            except _IsLost:
                batch = self._brought(Batch([]))
            if batch is not None and batch.assignments:
                return batch
            is_rate_locked = is_rate_locked or batch is None
        if not due:
            # A gate or a rate that is due still is one that somebody else has locked.
            is_gate_due = survey.gates_at is not None and survey.gates_at <= survey.now
            return Batch([], next_at, contended=is_rate_locked or (is_contended and is_gate_due))
        return await self._lease_first(due, free_slots, free_for_suspects, next_at)

    async def _lease_by_rates(
        self,
        pool_nos: list[PoolNo],
        free_slots: int,
        free_for_suspects: int | None,
        next_at: datetime | None,
        *,
        is_limited: bool,
    ) -> Batch | None:
        """Lease who may start by their rates: tokens are taken in the transaction of the lease. None: nobody may yet.

        A pool with limits of its own is asked alone, since they are counted in the same transaction.
        """
        lease_id = LeaseId(self._database.clock.new_id())
        async with self._database.transaction() as connection:
            await hold_briefly(connection)
            if is_limited:
                allowed = await pool_room(connection, pool_nos[0], free_slots)
                if allowed is None:
                    return None
                free_slots = allowed.room
            if not free_slots:
                # Whoever completes an attempt of the pool wakes it; and the next poll looks again.
                return Batch([])
            free_slots = min(free_slots, self._at_once.size)
            started = await admit_at_rates(connection, pool_nos, free_slots, free_for_suspects)
            if not started:
                return None
            self.pending = lease_id
            leased = await lease_admitted(connection, lease_id, self._worker_id, started, limited=is_limited)
            if len(leased) < len(started):
                raise _IsLost
            if is_limited:
                await take_tokens(connection, pool_nos[0], len(leased))
        async with self._database.connection() as connection:
            assignments = await self._assign(connection, lease_id, leased)
        return self._brought(Batch(assignments, next_at, more=True))

    async def _lease_first(
        self, due: list[Waiting], free_slots: int, free_for_suspects: int | None, next_at: datetime | None
    ) -> Batch:
        """One lease: of the most deserving lanes up to the first that is counted apart, or of that one.

        The others are the next pass's. What is counted apart and has no room is passed over.
        """
        contended = False
        for portion in _portions(due, self._lanes.in_turn(due)):
            limit = min(free_slots, self._at_once.size)
            if portion.of_suspects and free_for_suspects is not None:
                limit = min(limit, free_for_suspects)
            if limit <= 0:
                continue
            lease_id = LeaseId(self._database.clock.new_id())
            takes = self._lanes.shares(portion.lanes, limit)
            if portion.limited_pool is None:
                leased = await self._take(lease_id, takes, limit)
            else:
                leased, token_at = await self._take_limited(lease_id, portion.limited_pool, takes, limit)
                if not leased and token_at is not None:
                    next_at = min(next_at or token_at, token_at)
                    continue
            if leased:
                async with self._database.connection() as connection:
                    assignments = await self._assign(connection, lease_id, leased)
                return self._brought(Batch(assignments, next_at, more=True))
            self.pending = None
            contended = True
        return Batch([], next_at, contended=contended)

    async def _take(self, lease_id: LeaseId, takes: list[Take], limit: int) -> list[Leased]:
        self.pending = lease_id
        from_ats = self._lanes.heads_of(takes)
        async with self._database.connection() as connection:
            leased = await lease_executions(
                connection, lease_id, self._worker_id, limit=limit, takes=takes, from_ats=from_ats
            )
        self._lanes.took(takes, leased, limit)
        return leased

    async def _take_limited(
        self, lease_id: LeaseId, pool_no: PoolNo, takes: list[Take], limit: int
    ) -> tuple[list[Leased], datetime | None]:
        """Lease from a pool that has limits of its own; nothing, and when to ask again, if it has no room."""
        async with self._database.transaction() as connection:
            await hold_briefly(connection)
            allowed = await pool_room(connection, pool_no, limit)
            if allowed is None or not allowed.room:
                # Full: whoever completes one of its attempts wakes it. Without a token: then.
                now = self._database.clock.now()
                if allowed is None:
                    return [], now + LOCKED_FOR
                is_for_token = allowed.token_at is not None and allowed.token_at > now
                return [], allowed.token_at if is_for_token else now + FULL_FOR
            self.pending = lease_id
            leased = await lease_executions(
                connection,
                lease_id,
                self._worker_id,
                limit=allowed.room,
                takes=takes,
                from_ats=self._lanes.heads_of(takes),
                of_limited_pool=True,
            )
            await take_tokens(connection, pool_no, len(leased))
        self._lanes.took(takes, leased, allowed.room)
        return leased, None

    async def _adopt(self, lease_id: LeaseId) -> Batch:
        """The reply to a lease was lost: take up what it got, if it got anything."""
        async with self._database.connection() as connection:
            leased = await find_lease(connection, lease_id, self._worker_id)
            assignments = await self._assign(connection, lease_id, leased)
            return self._brought(Batch(assignments, more=True))

    def _brought(self, batch: Batch) -> Batch:
        """A lease that got nothing is over; one that got something stays pending until the worker holds it."""
        if not batch.assignments:
            self.pending = None
        return batch

    def held(self) -> None:
        """The worker has taken over what the last pass brought."""
        self.pending = None

    async def _assign(self, connection: Connection, lease_id: LeaseId, leased: list[Leased]) -> list[Assignment]:
        rest = leased
        if self._assigned:
            # Who was taken from this worker meanwhile is not run, though it was read.
            ids = {row.id for row in leased}
            self._assigned = [assignment for assignment in self._assigned if assignment.leased.id in ids]
            read = {assignment.leased.id for assignment in self._assigned}
            rest = [row for row in leased if row.id not in read]
        while rest:
            portion = rest[: self._at_once.size]
            with self._at_once.tried(len(portion)):
                self._assigned += await self._read(connection, lease_id, portion)
            rest = rest[len(portion) :]
        assignments, self._assigned = self._assigned, []
        if assignments:
            LEASED.inc(len(assignments))
            LATENESS.observe(row.started_s - row.ready_s for row in leased)
        return assignments

    async def _read(self, connection: Connection, lease_id: LeaseId, leased: list[Leased]) -> list[Assignment]:
        versions = [(row.job_id, row.job_version) for row in leased]
        specs = await self._database.specs.find(connection, versions)
        own = [row.id for row in leased if row.own_payload]
        payloads = await find_payloads(connection, own) if own else {}
        over = await self._over(connection, leased)
        return [
            Assignment(
                row,
                lease_id,
                spec := specs.get(version),
                payloads.get(row.id) or (bytes(spec.payload) if spec else b"null"),
                over.get(row.job_id) if _came_back(row) else None,
            )
            for row, version in zip(leased, versions, strict=True)
        ]

    @staticmethod
    async def _over(connection: Connection, leased: list[Leased]) -> dict[JobId, str]:
        """Fires that were leased before and given back without a call: their jobs may have been stopped meanwhile."""
        returned = {row.job_id for row in leased if _came_back(row)}
        return await stopped_jobs(connection, sorted(returned)) if returned else {}
