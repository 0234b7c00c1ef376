"""Arrivals: ends of executions that their run has not seen yet (W2).

The statement that ends an execution inserts one if a run, or a job that depends on it, waits for the end. It locks no
row of the run. The transaction that has the run locked takes them.
"""

from collections.abc import Sequence
from uuid import UUID

from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("arrivals")


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
