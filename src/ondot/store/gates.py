"""Gates: what is forgotten of them (E13). Lines and slots are kept by triggers (`functions/gated_changed.sql`)."""

from dataclasses import dataclass
from uuid import UUID

from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("gates")


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A step of a walk through all gates: its last one (None: at the end), how many it looked at and removed."""

    through: UUID | None
    looked_at: int
    removed: int


async def forget_gates(connection: Connection, after: UUID, limit: int) -> Forgotten:
    """Remove gates that nobody stands before or is through, and whose buckets are full, among some after this id."""
    row = await connection.fetchrow(_SQL["forget_gates"].text, after, limit)
    assert row is not None
    through, looked_at, removed = row.values()
    return Forgotten(through if looked_at == limit else None, looked_at, removed)


async def call_put_off(connection: Connection) -> None:
    """Have lines looked at that wait for a token since before the clock was set back."""
    await connection.execute(_SQL["call_put_off"].text)
