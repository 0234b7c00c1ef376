"""Gates: what is forgotten of them, and mended (E13). Lines and slots are kept by triggers (migration 0003)."""

from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("gates")


async def forget_gates(connection: Connection, limit: int) -> int:
    """Drop gates that nobody stands before or is through, and whose buckets are full."""
    return len(await connection.fetch(_SQL["forget_gates"].text, limit))


async def mend_slots(connection: Connection) -> int:
    """Give back slots whose executions are gone, and call those who stand in line behind; gives how many."""
    count: int = await connection.fetchval(_SQL["mend_slots"].text)
    return count
