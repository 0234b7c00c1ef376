"""The PostgreSQL server itself, as `ondot doctor` looks at it."""

from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("server")


async def find_old_snapshots(connection: Connection, age_s: float) -> list[tuple[str, float]]:
    """Who holds a snapshot older than this, and for how long."""
    rows = await connection.fetch(_SQL["find_old_snapshots"].text, age_s)
    return [(row["holder"], row["age_s"]) for row in rows]


async def count_connections(connection: Connection) -> tuple[int, int]:
    """How many connections there may be, and how many there are."""
    row = await connection.fetchrow(_SQL["count_connections"].text)
    assert row is not None
    return row["room"], row["used"]
