"""Indexes the names of one-time jobs of days that are closed (O1), so that a search by name need not read all history.

A million names take a second or two. Meanwhile nothing can be written to that day, and hardly anything is: a job is
stored in the day in which it is created. A try that does not get the lock at once gives up, and comes again.
"""

from ondot.flow.days import TRY_MS
from ondot.store.connection import LOCKED
from ondot.store.database import Database
from ondot.store.once_names import add_index, find_days_without
from ondot.telemetry.log import get_logger

log = get_logger()


class NameIndexes:
    def __init__(self, database: Database) -> None:
        self._database = database.patient

    async def one_pass(self) -> int:
        """Index one day; returns whether there may be more to do now."""
        async with self._database.connection() as connection:
            names = await find_days_without(connection)
        if not names:
            return 0
        try:
            async with self._database.transaction() as connection:
                await add_index(connection, names[0], wait_ms=TRY_MS)
        except LOCKED:
            log.info("names.put_off", table=names[0], because="the day is being written to")
            return 0
        return len(names) - 1
