"""The queue: survey the lanes, admit at gates, lease a batch, sweep what was committed late."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Literal

from msgspec import Struct

from ondot.model.execution import Origin, PriorityClass
from ondot.model.fairness import Lane, Take, Waiting
from ondot.model.ids import EPOCH, ExecutionId, JobId, LeaseId, PoolNo, TenantNo, WorkerId
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("queue")

FROZEN_FOR_MS = 3_000
UNKNOWN_AT_ONCE = 1_000
"""Lanes that one survey finds beyond the known ones: what is found is known to the next, which goes on from there."""
LAST_TENANT = 2**31 - 1

_CLASSES = tuple(PriorityClass)
_GATES = -1
"""Stands for a class where a survey tells of gates; those of rates have the number below it."""
CLASS_ADMITTED = 6
"""The lane of those who were given tokens, for as long as the transaction takes."""


class Leased(Struct, frozen=True):
    """One leased execution: thin on purpose, since a frozen client that has not read its rows holds their locks.

    Instants come as seconds since 1970 (exact to the microsecond): most are only compared, and four datetimes for each
    row took as long to read as all the rest of it.
    """

    id: ExecutionId
    job_id: JobId
    job_version: int
    tenant_no: TenantNo
    pool_no: PoolNo
    priority_class: int
    fire_s: float
    ready_s: float
    started_s: float
    attempt_no: int
    failures: int
    losses: int
    origin: Origin
    own_payload: bool
    gated: bool
    start_by_s: float | None = None

    @property
    def fire_at(self) -> datetime:
        return datetime.fromtimestamp(self.fire_s, UTC)

    @property
    def ready_at(self) -> datetime:
        return datetime.fromtimestamp(self.ready_s, UTC)

    @property
    def returned(self) -> bool:
        """Leased before, and given back each time before its call began."""
        return self.attempt_no > 1 and self.failures == 0 and self.losses == 0


UNPLANNED_S = 5.0


@dataclass(frozen=True, slots=True)
class OldestDue:
    """How long the oldest due fire has waited: for a worker of `pool`, or to be planned. None: nothing waits."""

    pool: str | None
    waiting_s: float | None
    unplanned_s: float | None

    @property
    def lag_s(self) -> float:
        return max(self.waiting_s or 0.0, self.unplanned_s or 0.0, 0.0)

    def limit_s(self, ready_lag_s: float) -> float:
        """How long the oldest may wait. Fires are planned well ahead: one that is due and not planned is no backlog,
        nobody has planned its partition for the whole horizon."""
        is_unplanned = (self.unplanned_s or 0.0) >= (self.waiting_s or 0.0)
        return min(UNPLANNED_S, ready_lag_s) if is_unplanned else ready_lag_s


@dataclass(frozen=True, slots=True)
class RatedPool:
    pool_no: PoolNo
    look_at: datetime
    is_limited: bool


@dataclass(frozen=True, slots=True)
class Survey:
    """The heads of lanes, due or to come, and when somebody may be admitted at a gate, by the database's clock.

    `rates`: the pools before whose rates somebody waits, and since or until when.
    """

    waiting: list[Waiting]
    gates_at: datetime | None
    rates: list[RatedPool]
    now: datetime


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of an execution at a gate (`ondot.admit` says what there is)."""

    execution_id: ExecutionId
    verdict: Literal["ready", "next", "start", "skip", "replace", "cancel"]
    pool_no: PoolNo
    tenant_no: TenantNo
    ready_at: datetime


@dataclass(frozen=True, slots=True)
class Room:
    """How many attempts a limited pool may begin; if none for want of a token, when there will be one."""

    room: int
    token_at: datetime | None


async def survey_lanes(
    connection: Connection, pool_nos: Sequence[PoolNo], lanes: Sequence[Lane], from_ats: Sequence[datetime]
) -> Survey | None:
    """What waits in these lanes, in all others of these pools, and before their gates; None when nothing does."""
    gaps = list(zip(*gaps_between(pool_nos, lanes), strict=True)) or [()] * 4
    rows = await connection.fetch(
        _SQL["survey_lanes"].text, *_columns(lanes), from_ats, pool_nos, *gaps, UNKNOWN_AT_ONCE
    )
    if not rows:
        return None
    waiting: list[Waiting] = []
    gates: list[datetime] = []
    rates: list[RatedPool] = []
    for pool_no, class_no, tenant_no, ready_at, _, is_limited in rows:
        if class_no >= 0:
            waiting.append(Waiting(Lane(pool_no, _CLASSES[class_no], tenant_no), ready_at, is_limited))
        elif class_no == _GATES:
            gates.append(ready_at)
        else:
            rates.append(RatedPool(pool_no, ready_at, is_limited))
    return Survey(waiting, min(gates, default=None), rates, rows[0]["now"])


async def admit(connection: Connection, pool_nos: Sequence[PoolNo]) -> list[Verdict]:
    """Let through the gates of these pools who may, but for the rates."""
    rows = await connection.fetch(_SQL["admit"].text, pool_nos, False, 0, None)
    return [Verdict(*row.values()) for row in rows]


async def admit_at_rates(
    connection: Connection, pool_nos: Sequence[PoolNo], free_slots: int, free_for_suspects: int | None
) -> list[Verdict]:
    """Take tokens for what may start now. It is to be leased by the same transaction (`lease_admitted`)."""
    rows = await connection.fetch(_SQL["admit"].text, pool_nos, True, free_slots, free_for_suspects)
    return [Verdict(*row.values()) for row in rows]


async def lease_admitted(
    connection: Connection, lease_id: LeaseId, worker_id: WorkerId, verdicts: Sequence[Verdict], *, limited: bool
) -> list[Leased]:
    """Lease who was given tokens by this transaction. Nobody else sees them before its end."""
    lanes = sorted({(verdict.pool_no, verdict.tenant_no) for verdict in verdicts})
    columns = [pool_no for pool_no, _ in lanes], [CLASS_ADMITTED] * len(lanes), [tenant_no for _, tenant_no in lanes]
    count = len(verdicts)
    from_ats, counts = [EPOCH] * len(lanes), [count] * len(lanes)
    rows = await connection.fetch(
        _SQL["lease_executions"].text, lease_id, worker_id, count, *columns, from_ats, limited, counts
    )
    return [Leased(*row) for row in rows]


async def hold_briefly(connection: Connection) -> None:
    """What this transaction locks is given back soon, also if this process freezes in it."""
    await connection.fetchval(_SQL["hold_briefly"].text, str(FROZEN_FOR_MS))


async def pool_room(connection: Connection, pool_no: PoolNo, wanted: int) -> Room | None:
    """Lock a limited pool and see how much it allows; None while another worker has it locked."""
    if await connection.fetchval(_SQL["lock_pool"].text, pool_no) is None:
        return None
    row = await connection.fetchrow(_SQL["pool_room"].text, pool_no, wanted)
    assert row is not None
    if row["is_overdrawn"]:
        # Written as it was read: an instant of before the clock was set back would stay one bucket ahead for as long.
        await take_tokens(connection, pool_no, 0)
    return Room(max(row["room"], 0), row["token_at"])


async def take_tokens(connection: Connection, pool_no: PoolNo, count: int) -> None:
    await connection.execute(_SQL["take_tokens"].text, pool_no, count)


async def lease_executions(
    connection: Connection,
    lease_id: LeaseId,
    worker_id: WorkerId,
    *,
    limit: int,
    takes: Sequence[Take],
    from_ats: Sequence[datetime],
    of_limited_pool: bool = False,
) -> list[Leased]:
    lanes, counts = [take.lane for take in takes], [take.count for take in takes]
    rows = await connection.fetch(
        _SQL["lease_executions"].text, lease_id, worker_id, limit, *_columns(lanes), from_ats, of_limited_pool, counts
    )
    return [Leased(*row) for row in rows]


async def find_lease(connection: Connection, lease_id: LeaseId, worker_id: WorkerId) -> list[Leased]:
    """What a lease whose reply was lost holds."""
    rows = await connection.fetch(_SQL["find_lease"].text, lease_id, worker_id)
    return [Leased(*row) for row in rows]


async def sweep_late_ready(connection: Connection, limit: int) -> dict[PoolNo, int]:
    rows = await connection.fetch(_SQL["sweep_late_ready"].text, limit)
    return {PoolNo(row["pool_no"]): row["count"] for row in rows}


async def oldest_due(connection: Connection) -> OldestDue:
    row = await connection.fetchrow(_SQL["oldest_due"].text)
    assert row is not None
    return OldestDue(row["pool"], row["waiting_s"], row["unplanned_s"])


def gaps_between(pool_nos: Sequence[PoolNo], lanes: Sequence[Lane]) -> list[tuple[int, int, int, int]]:
    """(pool, class, after, before): where between these lanes, tenant by tenant, there may be others of these pools."""
    known: dict[tuple[int, int], list[int]] = {}
    for lane in lanes:
        known.setdefault((lane.pool_no, lane.priority_class), []).append(lane.tenant_no)
    return [
        (pool_no, int(priority_class), after, before)
        for pool_no in pool_nos
        for priority_class in PriorityClass
        for after, before in pairwise([-1, *sorted(known.get((pool_no, priority_class), ())), LAST_TENANT])
        if before - after > 1
    ]


def _columns(lanes: Sequence[Lane]) -> tuple[list[int], list[int], list[int]]:
    return (
        [lane.pool_no for lane in lanes],
        [int(lane.priority_class) for lane in lanes],
        [lane.tenant_no for lane in lanes],
    )
