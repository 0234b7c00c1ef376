"""Timers: the next fire of each job, and the one statement that advances them and makes executions."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar
from uuid import UUID

from msgspec import Struct

from ondot.model.ids import JobId, PoolNo, TenantNo
from ondot.model.planning import OwedRange, SkippedRange, Timer, first_execution_id
from ondot.store.connection import Connection, Record
from ondot.store.queries import load_queries

_SQL = load_queries("timers")

_Value = TypeVar("_Value")


class Move(Struct, frozen=True, gc=False):
    """One timer's advance, if it is still as `timer` says. `ends`: of a one-time job, whose timer is removed."""

    timer: Timer
    next_fire_at: datetime | None
    fired_through: datetime | None
    fires_left: int | None
    ends: bool


class PlannedFire(Struct, frozen=True, gc=False):
    """An execution to be made. `ready_at` None: at the fire. A live one may be skipped where it would have to wait, a
    catch-up one may not."""

    execution_id: UUID
    job_id: JobId
    fire_at: datetime
    ready_at: datetime | None
    pool_no: PoolNo
    priority_class: int
    stages: str | None
    start_by: datetime | None
    is_live: bool


@dataclass(frozen=True, slots=True)
class NewOwed:
    id: UUID
    job_id: JobId
    range: OwedRange


@dataclass(frozen=True, slots=True)
class Recorded:
    """A skipped range, the version whose fires it has (None: from an older release), and when it was recorded."""

    skipped: SkippedRange
    job_version: int | None
    at: datetime


@dataclass(frozen=True, slots=True)
class Planned:
    """The effect of a plan: timers moved, executions made, and for each pool the earliest `ready_at` among them."""

    moved: int
    planned: int
    pools: tuple[tuple[PoolNo, datetime], ...]


async def find_due_timers(
    connection: Connection,
    partitions: Sequence[int],
    from_ats: Sequence[datetime],
    *,
    horizon_s: float,
    limit: int,
    without: Collection[JobId] = (),
) -> tuple[list[Timer], datetime | None]:
    """Timers due before the horizon, earliest first, and the database's time (None when there are none)."""
    rows = await connection.fetch(_SQL["find_due_timers"].text, partitions, from_ats, horizon_s, limit, list(without))
    return [Timer(*row[:-1]) for row in rows], rows[0]["now"] if rows else None


async def is_crowded(
    connection: Connection, partitions: Sequence[int], *, from_s: float, to_s: float, crowd: int
) -> bool:
    """Whether at least `crowd` fires are due in this stretch of time, in seconds from now."""
    return bool(await connection.fetchval(_SQL["is_crowded"].text, partitions, from_s, to_s, crowd))


async def plan_fires(
    connection: Connection,
    moves: Sequence[Move],
    fires: Sequence[PlannedFire],
    skipped: Sequence[tuple[JobId, SkippedRange]],
    owed: Sequence[NewOwed],
    *,
    live_at_once: int,
) -> Planned:
    """`live_at_once`: how many executions of an owed range may be live at once."""
    guarded = {move.timer.job_id for move in moves if move.timer.is_guarded}
    first_at = min((fire.fire_at for fire in fires if fire.job_id in guarded), default=None) if guarded else None
    row = await connection.fetchrow(
        _SQL["plan_fires"].text,
        [move.timer.job_id for move in moves],
        [move.timer.version for move in moves],
        [move.timer.next_fire_at for move in moves],
        [move.next_fire_at for move in moves],
        [move.fired_through for move in moves],
        _or_empty([move.fires_left for move in moves]),
        _or_empty([move.ends or None for move in moves]),
        [fire.execution_id for fire in fires],
        [fire.job_id for fire in fires],
        [fire.fire_at for fire in fires],
        _or_empty([fire.ready_at for fire in fires]),
        [fire.pool_no for fire in fires],
        [fire.priority_class for fire in fires],
        [job_id for job_id, _ in skipped],
        [entry.from_at for _, entry in skipped],
        [entry.to_at for _, entry in skipped],
        [entry.reason for _, entry in skipped],
        [entry.count for _, entry in skipped],
        [entry.id for entry in owed],
        [entry.job_id for entry in owed],
        [entry.range.from_at for entry in owed],
        [entry.range.to_at for entry in owed],
        [entry.range.count for entry in owed],
        live_at_once,
        _or_empty([fire.stages for fire in fires]),
        _or_empty([fire.start_by for fire in fires]),
        _or_empty([None if fire.is_live else False for fire in fires]),
        None if first_at is None else first_execution_id(first_at),
        bool(guarded),
    )
    assert row is not None
    return Planned(row["moved"], row["planned"], tuple(zip(row["pool_nos"], row["ready_ats"], strict=True)))


def _or_empty(values: list[_Value | None]) -> list[_Value | None]:
    """Unnest makes NULLs of an empty array beside others; sending them would cost as much as sending values."""
    return values if any(value is not None for value in values) else []


async def get_timer(connection: Connection, tenant_no: TenantNo, job_id: JobId) -> Timer | None:
    row = await connection.fetchrow(_SQL["get_timer"].text, tenant_no, job_id)
    return Timer(*row.values()) if row else None


async def lock_timer(connection: Connection, job_id: JobId) -> Timer | None:
    row = await connection.fetchrow(_SQL["lock_timer"].text, job_id)
    return Timer(*row.values()) if row else None


async def set_timer(connection: Connection, timer: Timer) -> None:
    await connection.execute(
        _SQL["set_timer"].text,
        timer.tenant_no,
        timer.job_id,
        timer.partition_no,
        timer.version,
        timer.job_version,
        timer.next_fire_at,
        timer.fired_through,
        timer.fires_left,
    )


async def guard_timer(connection: Connection, tenant_no: TenantNo, job_id: JobId, until: datetime) -> None:
    """Up to this instant plan reads history before it makes an execution: some fires have ended ahead of time."""
    await connection.execute(_SQL["guard_timer"].text, tenant_no, job_id, until)


async def list_timers_after(connection: Connection, job_id: UUID, limit: int) -> list[Timer]:
    """The timers of the jobs after this one, in the order of their ids."""
    rows = await connection.fetch(_SQL["list_timers_after"].text, job_id, limit)
    return [Timer(*row.values()) for row in rows]


async def record_skipped(
    connection: Connection,
    tenant_no: TenantNo,
    job_id: JobId,
    job_version: int,
    skipped: Sequence[SkippedRange],
    *,
    at: datetime | None = None,
) -> None:
    """Record skipped ranges of one version's schedule; `at`: when they were recorded first, if they are not new."""
    await connection.execute(
        _SQL["record_skipped"].text,
        tenant_no,
        job_id,
        [entry.from_at for entry in skipped],
        [entry.to_at for entry in skipped],
        [entry.reason for entry in skipped],
        [entry.count for entry in skipped],
        job_version,
        at,
    )


async def take_skipped(
    connection: Connection, tenant_no: TenantNo, job_id: JobId, fires: Sequence[datetime]
) -> list[Recorded]:
    """Remove and return the ranges that contain one of these fires."""
    rows = await connection.fetch(_SQL["take_skipped"].text, tenant_no, job_id, fires)
    return [_read_recorded(row) for row in rows]


async def take_calendar(
    connection: Connection, tenant_no: TenantNo, job_id: JobId, from_at: datetime, to_at: datetime | None
) -> list[Recorded]:
    """Remove and return ranges that the calendar skips and that overlap an interval; `to_at` None: without an end."""
    rows = await connection.fetch(_SQL["take_calendar"].text, tenant_no, job_id, from_at, to_at)
    return [_read_recorded(row) for row in rows]


def _read_recorded(row: Record) -> Recorded:
    skipped = SkippedRange(row["from_at"], row["to_at"], row["reason"], row["count"])
    return Recorded(skipped, row["job_version"], row["at"])
