"""Ranges of fires that are still to run: catch-up after an outage, and backfills with their progress (S6, S7)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from ondot.model.execution import PriorityClass
from ondot.model.ids import ExecutionId, JobId, PoolNo, TenantNo, first_id_at
from ondot.model.job import JobState
from ondot.model.planning import EXECUTION_AHEAD, OwedRange, first_execution_id
from ondot.model.schedule import Schedule
from ondot.store.connection import Connection, Record
from ondot.store.queries import load_queries

_SQL = load_queries("owed")

BackfillState = Literal["RUNNING", "DONE", "CANCELLED"]


@dataclass(frozen=True, slots=True)
class Owed:
    """A range, its job's timer locked. `schedule_version` decides which instants, `job_version` what runs."""

    id: UUID
    job_id: JobId
    tenant_no: TenantNo
    schedule_version: int
    origin: Literal["fire", "backfill"]
    from_at: datetime
    to_at: datetime
    count: int | None
    newest_first: bool
    concurrency: int
    job_version: int
    job_state: JobState
    live: int
    now: datetime


@dataclass(frozen=True, slots=True)
class OwedStep:
    """The rest of a range, by its schedule. `is_over`: nothing of it is left to run or to end."""

    owed: Owed
    schedule: Schedule
    from_at: datetime
    to_at: datetime
    count: int | None
    is_over: bool


@dataclass(frozen=True, slots=True)
class OwedFire:
    execution_id: ExecutionId
    owed_id: UUID
    fire_at: datetime
    delay_s: float
    pool_no: PoolNo
    priority_class: int
    stages: str | None


@dataclass(frozen=True, slots=True)
class Made:
    """An execution that was made: its fire had none before."""

    owed_id: UUID
    fire_at: datetime
    pool_no: PoolNo
    ready_at: datetime


@dataclass(frozen=True, slots=True)
class NewBackfill:
    id: UUID
    job_id: JobId
    job_version: int
    from_at: datetime
    to_at: datetime
    newest_first: bool
    concurrency: int
    total: int
    partition_no: int
    traceparent: str | None


@dataclass(frozen=True, slots=True)
class BackfillRow:
    """A backfill as it is shown. `total` fires: `made` into executions, `existing` had one, the rest is to come.

    Of those made, `live` have not ended and `stopped` were cancelled or skipped.
    """

    id: UUID
    job_id: JobId
    job_version: int
    from_at: datetime
    to_at: datetime
    newest_first: bool
    concurrency: int
    total: int
    made: int
    existing: int
    state: BackfillState
    job_state: JobState
    created_at: datetime
    ended_at: datetime | None
    live: int
    succeeded: int
    failed: int
    stopped: int


async def take_owed(connection: Connection, partitions: Collection[int], limit: int) -> list[Owed]:
    """The ranges whose turn it is, with the timers of their jobs locked."""
    rows = await connection.fetch(_SQL["take_owed"].text, list(partitions), limit, int(PriorityClass.CATCH_UP))
    return [
        Owed(
            row["id"],
            JobId(row["job_id"]),
            TenantNo(row["tenant_no"]),
            row["schedule_version"],
            row["origin"],
            row["from_at"],
            row["to_at"],
            row["count"],
            row["newest_first"],
            row["concurrency"],
            row["job_version"],
            JobState(row["state"]),
            row["live"],
            row["now"],
        )
        for row in rows
    ]


async def make_owed(
    connection: Connection, steps: Sequence[OwedStep], fires: Sequence[OwedFire], *, next_turn_s: float
) -> list[Made]:
    """Make executions for fires of these ranges and move the ranges past them; returns those that were made."""
    rows = await connection.fetch(
        _SQL["make_owed"].text,
        [step.owed.id for step in steps],
        [step.owed.from_at for step in steps],
        [step.owed.to_at for step in steps],
        [step.from_at for step in steps],
        [step.to_at for step in steps],
        [step.count for step in steps],
        [step.is_over for step in steps],
        next_turn_s,
        [fire.execution_id for fire in fires],
        [fire.owed_id for fire in fires],
        [fire.fire_at for fire in fires],
        [fire.delay_s for fire in fires],
        [fire.pool_no for fire in fires],
        [fire.priority_class for fire in fires],
        [fire.stages for fire in fires],
        first_execution_id(min(fire.fire_at for fire in fires)) if fires else None,
    )
    return [Made(*row.values()) for row in rows]


async def put_off_owed(connection: Connection, ids: Sequence[UUID], next_turn_s: float) -> None:
    await connection.execute(_SQL["put_off_owed"].text, ids, next_turn_s)


async def drop_owed(connection: Connection, tenant_no: TenantNo, job_id: JobId) -> list[tuple[OwedRange, int]]:
    """Remove and return the ranges that a job owes from an outage, each with the version of its schedule."""
    rows = await connection.fetch(_SQL["drop_owed"].text, tenant_no, job_id)
    return [(OwedRange(row["from_at"], row["to_at"], row["count"]), row["job_version"]) for row in rows]


async def insert_backfill(connection: Connection, tenant_no: TenantNo, backfill: NewBackfill) -> None:
    await connection.fetchrow(
        _SQL["insert_backfill"].text,
        tenant_no,
        backfill.id,
        backfill.job_id,
        backfill.job_version,
        backfill.from_at,
        backfill.to_at,
        backfill.newest_first,
        backfill.concurrency,
        backfill.total,
        backfill.partition_no,
        backfill.traceparent,
    )


async def end_backfill(
    connection: Connection, tenant_no: TenantNo, job_id: JobId, state: BackfillState, id_: UUID | None = None
) -> bool:
    """End the running backfill of a job; returns whether there was one."""
    return await connection.fetchrow(_SQL["end_backfill"].text, tenant_no, job_id, state, id_) is not None


async def list_backfills(
    connection: Connection, tenant_no: TenantNo, job_id: JobId, *, id_: UUID | None = None, limit: int = 1
) -> list[BackfillRow]:
    """Newest first, with the counts of their executions."""
    rows = await connection.fetch(_SQL["list_backfills"].text, tenant_no, job_id, id_, limit)
    return [
        # One by one: the bounds of each leave few days of history to read.
        BackfillRow(
            row["id"],
            JobId(row["job_id"]),
            row["job_version"],
            row["from_at"],
            row["to_at"],
            row["newest_first"],
            row["concurrency"],
            row["total"],
            row["made"],
            row["existing"],
            row["state"],
            JobState(row["job_state"]),
            row["created_at"],
            row["ended_at"],
            **await _count_backfilled(connection, tenant_no, row),
        )
        for row in rows
    ]


async def _count_backfilled(connection: Connection, tenant_no: TenantNo, backfill: Record) -> dict[str, int]:
    ended_at: datetime | None = backfill["ended_at"]
    counts = await connection.fetchrow(
        _SQL["count_backfilled"].text,
        tenant_no,
        backfill["job_id"],
        backfill["from_at"],
        backfill["to_at"],
        backfill["id"],
        None if ended_at is None else first_id_at(ended_at + EXECUTION_AHEAD),
    )
    assert counts is not None
    return dict(counts)


async def find_executed_fires(
    connection: Connection, tenant_no: TenantNo, job_id: JobId, from_at: datetime, to_at: datetime, limit: int
) -> list[datetime]:
    """The instants of a range for which a job has an execution, live or ended."""
    rows = await connection.fetch(
        _SQL["find_executed_fires"].text, tenant_no, job_id, from_at, to_at, limit, first_execution_id(from_at)
    )
    return [row["fire_at"] for row in rows]
