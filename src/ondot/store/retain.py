"""Removes ended rows that are older than their retention, in small batches, each by an index on age."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from ondot.model.ids import EPOCH, ExecutionId, JobId
from ondot.store.connection import Connection
from ondot.store.newest import NO_ID
from ondot.store.queries import load_queries
from ondot.store.steps import find_ends_missed

_SQL = load_queries("retain")

Over = Literal["ended", "deleted"]
Aged = Literal["letters", "skipped", "backfills", "bulks", "runs"]


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a walk through jobs that are over: since when the last one is over, and its id."""

    at: datetime
    job_id: JobId


BEGIN = Place(EPOCH, JobId(NO_ID))


async def lock_over_jobs(
    connection: Connection, over: Over, days: int, after: Place, limit: int
) -> tuple[list[JobId], Place | None]:
    """Lock jobs that ended or were deleted `days` ago. Returns them, and where to continue (None: at the end)."""
    rows = await connection.fetch(_SQL[f"lock_{over}_jobs"].text, days, after.at, after.job_id, limit)
    locked = [JobId(row["job_id"]) for row in rows if row["is_locked"]]
    return locked, Place(rows[-1]["at"], JobId(rows[-1]["job_id"])) if len(rows) == limit else None


async def remove_jobs(connection: Connection, ids: list[JobId]) -> int:
    """Remove jobs that the caller has locked and that have nothing left to run; returns how many."""
    return int(await connection.fetchval(_SQL["remove_jobs"].text, ids))


async def forget_versions(connection: Connection, days: int, limit: int) -> int:
    """Remove one batch of versions that were superseded `days` ago; returns how many were looked at."""
    ids = [row["id"] for row in await connection.fetch(_SQL["lock_superseded"].text, days, limit)]
    return int(await connection.fetchval(_SQL["forget_versions"].text, days, limit, ids)) if ids else 0


async def forget(connection: Connection, aged: Aged, days: int, limit: int) -> int:
    """Remove one batch of rows that are older than `days`; returns how many."""
    return int(await connection.fetchval(_SQL[f"forget_{aged}"].text, days, limit))


async def forget_traces(connection: Connection, days: int, after: UUID, limit: int) -> UUID | None:
    """Remove the traces of executions whose history has gone, some at a time; returns where to continue (None: at the
    end). Few old ones stay: of runs that took weeks."""
    rows = await connection.fetch(_SQL["find_old_traces"].text, days, after, limit)
    ids = [ExecutionId(row["execution_id"]) for row in rows]
    kept = await find_ends_missed(connection, ids)
    await connection.execute(_SQL["remove_traces"].text, [id_ for id_ in ids if id_ not in kept])
    return ids[-1] if len(ids) == limit else None
