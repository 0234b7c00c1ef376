"""Removal of gates that are no longer needed (E13). Triggers keep lines and slots (`functions/gated_changed.sql`)."""

from dataclasses import dataclass
from uuid import UUID

from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("gates")


@dataclass(frozen=True, slots=True)
class Forgotten:
    """One step of a walk through all gates: its last one (None: the walk is done), how many it saw and removed."""

    through: UUID | None
    looked_at: int
    removed: int


async def forget_gates(connection: Connection, after: UUID, limit: int) -> Forgotten:
    """Among the first `limit` gates after this id, remove those without executions and with a full bucket."""
    row = await connection.fetchrow(_SQL["forget_gates"].text, after, limit)
    assert row is not None
    through, looked_at, removed = row.values()
    return Forgotten(through if looked_at == limit else None, looked_at, removed)


async def call_delayed_lines(connection: Connection) -> None:
    """Have workers look at lines whose token is far ahead, because the clock was set back."""
    await connection.execute(_SQL["call_delayed_lines"].text)
