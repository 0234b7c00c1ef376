"""Tables that are dropped by day, and the days that have a partition of their own. `flow.days` keeps them."""

from dataclasses import dataclass
from datetime import date, timedelta

from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("days")

LEAST_AHEAD = timedelta(days=7)
MOST_AHEAD = timedelta(days=14)
URGENT = timedelta(days=1)
"""With no more days ahead than this, no lock is a reason not to try, and a try takes longer."""


@dataclass(frozen=True, slots=True)
class DayTable:
    """Days from `first_day` up to `next_day`, which is not included, have a partition of their own."""

    parent: str
    first_day: date
    next_day: date
    today: date

    @property
    def lacks_days(self) -> bool:
        return self.next_day <= self.today + LEAST_AHEAD

    @property
    def has_too_many(self) -> bool:
        return self.next_day > self.today + MOST_AHEAD + timedelta(days=1)

    @property
    def is_far(self) -> bool:
        """Today is further from the known days than any pause of a week or two explains."""
        return self.has_too_many or self.next_day + MOST_AHEAD < self.today

    @property
    def is_urgent(self) -> bool:
        return self.next_day <= self.today + URGENT


async def read_day_tables(connection: Connection) -> list[DayTable]:
    return [DayTable(*row.values()) for row in await connection.fetch(_SQL["day_tables"].text)]


async def find_holders(connection: Connection, parent: str) -> set[str]:
    """Transactions that have a table locked now, in any mode."""
    return {row["holder"] for row in await connection.fetch(_SQL["holders"].text, parent)}


async def add_days(connection: Connection, parent: str, through: date, *, wait_ms: int) -> int:
    """Give every day up to `through` a partition; returns how many. Raises LOCKED if the table is in use for longer."""
    await connection.execute(_SQL["give_way"].text, wait_ms)
    return int(await connection.fetchval(_SQL["add_days"].text, parent, through))


async def remove_days(connection: Connection, parent: str, after: date, few: int, *, wait_ms: int) -> int:
    """Remove the last days after `after` while they hold at most `few` rows; returns how many. As `add_days`."""
    await connection.execute(_SQL["give_way"].text, wait_ms)
    return int(await connection.fetchval(_SQL["remove_days"].text, parent, after, few))
