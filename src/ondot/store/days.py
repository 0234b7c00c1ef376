"""Day partitions of the tables that are dropped by day: made ahead, so that no insert ever waits for one.

Each day is made in a short transaction of its own with a lock timeout: the catch-all ahead is detached, the day cut off
it, and the catch-all attached again. Whoever cannot get the lock in a second tries again later; the catch-all holds
what comes meanwhile.
"""

from dataclasses import dataclass
from datetime import date, timedelta

import asyncpg

from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.queries import load_queries

_SQL = load_queries("days")

AHEAD = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class DayTable:
    parent: str
    first_day: date
    next_day: date
    today: date

    @property
    def lacks_days(self) -> bool:
        return self.next_day <= self.today + AHEAD


async def read_day_tables(connection: Connection) -> list[DayTable]:
    return [DayTable(*row.values()) for row in await connection.fetch(_SQL["day_tables"].text)]


async def make_days(database: Database) -> int:
    """One pass: make the days that are missing up to a week ahead; gives how many were made."""
    # A day is cut off the catch-all, which may hold much.
    database = database.patient
    async with database.connection() as connection:
        lacking = [table for table in await read_day_tables(connection) if table.lacks_days]
    made = 0
    for table in lacking:
        next_day = table.next_day
        while next_day <= table.today + AHEAD:
            try:
                async with database.transaction() as connection:
                    await connection.execute("SET LOCAL lock_timeout = '1s'")
                    next_day = await connection.fetchval(_SQL["add_day"].text, table.parent) + timedelta(days=1)
            except asyncpg.LockNotAvailableError:
                break
            made += 1
    return made
