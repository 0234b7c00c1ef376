"""Keeps day partitions ready ahead of time, so that no insert ever waits for one (O1).

When fewer than 7 days ahead have a partition, all up to 14 days ahead are made: this locks the whole table for some
milliseconds, once a week. A statement that waits for such a lock makes all others wait behind it, completions too. So
nothing is tried while another transaction holds the table (a dump may hold it for hours), and a try that does not get
the lock at once gives up. There is a week for it, and rows without a day are kept in the catch-all.

A day that is far from the last known one is not believed until it was read for some minutes: a single wrong reading of
the database's clock (+100 days) made 606 tables. Days that a wrong clock made all the same are removed once they are
empty and more than 14 days ahead.
"""

import asyncio
import time
from collections.abc import Callable

from ondot.store.connection import LOCKED
from ondot.store.database import Database
from ondot.store.days import MOST_AHEAD, URGENT, DayTable, add_days, find_holders, read_day_tables, remove_days
from ondot.telemetry.log import get_logger

TRY_MS = 50
URGENT_TRY_MS = 1_000
HOLDS_S = 0.2
"""A transaction that holds the table for this long may hold it for hours."""
BELIEVED_AFTER_S = 150.0
"""Three passes of the housekeeper, a minute apart."""
FEW_ROWS = 1_000

log = get_logger()


class Days:
    """Remembers since when the database reports a day that is far from the known ones."""

    def __init__(self, database: Database, monotonic: Callable[[], float] = time.monotonic) -> None:
        # A day is cut from the catch-all, which may hold much.
        self._database = database.patient
        self._monotonic = monotonic
        self._far: tuple[DayTable, float] | None = None

    async def one_pass(self) -> int:
        """Make the days that are missing, at most two weeks of them, and remove those that are too many.

        Returns how many partitions were made.
        """
        async with self._database.connection() as connection:
            tables = await read_day_tables(connection)
        is_believed = self._is_believed(tables)
        made = 0
        for table in tables:
            if table.is_far and not is_believed:
                continue
            if table.has_too_many or table.lacks_days:
                made += await self._change(table)
        return made

    def _is_believed(self, tables: list[DayTable]) -> bool:
        far = next((table for table in tables if table.is_far), None)
        if far is None:
            self._far = None
            return True
        now_s = self._monotonic()
        if self._far is None or abs(far.today - self._far[0].today) > URGENT:
            self._far = far, now_s
            log.warning(
                "days.far",
                today=far.today.isoformat(),
                next_day=far.next_day.isoformat(),
                then="believed if the database reports it for some minutes; until then the catch-all keeps new rows",
            )
        return now_s - self._far[1] >= BELIEVED_AFTER_S

    async def _change(self, table: DayTable) -> int:
        """Remove days of a table that has too many, otherwise add some; returns how many were added."""
        if not table.is_urgent and await is_held(self._database, table.parent):
            return 0
        parent, wait_ms = table.parent, URGENT_TRY_MS if table.is_urgent else TRY_MS
        try:
            async with self._database.transaction() as connection:
                if table.has_too_many:
                    removed = await remove_days(connection, parent, table.today + MOST_AHEAD, FEW_ROWS, wait_ms=wait_ms)
                else:
                    through = min(table.today, table.next_day) + MOST_AHEAD
                    made = await add_days(connection, parent, through, wait_ms=wait_ms)
        except LOCKED:
            log.info("days.put_off", table=parent, because="the table is in use")
            return 0
        if table.has_too_many:
            log.info("days.removed", table=parent, days=removed)
            return 0
        log.info("days.made", table=parent, days=made)
        return made


async def is_held(database: Database, parent: str) -> bool:
    """Whether one transaction holds a table for longer than a moment: two looks find it."""
    async with database.connection() as connection:
        before = await find_holders(connection, parent)
    if not before:
        return False
    await asyncio.sleep(HOLDS_S)
    async with database.connection() as connection:
        still = before & await find_holders(connection, parent)
    if still:
        log.info("days.put_off", table=parent, because="a transaction holds the table", transactions=len(still))
    return bool(still)


async def make_days(database: Database) -> int:
    """One pass for a caller that makes only one: a role that starts, a migration."""
    return await Days(database).one_pass()
