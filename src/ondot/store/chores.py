"""What housekeeping has to do now: one look a second, so that nothing to do costs one statement."""

from dataclasses import dataclass

from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("chores")


@dataclass(frozen=True, slots=True)
class Chores:
    """Whether there is: something past its start deadline, a job that failed too often, a bulk whose turn it is."""

    expire: bool
    failing: bool
    bulk: bool


async def find_chores(connection: Connection) -> Chores:
    row = await connection.fetchrow(_SQL["find_chores"].text)
    assert row is not None
    return Chores(*row.values())
