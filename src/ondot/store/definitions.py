"""Definitions: the jobs that recur or have a key, with their latest runs, for the page of jobs (O5).

A page takes a bounded number of statements, however many jobs there are: one for the jobs, one for the runs of the last
8 days, and one that goes 64 days further back for jobs that run less often.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final
from uuid import UUID

from ondot.model.execution import State
from ondot.model.ids import ExecutionId, JobId, TenantNo
from ondot.store.connection import Connection
from ondot.store.day_bounds import LAST_ID
from ondot.store.jobs import JobRow, job_row
from ondot.store.newest import read_kept
from ondot.store.queries import load_queries

WINDOWS: Final = 2

_SQL = load_queries("definitions")


@dataclass(frozen=True, slots=True)
class Run:
    """An execution that has started; `ended_at` None: it has not ended."""

    id: ExecutionId
    state: State
    fire_at: datetime
    started_at: datetime | None
    ended_at: datetime | None

    @property
    def took_s(self) -> float | None:
        return (self.ended_at - self.started_at).total_seconds() if self.ended_at and self.started_at else None


async def list_definitions(
    connection: Connection, tenant_no: TenantNo, *, before: UUID | None = None, limit: int, state: str | None = None
) -> list[JobRow]:
    """Newest first."""
    rows = await connection.fetch(_SQL["list_definitions"].text, tenant_no, before or LAST_ID, limit, state)
    return [job_row(row) for row in rows]


async def list_definitions_by_name(
    connection: Connection, tenant_no: TenantNo, *, after: tuple[str, UUID], limit: int, state: str | None = None
) -> list[JobRow]:
    """`after`: the name and the id of the last one of the page before."""
    rows = await connection.fetch(_SQL["list_definitions_by_name"].text, tenant_no, *after, state, limit)
    return [job_row(row) for row in rows]


async def find_latest_runs(
    connection: Connection, tenant_no: TenantNo, jobs: Sequence[JobRow], most: int
) -> dict[JobId, list[Run]]:
    """The latest runs of each job, latest first; a job without a run is left out."""
    found: dict[JobId, dict[ExecutionId, Run]] = {}
    kept = await read_kept(connection)
    wanted: Iterable[JobRow] = jobs
    for from_id, before_id in islice(kept.windows(), WINDOWS):
        ids = [job.id for job in wanted]
        if not ids:
            break
        rows = await connection.fetch(_SQL["latest_runs"].text, tenant_no, ids, from_id, before_id, most)
        for row in rows:
            run = Run(ExecutionId(row["id"]), State(row["state"]), *row[3:])
            found.setdefault(JobId(row["job_id"]), {}).setdefault(run.id, run)
        # A job that was created in this window has no earlier runs.
        wanted = [job for job in wanted if job.id < from_id and len(found.get(job.id, ())) < most]
    return {
        job_id: sorted(runs.values(), key=lambda run: (run.fire_at, run.id), reverse=True)[:most]
        for job_id, runs in found.items()
    }
