"""Gates: what is forgotten of them (E13). Lines and slots are kept by triggers (migration 0003)."""

from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("gates")


async def forget_gates(connection: Connection, limit: int) -> int:
    """Drop gates that nobody stands before or is through, and whose buckets are full."""
    return len(await connection.fetch(_SQL["forget_gates"].text, limit))


async def call_put_off(connection: Connection) -> None:
    """Have lines looked at that wait for a token since before the clock was set back."""
    await connection.execute(_SQL["call_put_off"].text)
