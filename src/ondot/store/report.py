"""What a report of a night reads (O10): by indexes, up to limits, and what has none within a time.

Executions that did not succeed, letters, skipped fires and attempts have indexes. Successes have none but their ids:
they are summed in slices of ids, newest first, until a budget of time is used. So a report of any history takes about
as long as the budget; it states how far it looked.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from ondot.model.ids import JobId, TenantNo, first_id_at
from ondot.store.connection import Connection, Record
from ondot.store.queries import load_queries

_SQL = load_queries("report")

SUM_WITHIN_S: Final = 0.8
SLICE_S: Final = 0.1
"""A slice is made as long as can be read in this time."""
FIRST_SLICE: Final = timedelta(minutes=10)
LOOKED_AT: Final = 20_000
"""How many of the newest failures and of the newest attempts are grouped."""
WHILE_S: Final = 1.0
"""Runs that take this long are summed by job, to compare them with those before."""
NOTABLE: Final = 5_000
"""Of each slice: the newest that were late or took a while are summed by job."""
LATE_S: Final = 60.0
"""An execution that starts later than this is reported."""
STARTED_BEFORE: Final = timedelta(days=2)
"""Executions that were created this long before the window, and ended in it, still count as failures of the window."""
BEFORE: Final = timedelta(days=14)


@dataclass(slots=True)
class JobSum:
    """Ended executions of one job that were late or took a while; or of all jobs that run once."""

    succeeded: int = 0
    took_s: float = 0.0
    late: int = 0
    most_late_s: float = 0.0
    last_late_at: datetime | None = None


@dataclass(slots=True)
class Sums:
    """`from_at`: executions that were created before were not looked at; None: all of the window were."""

    by_state: dict[str, int] = field(default_factory=dict)
    jobs: dict[UUID | None, JobSum] = field(default_factory=dict)
    from_at: datetime | None = None
    is_sampled: bool = False
    """Not all that were late or took a while were summed."""

    def add_notable(self, rows: Sequence[Record]) -> None:
        self.is_sampled |= sum(row["count"] for row in rows) >= NOTABLE
        for row in rows:
            job = self.jobs.setdefault(row["job_id"], JobSum())
            job.succeeded += row["succeeded"]
            job.took_s += row["took_s"]
            job.late += row["late"]
            job.most_late_s = max(job.most_late_s, row["most_late_s"])
            job.last_late_at = max(filter(None, (job.last_late_at, row["last_late_at"])), default=None)


@dataclass(frozen=True, slots=True)
class NotSucceeded:
    """Executions with one cause. `job_id` None: of jobs that run once, of which `example_job_id` is one."""

    job_id: JobId | None
    state: str
    reason: str | None
    fingerprint: str | None
    count: int
    repaired: int
    open: int
    first_at: datetime
    last_at: datetime
    execution_id: UUID
    example_job_id: JobId
    message: str | None
    run_id: UUID | None
    jobs: int
    looked_at: int


@dataclass(frozen=True, slots=True)
class Attempts:
    """Failed attempts of one job; `is_lost`: those whose worker was lost, of one worker."""

    job_id: JobId | None
    worker_id: UUID | None
    is_lost: bool
    count: int
    executions: int
    succeeded: int
    first_at: datetime
    last_at: datetime
    execution_id: UUID
    example_job_id: JobId
    message: str | None
    looked_at: int


@dataclass(frozen=True, slots=True)
class LostWorker:
    id: UUID
    host: str
    pid: int
    lost_at: datetime


async def sum_ended(
    connection: Connection, tenant_no: TenantNo, since: datetime, until: datetime, *, within_s: float = SUM_WITHIN_S
) -> Sums:
    """Executions created in the window that had ended when it did, newest first, for as long as the budget lasts."""
    sums = Sums()
    started_s = time.monotonic()
    to_at, width = until, FIRST_SLICE
    while to_at > since:
        from_at = max(to_at - width, since)
        slice_s = time.monotonic()
        bounds = (first_id_at(from_at), first_id_at(to_at))
        for row in await connection.fetch(_SQL["count_ended"].text, tenant_no, *bounds, until):
            sums.by_state[row["state"]] = sums.by_state.get(row["state"], 0) + row["count"]
        limits = (LATE_S, WHILE_S, NOTABLE, until)
        sums.add_notable(await connection.fetch(_SQL["sum_notable"].text, tenant_no, *bounds, *limits))
        now_s = time.monotonic()
        to_at = from_at
        if to_at > since and now_s - started_s > within_s:
            sums.from_at = to_at
            break
        # Twice as long at most: the hour before may have been a herd's.
        width *= min(max(SLICE_S / max(now_s - slice_s, 0.001), 0.25), 2.0)
    return sums


async def group_not_succeeded(
    connection: Connection, tenant_no: TenantNo, since: datetime, until: datetime
) -> list[NotSucceeded]:
    ids = first_id_at(since - STARTED_BEFORE), first_id_at(until)
    rows = await connection.fetch(_SQL["group_not_succeeded"].text, tenant_no, *ids, since, until, LOOKED_AT)
    return [NotSucceeded(*row.values()) for row in rows]


async def group_attempts(
    connection: Connection, tenant_no: TenantNo, since: datetime, until: datetime
) -> list[Attempts]:
    ids = first_id_at(since - STARTED_BEFORE), first_id_at(until)
    rows = await connection.fetch(_SQL["group_attempts"].text, tenant_no, *ids, since, until, LOOKED_AT)
    return [Attempts(*row.values()) for row in rows]


async def list_lost_workers(connection: Connection, since: datetime, until: datetime) -> list[LostWorker]:
    """Of the installation."""
    rows = await connection.fetch(_SQL["list_lost_workers"].text, since, until)
    return [LostWorker(*row.values()) for row in rows]


async def measure_before(
    connection: Connection, tenant_no: TenantNo, job_ids: Sequence[UUID], since: datetime
) -> dict[UUID, tuple[int, float]]:
    """How many successes these jobs had in the two weeks before, 50 of each at most, and how long one took."""
    from_at = since - BEFORE
    bounds = (first_id_at(from_at - STARTED_BEFORE), first_id_at(since), from_at, since)
    rows = await connection.fetch(_SQL["measure_before"].text, tenant_no, job_ids, *bounds)
    return {row["job_id"]: (row["count"], row["took_s"]) for row in rows}
