"""Rows of expectations (O11): what is looked at when (`watch`), and what was missed (`miss`).

A look reads all of its facts in a handful of statements for any number of jobs. Days of history are bounded: a watch
that was not looked at for longer than a week starts a week ago.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from ondot.model.expect import RUNS_READ, Which
from ondot.model.ids import JobId, TenantNo, first_id_at
from ondot.model.planning import first_execution_id
from ondot.store.connection import Connection, Record
from ondot.store.queries import load_queries

_SQL = load_queries("expect")

LONGEST_BACK: Final = timedelta(days=7)
DURATIONS_BACK: Final = timedelta(days=31)
FIRES_A_LOOK: Final = 500


@dataclass(frozen=True, slots=True)
class WatchRow:
    job_id: JobId
    which: Which
    tenant_no: TenantNo
    after_at: datetime
    look_at: datetime
    now: datetime


@dataclass(frozen=True, slots=True)
class OpenMiss:
    """`state`, `started_at`, `ended_at`: of its execution now; None: it has none."""

    id: UUID
    job_id: JobId
    which: Which
    execution_id: UUID | None
    fire_at: datetime | None
    due_at: datetime
    seen_at: datetime
    count: int
    predicted: bool
    reason: str
    state: str | None
    started_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class MissRow:
    id: UUID
    job_id: JobId
    which: Which
    execution_id: UUID | None
    fire_at: datetime | None
    due_at: datetime
    seen_at: datetime
    cleared_at: datetime | None
    count: int
    predicted: bool
    reason: str


@dataclass(frozen=True, slots=True)
class NewMiss:
    id: UUID
    tenant_no: TenantNo
    job_id: JobId
    which: Which
    execution_id: UUID | None
    fire_at: datetime | None
    due_at: datetime
    count: int
    predicted: bool
    reason: str


Moved = tuple[WatchRow, datetime, datetime | None]
"""A watch, through which fire it is settled, and when it is looked at next (None: it is over)."""


async def put_watches(
    connection: Connection,
    tenant_no: TenantNo,
    job_id: JobId,
    which: Sequence[Which],
    first_fire_at: datetime | None = None,
) -> None:
    """The expectations that a job has from now on; it is looked at soon. `first_fire_at`: of a new job, which counts
    even if it is due already."""
    await connection.execute(_SQL["put_watches"].text, tenant_no, job_id, which, first_fire_at)


async def find_due_watches(connection: Connection, limit: int) -> list[WatchRow]:
    return [WatchRow(*row.values()) for row in await connection.fetch(_SQL["find_due_watches"].text, limit)]


def _columns(rows: Sequence[WatchRow]) -> tuple[list[TenantNo], list[JobId], list[datetime]]:
    return [row.tenant_no for row in rows], [row.job_id for row in rows], [_after(row) for row in rows]


def _after(row: WatchRow) -> datetime:
    return max(row.after_at, row.now - LONGEST_BACK)


async def read_fires(connection: Connection, rows: Sequence[WatchRow]) -> tuple[list[Record], list[Record]]:
    """The fires of these watches with executions, and those without."""
    columns = _columns(rows)
    from_id = first_execution_id(min(columns[2]))
    fires = await connection.fetch(_SQL["read_watched_fires"].text, *columns, FIRES_A_LOOK, from_id)
    return fires, await connection.fetch(_SQL["read_skipped_fires"].text, *columns)


async def read_durations(connection: Connection, jobs: Sequence[tuple[TenantNo, JobId]], now: datetime) -> list[Record]:
    columns = [no for no, _ in jobs], [id_ for _, id_ in jobs]
    return await connection.fetch(_SQL["read_durations"].text, *columns, first_id_at(now - DURATIONS_BACK), RUNS_READ)


async def read_last_successes(connection: Connection, rows: Sequence[WatchRow]) -> dict[JobId, datetime]:
    columns = _columns(rows)
    from_id = first_execution_id(min(columns[2]))
    found = await connection.fetch(_SQL["read_last_successes"].text, *columns, from_id)
    return {JobId(row["job_id"]): row["succeeded_at"] for row in found if row["succeeded_at"] is not None}


async def read_open_misses(
    connection: Connection, jobs: Sequence[tuple[TenantNo, JobId]], now: datetime
) -> list[OpenMiss]:
    columns = [no for no, _ in jobs], [id_ for _, id_ in jobs]
    from_id = first_execution_id(now - LONGEST_BACK)
    return [OpenMiss(*row.values()) for row in await connection.fetch(_SQL["read_open_misses"].text, *columns, from_id)]


async def move_watches(connection: Connection, moved: Sequence[Moved]) -> set[tuple[JobId, Which]]:
    """Returns those that nobody else has moved meanwhile."""
    columns = (
        [row.job_id for row, _, _ in moved],
        [row.which for row, _, _ in moved],
        [row.look_at for row, _, _ in moved],
        [after_at for _, after_at, _ in moved],
        [next_at for _, _, next_at in moved],
        [row.tenant_no for row, _, _ in moved],
    )
    found = await connection.fetch(_SQL["move_watches"].text, *columns)
    return {(JobId(row["job_id"]), row["which"]) for row in found}


async def put_misses(connection: Connection, misses: Sequence[NewMiss]) -> None:
    columns = [
        [getattr(miss, name) for miss in misses]
        for name in (
            *("id", "tenant_no", "job_id", "which", "execution_id"),
            *("fire_at", "due_at", "count", "predicted", "reason"),
        )
    ]
    await connection.execute(_SQL["put_misses"].text, *columns)


async def clear_misses(connection: Connection, misses: Sequence[tuple[TenantNo, UUID]]) -> None:
    await connection.execute(_SQL["clear_misses"].text, [id_ for _, id_ in misses], [no for no, _ in misses])


async def list_misses(connection: Connection, tenant_no: TenantNo, job_id: JobId, limit: int) -> list[MissRow]:
    rows = await connection.fetch(_SQL["list_misses"].text, tenant_no, job_id, limit)
    return [MissRow(*row.values()) for row in rows]


async def list_recent_misses(
    connection: Connection, tenant_no: TenantNo, since: datetime, until: datetime, limit: int, *, ends_now: bool
) -> list[MissRow]:
    """Those of a window; if it ends now, also the forecasts that hold."""
    rows = await connection.fetch(_SQL["list_recent_misses"].text, tenant_no, since, until, ends_now, limit)
    return [MissRow(*row.values()) for row in rows]


async def remove_old_misses(connection: Connection, days: int, limit: int) -> int:
    return int(await connection.fetchval(_SQL["remove_old_misses"].text, days, limit))
