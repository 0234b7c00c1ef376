"""The queue: survey the lanes, admit at gates, lease a batch, sweep what was committed late."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ondot.model.execution import Origin, PriorityClass
from ondot.model.fairness import Lane, Waiting
from ondot.model.ids import ExecutionId, JobId, LeaseId, PoolNo, TenantNo, WorkerId
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("queue")

_GATES = -1
"""Stands for a class where a survey tells of gates."""


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
    start_by: datetime | None = None

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


@dataclass(frozen=True, slots=True)
class Survey:
    """The heads of lanes, due or to come, and when somebody may be admitted at a gate, by the database's clock."""

    waiting: list[Waiting]
    gates_at: datetime | None
    now: datetime


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of an execution at a gate (`ondot.admit` says what there is)."""

    execution_id: ExecutionId
    verdict: Literal["ready", "skip", "replace", "cancel"]
    pool_no: PoolNo
    ready_at: datetime


@dataclass(frozen=True, slots=True)
class Room:
    """How many attempts a limited pool may begin; if none for want of a token, when there will be one."""

    room: int
    token_at: datetime | None


async def survey_lanes(connection: Connection, lanes: Sequence[Lane], from_ats: Sequence[datetime]) -> Survey | None:
    """What waits in these lanes and before the gates of their pools; None when nothing does."""
    pool_nos = sorted({lane.pool_no for lane in lanes})
    rows = await connection.fetch(_SQL["survey_lanes"].text, *_columns(lanes), from_ats, pool_nos)
    if not rows:
        return None
    waiting = [
        Waiting(Lane(row["pool_no"], PriorityClass(row["class"]), row["tenant_no"]), row["ready_at"], row["is_limited"])
        for row in rows
        if row["class"] != _GATES
    ]
    gates_at = min((row["ready_at"] for row in rows if row["class"] == _GATES), default=None)
    return Survey(waiting, gates_at, rows[0]["now"])


async def admit(connection: Connection, pool_nos: Sequence[PoolNo], free_slots: int) -> list[Verdict]:
    """Let through the gates of these pools who may; the rates let no more through than there are free slots."""
    rows = await connection.fetch(_SQL["admit"].text, pool_nos, free_slots)
    return [Verdict(*row.values()) for row in rows]


async def pool_room(connection: Connection, pool_no: PoolNo, wanted: int) -> Room | None:
    """Lock a limited pool and see how much it allows; None while another worker has it locked."""
    row = await connection.fetchrow(_SQL["pool_room"].text, pool_no, wanted)
    return None if row is None else Room(max(row["room"], 0), row["token_at"])


async def take_tokens(connection: Connection, pool_no: PoolNo, count: int) -> None:
    await connection.execute(_SQL["take_tokens"].text, pool_no, count)


async def lease_executions(
    connection: Connection,
    lease_id: LeaseId,
    worker_id: WorkerId,
    *,
    limit: int,
    lanes: Sequence[Lane],
    from_ats: Sequence[datetime],
    of_limited_pool: bool = False,
) -> list[Leased]:
    rows = await connection.fetch(
        _SQL["lease_executions"].text, lease_id, worker_id, limit, *_columns(lanes), from_ats, of_limited_pool
    )
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
