"""Day partitions of the tables that are dropped by day: made well ahead, so that no insert ever waits for one.

When fewer than 7 days ahead have a table, all up to 14 days ahead are made: the whole table has to be locked for that,
for some milliseconds, once a week. Whoever waits for such a lock makes everybody wait behind it, completions too; so
nothing is tried while another transaction holds the table (a dump may hold it for hours), and a try that does not get
the lock at once gives up. There is a week for it, and what has no day yet is kept in the catch-all.

A day that is far from the last known one is not believed before it was read for some minutes: a single wrong reading of
the database's clock (+100 days) made 606 tables. Days that a wrong clock made all the same are removed once they are
empty and more than 14 days ahead.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta

import asyncpg

from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.queries import load_queries
from ondot.telemetry.log import get_logger

_SQL = load_queries("days")

LEAST_AHEAD = timedelta(days=7)
MOST_AHEAD = timedelta(days=14)
URGENT = timedelta(days=1)
"""With no more days than this ahead nobody's lock is a reason not to try, and a try takes longer."""
TRY_MS = 50
URGENT_TRY_MS = 1_000
HOLDS_S = 0.2
"""A transaction that has the table locked for so long may have it for hours."""
BELIEVED_AFTER_S = 150.0
"""Three passes of the housekeeper, a minute apart."""
FEW_ROWS = 1_000

log = get_logger()


@dataclass(frozen=True, slots=True)
class DayTable:
    """Days from `first_day` up to `next_day`, which is not included, have a table of their own."""

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
        """Today is further from the days that are known than any pause of a week or two explains."""
        return self.has_too_many or self.next_day + MOST_AHEAD < self.today

    @property
    def is_urgent(self) -> bool:
        return self.next_day <= self.today + URGENT


async def read_day_tables(connection: Connection) -> list[DayTable]:
    return [DayTable(*row.values()) for row in await connection.fetch(_SQL["day_tables"].text)]


class Days:
    """Keeps the days ahead. What it remembers is since when the database says that it is a day far from those known."""

    def __init__(self, database: Database, monotonic: Callable[[], float] = time.monotonic) -> None:
        # A day is cut off the catch-all, which may hold much.
        self._database = database.patient
        self._monotonic = monotonic
        self._far: tuple[date, float] | None = None

    async def one_pass(self) -> int:
        """Make the days that are missing, at most two weeks of them, and remove those that are too many; returns how
        many tables were made."""
        async with self._database.connection() as connection:
            tables = await read_day_tables(connection)
        is_believed = self._is_believed(tables)
        made = 0
        for table in tables:
            if table.is_far and not is_believed:
                continue
            if table.has_too_many:
                await self._change(table, "remove_days", table.today + MOST_AHEAD, FEW_ROWS)
            elif table.lacks_days:
                through = min(table.today, table.next_day) + MOST_AHEAD
                made += await self._change(table, "add_days", through)
        return made

    def _is_believed(self, tables: list[DayTable]) -> bool:
        far = next((table for table in tables if table.is_far), None)
        if far is None:
            self._far = None
            return True
        now_s = self._monotonic()
        if self._far is None or abs(far.today - self._far[0]) > URGENT:
            self._far = far.today, now_s
            log.warning(
                "days.far",
                today=far.today.isoformat(),
                next_day=far.next_day.isoformat(),
                then="believed if the database says so for some minutes; until then the catch-all keeps what comes",
            )
        return now_s - self._far[1] >= BELIEVED_AFTER_S

    async def _change(self, table: DayTable, block: str, *arguments: object) -> int:
        if not table.is_urgent and await self._is_held(table.parent):
            return 0
        try:
            async with self._database.transaction() as connection:
                await connection.execute(_SQL["give_way"].text, URGENT_TRY_MS if table.is_urgent else TRY_MS)
                days = int(await connection.fetchval(_SQL[block].text, table.parent, *arguments))
        except asyncpg.LockNotAvailableError:
            log.info("days.put_off", table=table.parent, because="the table is in use")
            return 0
        log.info(f"days.{'made' if block == 'add_days' else 'removed'}", table=table.parent, days=days)
        return days

    async def _is_held(self, parent: str) -> bool:
        """Whether one transaction holds the table for longer than a moment: it is there at two looks."""
        async with self._database.connection() as connection:
            before = await self._holders(connection, parent)
        if not before:
            return False
        await asyncio.sleep(HOLDS_S)
        async with self._database.connection() as connection:
            still = before & await self._holders(connection, parent)
        if still:
            log.info("days.put_off", table=parent, because="a transaction holds the table", transactions=len(still))
        return bool(still)

    async def _holders(self, connection: Connection, parent: str) -> set[str]:
        return {row["holder"] for row in await connection.fetch(_SQL["holders"].text, parent)}


async def make_days(database: Database) -> int:
    """One pass by somebody who makes one only: a role that starts, a migration."""
    return await Days(database).one_pass()
