"""Arrivals: ends of executions that their run has not seen yet (W2).

The statement that ends an execution inserts one if a run, or a job that depends on it, waits for the end. It locks no
row of the run. The transaction that has the run locked takes them.
"""

from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

from ondot.model.workflow.progress import Arrival
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("arrivals")


async def take_arrivals(
    connection: Connection, run_ids: Sequence[UUID], limit: int
) -> tuple[dict[UUID, list[Arrival]], list[float]]:
    """The arrivals of each run, up to a limit, and how long each has waited, in seconds."""
    rows = await connection.fetch(_SQL["take_arrivals"].text, run_ids, limit)
    taken: dict[UUID, list[Arrival]] = defaultdict(list)
    for row in rows:
        taken[row["run_id"]].append(Arrival(*row[1:5]))
    return taken, [row["waited_s"] for row in rows]


async def count_arrivals(connection: Connection, ceiling: int) -> tuple[int, float]:
    """How many wait, counted up to a ceiling, and how long the oldest has, in seconds."""
    row = await connection.fetchrow(_SQL["count_arrivals"].text, ceiling)
    assert row is not None
    return row["count"], max(row["oldest_s"], 0.0)


async def find_with_arrivals(connection: Connection, run_ids: Sequence[UUID]) -> list[UUID]:
    """Those of these runs that have arrivals."""
    return [row["id"] for row in await connection.fetch(_SQL["find_with_arrivals"].text, run_ids)]


async def find_old_arrivals(connection: Connection, older_than_s: float, limit: int) -> Sequence[UUID]:
    """The runs (or jobs that others depend on) of arrivals that have waited this long."""
    return [row["run_id"] for row in await connection.fetch(_SQL["find_old_arrivals"].text, older_than_s, limit)]
