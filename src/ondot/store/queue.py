"""The queue: survey the lanes, lease a batch, sweep what was committed late."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ondot.model.execution import Origin, PriorityClass
from ondot.model.fairness import Lane, Waiting
from ondot.model.ids import ExecutionId, JobId, LeaseId, PoolNo, TenantNo, WorkerId
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("queue")


@dataclass(frozen=True, slots=True)
class Leased:
    """One leased execution: thin on purpose, since a frozen client that has not read its rows holds their locks."""

    id: ExecutionId
    job_id: JobId
    job_version: int
    tenant_no: TenantNo
    pool_no: PoolNo
    priority_class: int
    fire_at: datetime
    ready_at: datetime
    started_at: datetime
    attempt_no: int
    failures: int
    losses: int
    origin: Origin
    own_payload: bool

    @property
    def returned(self) -> bool:
        """Leased before, and given back each time before its call began."""
        return self.attempt_no > 1 and self.failures == 0 and self.losses == 0


@dataclass(frozen=True, slots=True)
class OldestDue:
    """How long the oldest due fire has waited: for a worker of `pool`, or to be planned. None: nothing waits."""

    pool: str | None
    waiting_s: float | None
    unplanned_s: float | None

    @property
    def lag_s(self) -> float:
        return max(self.waiting_s or 0.0, self.unplanned_s or 0.0, 0.0)


async def survey_lanes(
    connection: Connection, lanes: Sequence[Lane], from_ats: Sequence[datetime]
) -> tuple[list[Waiting], datetime | None]:
    """The heads of these lanes, due or still to come, and the database's time (None when all are empty)."""
    rows = await connection.fetch(_SQL["survey_lanes"].text, *_columns(lanes), from_ats)
    waiting = [
        Waiting(Lane(row["pool_no"], PriorityClass(row["class"]), row["tenant_no"]), row["ready_at"]) for row in rows
    ]
    return waiting, rows[0]["now"] if rows else None


async def lease_executions(
    connection: Connection,
    lease_id: LeaseId,
    worker_id: WorkerId,
    *,
    limit: int,
    lanes: Sequence[Lane],
    from_ats: Sequence[datetime],
) -> list[Leased]:
    rows = await connection.fetch(_SQL["lease_executions"].text, lease_id, worker_id, limit, *_columns(lanes), from_ats)
    return [Leased(*row.values()) for row in rows]


async def find_lease(connection: Connection, lease_id: LeaseId, worker_id: WorkerId) -> list[Leased]:
    """What a lease whose reply was lost holds."""
    rows = await connection.fetch(_SQL["find_lease"].text, lease_id, worker_id)
    return [Leased(*row.values()) for row in rows]


async def sweep_late_ready(connection: Connection, limit: int) -> dict[PoolNo, int]:
    rows = await connection.fetch(_SQL["sweep_late_ready"].text, limit)
    return {PoolNo(row["pool_no"]): row["count"] for row in rows}


async def oldest_due(connection: Connection) -> OldestDue:
    row = await connection.fetchrow(_SQL["oldest_due"].text)
    assert row is not None
    return OldestDue(row["pool"], row["waiting_s"], row["unplanned_s"])


def _columns(lanes: Sequence[Lane]) -> tuple[list[int], list[int], list[int]]:
    return (
        [lane.pool_no for lane in lanes],
        [int(lane.priority_class) for lane in lanes],
        [lane.tenant_no for lane in lanes],
    )
