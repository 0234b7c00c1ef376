"""Failures in a row of jobs that pause after some number of them (S12): complete counts, housekeeping reads."""

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
    """Jobs that reached their number of failures in a row."""
    rows = await connection.fetch(_SQL["find_streaks_over"].text, limit)
    return [Streak(*row.values()) for row in rows]


async def forget_streak(connection: Connection, tenant_no: TenantNo, job_id: JobId) -> None:
    await connection.execute(_SQL["forget_streak"].text, tenant_no, job_id)
