"""Failures in a row of the jobs that pause after so many of them (S12): counted by complete, read by housekeeping."""

from dataclasses import dataclass

from ondot.model.ids import JobId, TenantNo
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("streaks")


@dataclass(frozen=True, slots=True)
class Streak:
    job_id: JobId
    tenant_no: TenantNo
    failures: int


async def find_streaks_over(connection: Connection, limit: int) -> list[Streak]:
    """Jobs that failed as often in a row as they may."""
    rows = await connection.fetch(_SQL["find_streaks_over"].text, limit)
    return [Streak(*row.values()) for row in rows]


async def forget_streak(connection: Connection, tenant_no: TenantNo, job_id: JobId) -> None:
    await connection.execute(_SQL["forget_streak"].text, tenant_no, job_id)
