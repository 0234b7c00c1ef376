"""Housekeeping of events (S11): what is kept for windows, cancel_on and waits ends with their executions and steps."""

from typing import Final

from ondot.store.database import Database
from ondot.store.event_waits import forget_event_waits
from ondot.store.event_windows import forget_windows

AT_ONCE: Final = 5_000


async def tidy_events_pass(database: Database) -> int:
    """One pass; returns how many rows went if there may be more."""
    async with database.connection() as connection:
        gone = await forget_windows(connection, AT_ONCE)
        gone += await forget_event_waits(connection, AT_ONCE)
    return gone if gone >= AT_ONCE else 0
