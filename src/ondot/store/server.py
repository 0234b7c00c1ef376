"""The PostgreSQL server itself, for `ondot doctor`."""

from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("server")


async def find_old_snapshots(connection: Connection, age_s: float) -> list[tuple[str, float]]:
    """Holders of a snapshot that is older than this, and how old it is."""
    rows = await connection.fetch(_SQL["find_old_snapshots"].text, age_s)
    return [(row["holder"], row["age_s"]) for row in rows]


async def count_sessions(connection: Connection) -> tuple[int, int]:
    """How many connections the server allows, and how many are open."""
    row = await connection.fetchrow(_SQL["count_sessions"].text)
    assert row is not None
    return row["room"], row["used"]
