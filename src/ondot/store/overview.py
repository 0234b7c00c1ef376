"""What the page and the metrics show: counts and heads of lists, each read by an index and bounded."""

from dataclasses import dataclass
from datetime import datetime

from ondot.model.execution import PriorityClass
from ondot.model.ids import ExecutionId, JobId, TenantNo
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("overview")

CEILING = 10_000
"""Queue depths are counted up to here."""


@dataclass(frozen=True, slots=True)
class Depth:
    pool: str
    priority_class: PriorityClass
    count: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class ComingFire:
    job_id: JobId
    job_version: int
    fire_at: datetime
    execution_id: ExecutionId


async def queue_depth(connection: Connection, ceiling: int = CEILING) -> list[Depth]:
    rows = await connection.fetch(_SQL["queue_depth"].text, ceiling)
    return [
        Depth(
            row["pool"],
            PriorityClass(row["class"]),
            row["count"],
            (row["now"] - row["oldest_at"]).total_seconds(),
        )
        for row in rows
    ]


async def planned_fires(connection: Connection, tenant_no: TenantNo, limit: int) -> list[ComingFire]:
    rows = await connection.fetch(_SQL["planned_fires"].text, tenant_no, limit)
    return [ComingFire(*row.values()) for row in rows]


async def count_states(connection: Connection, tenant_no: TenantNo, minutes: int) -> dict[str, int]:
    rows = await connection.fetch(_SQL["count_states"].text, tenant_no, minutes)
    return {row["state"]: row["count"] for row in rows}


async def count_jobs(connection: Connection, tenant_no: TenantNo) -> tuple[int, int]:
    """Recurring jobs that are active, and that are paused."""
    row = await connection.fetchrow(_SQL["count_jobs"].text, tenant_no)
    assert row is not None
    return row["active"], row["paused"]


async def count_dead_letters(connection: Connection, tenant_no: TenantNo) -> int:
    return int(await connection.fetchval(_SQL["count_dead_letters"].text, tenant_no))
