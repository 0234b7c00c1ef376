"""Jobs that programs wait for (D2): which exist, which are over, and how they ended."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

import msgspec

from ondot.model.execution import State
from ondot.model.ids import ExecutionId, JobId, TenantNo, first_id_at, instant_of
from ondot.model.planning import first_execution_id
from ondot.store.connection import Connection, Record
from ondot.store.day_bounds import DAY_BITS, with_day_bounds
from ondot.store.newest import read_kept
from ondot.store.queries import load_queries

_SQL = load_queries("awaited")


@dataclass(frozen=True, slots=True)
class EndRow:
    """The latest execution of a job. `result`: JSON text; None with `is_long`: it is too long for this answer."""

    job_id: JobId
    id: ExecutionId
    state: State
    attempt_no: int
    ended_at: datetime | None
    reason: str | None
    error: dict[str, Any] | None
    result: str | None
    is_long: bool


async def find_awaited_jobs(connection: Connection, tenant_no: TenantNo, ids: Collection[JobId]) -> dict[JobId, str]:
    """The pools of those of these jobs that exist. A day at a time, as one-time jobs are kept by day."""
    found: dict[JobId, str] = {}
    for _, group in groupby(sorted(ids), key=lambda id_: id_.int // DAY_BITS):
        day = list(group)
        text = with_day_bounds(_SQL["find_awaited_jobs"], day, from_id="$3", before_id="$4")
        for row in await connection.fetch(text, tenant_no, day):
            found[JobId(row["id"])] = row["pool"]
    return found


async def find_jobs_over(connection: Connection, jobs: Sequence[tuple[TenantNo, JobId]]) -> list[JobId]:
    """Those of these jobs that have nothing left to do, or only a run that waits for a person."""
    rows = await connection.fetch(_SQL["find_jobs_over"].text, [no for no, _ in jobs], [id_ for _, id_ in jobs])
    return [JobId(row["job_id"]) for row in rows]


async def read_latest_ends(
    connection: Connection, tenant_no: TenantNo, ids: Collection[JobId], *, most_bytes: int
) -> dict[JobId, EndRow]:
    """The latest execution of each of these jobs that has one. Days are looked at newest first, some at a time."""
    found: dict[JobId, EndRow] = {}
    kept = await read_kept(connection)
    tomorrow = first_id_at(kept.now + timedelta(days=1))
    for from_id, to_id in kept.windows(down_to=first_execution_id(instant_of(min(ids)))):
        left = [id_ for id_ in ids if id_ not in found]
        text = with_day_bounds(_SQL["read_latest_ends"], [from_id, min(to_id, tomorrow)], from_id="$4", before_id="$5")
        rows = await connection.fetch(text, tenant_no, left, most_bytes)
        found |= {end.job_id: end for end in map(_end_row, rows)}
        if len(found) == len(ids):
            break
    return found


def _end_row(row: Record) -> EndRow:
    return EndRow(
        job_id=JobId(row["job_id"]),
        id=ExecutionId(row["id"]),
        state=State(row["state"]),
        attempt_no=row["attempt_no"],
        ended_at=row["ended_at"],
        reason=row["reason"],
        error=None if row["error"] is None else msgspec.json.decode(row["error"]),
        result=row["result"],
        is_long=row["is_long"],
    )
