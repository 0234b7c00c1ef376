"""Which jobs have series of their own in the metrics (O2)."""

from ondot.model.ids import JobId
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("job_series")


async def find_jobs_with_series(connection: Connection, limit: int) -> frozenset[JobId]:
    """The oldest of those that ask for it."""
    rows = await connection.fetch(_SQL["jobs_with_series"].text, limit)
    return frozenset(JobId(row["job_id"]) for row in rows)
