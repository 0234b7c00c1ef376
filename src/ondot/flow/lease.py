"""④ A worker leases a batch (E1, E2, E11): which lanes is policy (`model.fairness`), SQL only takes.

The lease id is minted before the first try: after a lost reply the worker asks by it, and adopts what it got. A worker
never leases more than its free slots. The lower bound of each lane, in the worker's memory, keeps the scan off the
dead rows that pile up at a lane's head while somebody holds an old snapshot.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ondot.model.execution import PriorityClass
from ondot.model.fairness import Lane, in_order
from ondot.model.ids import DEFAULT_TENANT, EPOCH, JobId, LeaseId, PoolNo, WorkerId
from ondot.model.job import JobSpec
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.executions import find_payloads
from ondot.store.jobs import stopped_jobs
from ondot.store.queue import Leased, find_lease, lease_executions, survey_lanes
from ondot.telemetry.metrics import LATENESS, LEASED

BATCH = 1_000
BOUND_BEHIND = timedelta(seconds=2)
"""How far a lane's bound stays behind the last row taken: commits may come in another order than their instants."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attempt to be run. `spec` None: it cannot be read any more, and the attempt fails with that reason."""

    leased: Leased
    lease_id: LeaseId
    spec: JobSpec | None
    payload: bytes
    over: str | None = None
    """Why the call may not be made any more: its job was deleted or paused before it ever began."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one pass brought. `next_at`: when the next work known to this worker may start, by the database's clock.

    `more`: there is due work left. `contended`: there was, but others had it locked.
    """

    assignments: list[Assignment]
    next_at: datetime | None = None
    more: bool = False
    contended: bool = False


class Leaser:
    """Leases for one incarnation of a worker."""

    def __init__(self, database: Database, worker_id: WorkerId, pool_nos: Sequence[PoolNo]) -> None:
        self._database = database
        self._worker_id = worker_id
        self._lanes = [
            Lane(pool_no, priority_class, DEFAULT_TENANT) for pool_no in pool_nos for priority_class in PriorityClass
        ]
        self._from_ats: dict[Lane, datetime] = {}
        self.pending: LeaseId | None = None
        """A lease that was asked for and is not held yet. It is named with every beat: while the loop is busy, or the
        reply is lost, nobody may take it for one that its worker never heard of."""

    @property
    def bounds(self) -> list[tuple[Lane, datetime]]:
        """Below these this worker looks no more; told with every beat, so that housekeeping can sweep there."""
        return list(self._from_ats.items())

    async def one_pass(self, free_slots: int) -> Batch:
        """Survey the lanes and lease up to `free_slots` of what is due."""
        if self.pending is not None:
            return await self._adopt(self.pending)
        async with self._database.connection() as connection:
            waiting, now = await survey_lanes(connection, self._lanes, self._bounds_of(self._lanes))
            if now is None:
                return Batch([])
            due = [entry for entry in waiting if entry.ready_at <= now]
            next_at = min((entry.ready_at for entry in waiting if entry.ready_at > now), default=None)
            if not due or not free_slots:
                return Batch([], next_at, more=bool(due))
            lanes = in_order(due)
            lease_id = LeaseId(self._database.clock.new_id())
            self.pending = lease_id
            leased = await lease_executions(
                connection,
                lease_id,
                self._worker_id,
                limit=min(free_slots, BATCH),
                lanes=lanes,
                from_ats=self._bounds_of(lanes),
            )
            assignments = await self._assign(connection, lease_id, leased)
            return self._brought(Batch(assignments, next_at, more=bool(leased), contended=not leased))

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
        if not leased:
            return []
        LEASED.inc(len(leased))
        for row in leased:
            lane = Lane(row.pool_no, PriorityClass(row.priority_class), row.tenant_no)
            self._from_ats[lane] = max(row.ready_at - BOUND_BEHIND, self._from_ats.get(lane, EPOCH))
            LATENESS.observe(max((row.started_at - row.ready_at).total_seconds(), 0.0))
        specs = await self._database.specs.find(connection, {(row.job_id, row.job_version) for row in leased})
        own = [row.id for row in leased if row.own_payload]
        payloads = await find_payloads(connection, own) if own else {}
        over = await self._over(connection, leased)
        return [
            Assignment(
                row,
                lease_id,
                spec := specs.get((row.job_id, row.job_version)),
                payloads.get(row.id) or (bytes(spec.payload) if spec else b"null"),
                over.get(row.job_id),
            )
            for row in leased
        ]

    @staticmethod
    async def _over(connection: Connection, leased: list[Leased]) -> dict[JobId, str]:
        """Fires that were leased before and given back without a call: their jobs may have been stopped meanwhile."""
        returned = {row.job_id for row in leased if row.origin == "fire" and row.returned}
        return await stopped_jobs(connection, sorted(returned)) if returned else {}

    def _bounds_of(self, lanes: Sequence[Lane]) -> list[datetime]:
        return [self._from_ats.get(lane, EPOCH) for lane in lanes]
