"""The queue: survey the lanes, admit at gates, lease a batch, sweep rows that were committed late."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Literal

from msgspec import Struct

from ondot.model.execution import Origin, PriorityClass
from ondot.model.fairness import NO_SCOPES, Lane, Scope, Scopes, Take, Waiting
from ondot.model.ids import EPOCH, ExecutionId, JobId, LeaseId, PoolNo, TenantNo, WorkerId
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("queue")

FROZEN_FOR_MS = 3_000
LARGEST_LEASE = 1_000
"""The most that one lease brings."""
UNKNOWN_AT_ONCE = 1_000
"""Lanes that one survey finds beyond the known ones. The next survey knows those, and finds more."""
LAST_TENANT = 2**31 - 1

_CLASSES = tuple(PriorityClass)
_GATES = -1
"""In place of a class: the row of a survey is about gates. Rates have the number below it."""
_RESERVED = -3
CLASS_ADMITTED = 6
"""The class of executions that got tokens, until the end of the transaction."""


class Leased(Struct, frozen=True, gc=False):
    """One leased execution. It is thin, because a frozen client that has not read its rows keeps them locked.

    Instants are seconds since 1970, exact to the microsecond: most are only compared, and decoding four datetimes took
    as long as the rest of the row.
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
    has_more_at_end: bool
    start_by_s: float | None = None

    @property
    def fire_at(self) -> datetime:
        return datetime.fromtimestamp(self.fire_s, UTC)

    @property
    def ready_at(self) -> datetime:
        return datetime.fromtimestamp(self.ready_s, UTC)

    @property
    def was_returned(self) -> bool:
        """Leased before, and given back each time before its call started."""
        return self.attempt_no > 1 and self.failures == 0 and self.losses == 0


UNPLANNED_S = 5.0


@dataclass(frozen=True, slots=True)
class OldestDue:
    """How long the oldest due fire has waited for a worker of `pool`, or to be planned. None: nothing waits."""

    pool: str | None
    waiting_s: float | None
    unplanned_s: float | None

    @property
    def lag_s(self) -> float:
        return max(self.waiting_s or 0.0, self.unplanned_s or 0.0, 0.0)

    def limit_s(self, ready_lag_s: float) -> float:
        """How long the oldest may wait. Fires are planned well ahead, so one that is due and not planned is no backlog:
        no node has planned its partition for the whole horizon."""
        is_unplanned = (self.unplanned_s or 0.0) >= (self.waiting_s or 0.0)
        return min(UNPLANNED_S, ready_lag_s) if is_unplanned else ready_lag_s


@dataclass(frozen=True, slots=True)
class RatedPool:
    """A pool with work that waits for a rate, and when the first of it may pass.

    `limited`: the work of this tenant, which has quotas; None: of all tenants without.
    """

    pool_no: PoolNo
    look_at: datetime
    scopes: Scopes
    limited: TenantNo | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """The heads of lanes, due or later, and when the first execution may pass a gate, by the database's clock."""

    waiting: list[Waiting]
    gates_at: datetime | None
    rates: list[RatedPool]
    now: datetime
    stopped: frozenset[TenantNo] = frozenset()
    """Tenants that are suspended or deleted: nothing of them is leased."""
    has_reserved: bool = False
    """Some tenant has reserved slots."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happened to an execution at a gate; `ondot.admit` describes each verdict."""

    execution_id: ExecutionId
    verdict: Literal["ready", "next", "start", "skip", "replace", "cancel"]
    pool_no: PoolNo
    tenant_no: TenantNo
    ready_at: datetime


@dataclass(frozen=True, slots=True)
class Room:
    """How many attempts may start by all limits that count. `token_at`: when there is a token again.

    `tenants`: how many of each tenant with quotas; `counted`: those of them whose attempts are counted. `uncounted`:
    tenants that got a quota while attempts of theirs may run, which must be counted first (`flow.quotas`).
    """

    count: int
    token_at: datetime | None = None
    tenants: Mapping[TenantNo, int] = field(default_factory=dict)
    counted: frozenset[TenantNo] = frozenset()
    uncounted: frozenset[TenantNo] = frozenset()


@dataclass(frozen=True, slots=True)
class Reserved:
    """The slots that a pool keeps free for a tenant, and what runs of it, there and on one worker."""

    pool_no: PoolNo
    tenant_no: TenantNo
    reserved: int
    slots: int
    """Of all live workers that serve the pool and the tenant; `before`: of those before this worker."""
    before: int
    here: int
    running: int
    running_here: int


async def survey_lanes(
    connection: Connection,
    pool_nos: Sequence[PoolNo],
    lanes: Sequence[Lane],
    from_ats: Sequence[datetime],
    tenant_nos: Collection[TenantNo] | None = None,
) -> Survey | None:
    """What waits in these lanes, in all other lanes of these pools and tenants, and before their gates. None: nothing
    waits. `tenant_nos` None: all tenants."""
    gaps = list(zip(*gaps_between(pool_nos, lanes, tenant_nos), strict=True)) or [()] * 4
    rows = await connection.fetch(
        _SQL["survey_lanes"].text, *_columns(lanes), from_ats, pool_nos, *gaps, UNKNOWN_AT_ONCE, tenant_nos
    )
    if not rows:
        return None
    waiting: list[Waiting] = []
    gates: list[datetime] = []
    rates: list[RatedPool] = []
    stopped: set[TenantNo] = set()
    has_reserved = False
    for pool_no, class_no, tenant_no, ready_at, _, pool_is_limited, tenant_is_limited, is_stopped in rows:
        scopes = (Scope("pool", pool_no),) if pool_is_limited else NO_SCOPES
        if tenant_is_limited:
            scopes = (*scopes, Scope("tenant", tenant_no))
        if class_no >= 0:
            waiting.append(Waiting(Lane(pool_no, _CLASSES[class_no], tenant_no), ready_at, scopes))
            if is_stopped:
                stopped.add(tenant_no)
        elif class_no == _GATES:
            gates.append(ready_at)
        elif class_no == _RESERVED:
            has_reserved = True
        else:
            rates.append(RatedPool(pool_no, ready_at, scopes, tenant_no if tenant_is_limited else None))
    return Survey(waiting, min(gates, default=None), rates, rows[0]["now"], frozenset(stopped), has_reserved)


async def admit(connection: Connection, pool_nos: Sequence[PoolNo]) -> list[Verdict]:
    """Admit executions at the gates of these pools, except at rates."""
    rows = await connection.fetch(_SQL["admit"].text, pool_nos, False, 0, None, None, None)
    return [Verdict(*row.values()) for row in rows]


async def admit_at_rates(
    connection: Connection,
    pool_nos: Sequence[PoolNo],
    free_slots: int,
    free_for_suspects: int | None,
    tenant_nos: Collection[TenantNo] | None = None,
    limited: TenantNo | None = None,
) -> list[Verdict]:
    """Take tokens for the executions that may start now. The same transaction must lease them (`lease_admitted`).

    `limited`: of this tenant, which has quotas; None: of those without.
    """
    rows = await connection.fetch(
        _SQL["admit"].text, pool_nos, True, free_slots, free_for_suspects, tenant_nos, limited
    )
    return [Verdict(*row.values()) for row in rows]


async def lease_admitted(
    connection: Connection,
    lease_id: LeaseId,
    worker_id: WorkerId,
    verdicts: Sequence[Verdict],
    *,
    takes_slots: bool,
    room: Room | None = None,
    posts: bool = False,
) -> list[Leased]:
    """Lease the executions that got tokens in this transaction. No other transaction sees them before its end."""
    lanes = sorted({(verdict.pool_no, verdict.tenant_no) for verdict in verdicts})
    columns = [pool_no for pool_no, _ in lanes], [CLASS_ADMITTED] * len(lanes), [tenant_no for _, tenant_no in lanes]
    count = len(verdicts)
    from_ats, counts = [EPOCH] * len(lanes), [count] * len(lanes)
    rows = await connection.fetch(
        _SQL["lease_and_post" if posts else "lease_executions"].text,
        *(lease_id, worker_id, count, *columns, from_ats, takes_slots, counts, *_tenants_of(room)),
    )
    return [Leased(*row) for row in rows]


async def end_if_frozen(connection: Connection) -> None:
    """Let the server end this transaction, and free its locks, if this process freezes in it."""
    await connection.fetchval(_SQL["end_if_frozen"].text, str(FROZEN_FOR_MS))


async def find_room(connection: Connection, scopes: Scopes, wanted: int) -> Room | None:
    """Lock these scopes and count how much they allow. None: another worker has a pool of them locked.

    A tenant that another worker has locked has no room.
    """
    pool_nos = [scope.no for scope in scopes if scope.kind == "pool"]
    tenant_nos = [scope.no for scope in scopes if scope.kind == "tenant"]
    locked = await connection.fetch(_SQL["lock_scopes"].text, pool_nos, tenant_nos, LARGEST_LEASE)
    if sum(row["kind"] == "pool" for row in locked) < len(pool_nos):
        return None
    tenants = {TenantNo(row["no"]): row["is_exclusive"] for row in locked if row["kind"] == "tenant"}
    exclusive = [tenant_no for tenant_no, is_exclusive in tenants.items() if is_exclusive]
    rows = await connection.fetch(_SQL["scope_room"].text, pool_nos, list(tenants), LARGEST_LEASE, exclusive, wanted)
    if overdrawn := [row for row in rows if row["is_overdrawn"]]:
        # Written as it was read: an instant from before the clock was set back would stay one bucket ahead until then.
        nos = {kind: [row["no"] for row in overdrawn if row["kind"] == kind] for kind in ("pool", "tenant")}
        await connection.execute(_SQL["take_tokens"].text, nos["pool"], 0, nos["tenant"], [0] * len(nos["tenant"]))
    of_pools = [row for row in rows if row["kind"] == "pool"]
    of_tenants = [row for row in rows if row["kind"] == "tenant"]
    count = min((row["room"] for row in of_pools), default=wanted)
    tokens = [row["token_at"] for row in (of_tenants if count else of_pools) if row["token_at"] is not None]
    return Room(
        count,
        (min(tokens) if count else max(tokens)) if tokens else None,
        # Without a row: it has no quotas any more. Not locked: another worker leases work of it.
        {TenantNo(no): 0 for no in tenant_nos}
        | dict.fromkeys(tenants, 0)
        | {TenantNo(row["no"]): row["room"] or 0 for row in of_tenants},
        frozenset(TenantNo(row["no"]) for row in of_tenants if row["is_counted"]),
        frozenset(TenantNo(row["no"]) for row in of_tenants if row["room"] is None),
    )


async def take_tokens(connection: Connection, scopes: Scopes, leased: Sequence[Leased]) -> None:
    """Take a token of each scope with a rate for each of these, as far as it is of the scope."""
    pool_nos = [scope.no for scope in scopes if scope.kind == "pool"]
    tenants = Counter(row.tenant_no for row in leased)
    limited = [scope.no for scope in scopes if scope.kind == "tenant" and tenants[TenantNo(scope.no)]]
    counts = [tenants[TenantNo(tenant_no)] for tenant_no in limited]
    await connection.execute(_SQL["take_tokens"].text, pool_nos, len(leased), limited, counts)


def _tenants_of(room: Room | None) -> tuple[list[TenantNo], list[TenantNo]]:
    """Tenants with quotas that have room, and those of them whose attempts are counted."""
    if room is None:
        return [], []
    return [tenant_no for tenant_no, count in room.tenants.items() if count > 0], sorted(room.counted)


async def lock_tenant_to_count(connection: Connection, tenant_no: TenantNo) -> bool:
    return bool(await connection.fetchval(_SQL["lock_tenant_to_count"].text, tenant_no))


async def count_running(connection: Connection, tenant_no: TenantNo) -> None:
    """Count what runs of a tenant from scratch. Needs a transaction in which leases are blocked."""
    await connection.execute(_SQL["forget_running"].text, tenant_no)
    await connection.execute(_SQL["count_running"].text, tenant_no)


async def forget_idle_counts(connection: Connection) -> None:
    await connection.execute(_SQL["forget_idle_counts"].text)


async def read_reserved(connection: Connection, pool_nos: Sequence[PoolNo], worker_id: WorkerId) -> list[Reserved]:
    return [Reserved(*row) for row in await connection.fetch(_SQL["read_reserved"].text, pool_nos, worker_id)]


async def read_slots_held(
    connection: Connection, pool_nos: Sequence[PoolNo], worker_id: WorkerId
) -> dict[TenantNo, float]:
    """The slots that each tenant holds on the live workers of these pools, scaled to the slots of this worker."""
    rows = await connection.fetch(_SQL["read_slots_held"].text, pool_nos, worker_id)
    return {TenantNo(row["tenant_no"]): row["held"] * row["here"] / max(row["slots"], 1) for row in rows}


async def lease_executions(
    connection: Connection,
    lease_id: LeaseId,
    worker_id: WorkerId,
    *,
    limit: int,
    takes: Sequence[Take],
    from_ats: Sequence[datetime],
    takes_slots: bool = False,
    room: Room | None = None,
    posts: bool = False,
) -> list[Leased]:
    """Take up to `limit` from these lanes, in their order.

    `takes_slots`: their pool is limited, and has room. `room`: of the tenants with quotas among them. `posts`: sinks
    send starts, so they go to the outbox too.
    """
    lanes, counts = [take.lane for take in takes], [take.count for take in takes]
    rows = await connection.fetch(
        _SQL["lease_and_post" if posts else "lease_executions"].text,
        *(lease_id, worker_id, limit, *_columns(lanes), from_ats, takes_slots, counts, *_tenants_of(room)),
    )
    return [Leased(*row) for row in rows]


async def find_lease(connection: Connection, lease_id: LeaseId, worker_id: WorkerId) -> list[Leased]:
    """The executions of a lease whose reply was lost."""
    rows = await connection.fetch(_SQL["find_lease"].text, lease_id, worker_id)
    return [Leased(*row) for row in rows]


async def sweep_late_ready(connection: Connection, limit: int) -> dict[PoolNo, int]:
    rows = await connection.fetch(_SQL["sweep_late_ready"].text, limit)
    return {PoolNo(row["pool_no"]): row["count"] for row in rows}


async def oldest_due(connection: Connection) -> OldestDue:
    row = await connection.fetchrow(_SQL["oldest_due"].text)
    assert row is not None
    return OldestDue(row["pool"], row["waiting_s"], row["unplanned_s"])


def gaps_between(
    pool_nos: Sequence[PoolNo], lanes: Sequence[Lane], tenant_nos: Collection[TenantNo] | None = None
) -> list[tuple[int, int, int, int]]:
    """(pool, class, after, before): the ranges of tenants between these lanes in which these pools may have others."""
    if tenant_nos is not None:
        known_lanes = set(lanes)
        return [
            (pool_no, int(priority_class), tenant_no - 1, tenant_no + 1)
            for pool_no in pool_nos
            for priority_class in PriorityClass
            for tenant_no in tenant_nos
            if Lane(pool_no, priority_class, tenant_no) not in known_lanes
        ]
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
