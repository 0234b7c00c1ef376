"""Pages of tables that are kept by day, newest first, a few days at a time (O1).

A statement that might read every day locks and plans every day's partition, with rows or without: after a year about
1,500 locks and 20 ms for a page of today, and a few such pages at once fill PostgreSQL's lock table. So a page is read
from the last 8 days first and, while it is not full, from 64 more at a time.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from uuid import UUID

from ondot.model.ids import EPOCH, first_id_at, instant_of
from ondot.store.connection import Connection, Record
from ondot.store.day_bounds import LAST_ID
from ondot.store.queries import load_queries

_SQL = load_queries("days")

FIRST = timedelta(days=8)
FURTHER = timedelta(days=64)
NO_ID = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Kept:
    """The database's time, and the first day that has a table of its own."""

    now: datetime
    first_day: date

    def windows(self, *, before: UUID | None = None, down_to: UUID = NO_ID) -> Iterator[tuple[UUID, UUID]]:
        """Ranges of ids, newest first: the first id is included, the last is not."""
        first_at = datetime.combine(self.first_day, time(), UTC)
        to_id, width = before or LAST_ID, FIRST
        at = self.now if before is None else min(instant_of(before), self.now)
        while True:
            at = max(at - width, EPOCH)
            from_id = down_to if at <= first_at else max(first_id_at(at), down_to)
            yield from_id, to_id
            if from_id <= down_to:
                return
            to_id, width = from_id, FURTHER


async def read_kept(connection: Connection) -> Kept:
    row = await connection.fetchrow(_SQL["kept_days"].text)
    assert row is not None
    return Kept(*row.values())


async def newest_first(
    connection: Connection,
    read: Callable[[UUID, UUID, int], Awaitable[list[Record]]],
    *,
    limit: int,
    before: UUID | None = None,
    down_to: UUID = NO_ID,
) -> list[Record]:
    """At most `limit` rows; `read` returns those of a range of ids. `down_to`: no row has a smaller id."""
    kept = await read_kept(connection)
    rows: list[Record] = []
    for from_id, to_id in kept.windows(before=before, down_to=down_to):
        rows += await read(from_id, to_id, limit - len(rows))
        if len(rows) >= limit:
            break
    return rows
