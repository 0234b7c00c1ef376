"""Workers: incarnations, their beats, and leases that are left without a worker."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Literal
from uuid import UUID

import msgspec

from ondot.model.app_release import AppRelease
from ondot.model.fairness import Lane
from ondot.model.ids import ExecutionId, JobId, LeaseId, PoolNo, TenantNo, WorkerId
from ondot.model.liveness import Beat
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("workers")


@dataclass(frozen=True, slots=True)
class OrphanedLease:
    """A lease without a worker. `unnamed`: its worker is alive, but never got the reply to this lease."""

    id: LeaseId
    worker_id: WorkerId
    unnamed: bool


@dataclass(frozen=True, slots=True)
class LostExecution:
    id: ExecutionId
    job_id: JobId
    job_version: int
    tenant_no: TenantNo
    pool_no: PoolNo
    attempt_no: int
    losses: int
    origin: str
    lease_id: LeaseId
    worker_id: WorkerId
    stalled_in: str | None = None
    """Where the worker's loop was blocked when the worker was lost; None: not known to be blocked."""
    stalled_by: ExecutionId | None = None
    """The execution whose function blocked the loop; `blocked_by` is that function."""
    blocked_by: str | None = None
    expired_at: datetime | None = None
    """Its start deadline, if this attempt was the first and began only after it: then the worker made no call."""


@dataclass(frozen=True, slots=True)
class BeatReply:
    """The reply to a beat: the time, the functions that blocked the loop of a worker in the last hour, and the
    transports of pools, for `Pools.see_routes`."""

    now: datetime
    blocking: frozenset[str]
    routes: str | None = None


async def register_worker(
    connection: Connection,
    worker_id: WorkerId,
    *,
    host: str,
    pid: int,
    release: str,
    pool_nos: Sequence[PoolNo],
    slots: int,
    tenant_nos: Collection[TenantNo] | None = None,
    app: AppRelease | None = None,
) -> BeatReply:
    """`release`: that of ondot. `tenant_nos`: whose work it leases; None: that of all tenants."""
    of_app = (None, None) if app is None else (app.app, app.release)
    row = await connection.fetchrow(
        _SQL["register_worker"].text, worker_id, host, pid, release, pool_nos, slots, tenant_nos, *of_app
    )
    assert row is not None
    return BeatReply(row["now"], frozenset(row["blocking"]))


async def beat_worker(
    connection: Connection,
    worker_id: WorkerId,
    *,
    state: Literal["ALIVE", "DRAINING"],
    running: int,
    lease_ids: Sequence[LeaseId],
    bounds: Sequence[tuple[Lane, datetime]],
    held: Mapping[TenantNo, int] = MappingProxyType({}),
    trusts: Sequence[str] = (),
) -> BeatReply | None:
    """Send a heartbeat. `held`: the slots that each tenant holds. `trusts`: the transports that it trusts.

    None: this incarnation was marked lost.
    """
    entries = [
        {
            "pool_no": lane.pool_no,
            "class": lane.priority_class,
            "tenant_no": lane.tenant_no,
            "from_at": from_at,
        }
        for lane, from_at in bounds
    ]
    slots = [{"tenant_no": tenant_no, "slots": count} for tenant_no, count in held.items()]
    row = await connection.fetchrow(
        _SQL["beat_worker"].text,
        *(worker_id, state, running, lease_ids, _json(entries), _json(slots), trusts),
    )
    return None if row is None else BeatReply(row["now"], frozenset(row["blocking"]), row["routes"])


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


async def report_stalled_worker(
    connection: Connection,
    worker_id: WorkerId,
    *,
    stalled_s: float,
    where: str,
    execution_id: ExecutionId | None,
    function: str | None,
) -> None:
    """Report that a worker's loop is blocked. This is not a beat."""
    await connection.execute(_SQL["report_stalled_worker"].text, worker_id, stalled_s, where, execution_id, function)


async def set_worker_tenants(connection: Connection, worker_id: WorkerId, tenant_nos: Collection[TenantNo]) -> None:
    await connection.execute(_SQL["set_worker_tenants"].text, worker_id, tenant_nos)


async def leave_worker(connection: Connection, worker_id: WorkerId) -> None:
    await connection.execute(_SQL["leave_worker"].text, worker_id)


async def read_beats(connection: Connection) -> tuple[list[Beat], datetime | None]:
    rows = await connection.fetch(_SQL["read_beats"].text)
    return [Beat(row["id"], row["beat_no"], row["beat_at"]) for row in rows], rows[0]["now"] if rows else None


async def lose_worker(connection: Connection, beat: Beat) -> bool:
    """Mark a worker lost, unless it has sent a beat since. Returns whether it is marked."""
    return await connection.fetchval(_SQL["lose_worker"].text, beat.worker_id, beat.beat_no) is not None


async def find_orphaned_leases(connection: Connection, beat_every_s: float, limit: int) -> list[OrphanedLease]:
    rows = await connection.fetch(_SQL["find_orphaned_leases"].text, beat_every_s, limit)
    return [OrphanedLease(*row.values()) for row in rows]


async def find_lost_executions(connection: Connection, lease_ids: Sequence[LeaseId]) -> list[LostExecution]:
    rows = await connection.fetch(_SQL["find_lost_executions"].text, lease_ids)
    return [LostExecution(*row.values()) for row in rows]


async def find_worker_names(connection: Connection, ids: Collection[UUID]) -> dict[UUID, str]:
    """Host and process id of those that are still known: as the fleet lists them."""
    rows = await connection.fetch(_SQL["worker_names"].text, ids) if ids else []
    return {row["id"]: f"{row['host']}:{row['pid']}" for row in rows}


async def forget_workers(connection: Connection) -> None:
    await connection.execute(_SQL["forget_workers"].text)
