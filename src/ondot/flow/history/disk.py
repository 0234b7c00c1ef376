"""Is the disk nearly full? Then a condition says so, and retention goes to its minimum if the operator allowed it (O1).

How full: the share of `ONDOT_DISK_LIMIT` that the database has, if that is set; else, of an embedded PostgreSQL, the
share of its file system that is used. Of another server it is not known.
"""

import asyncio
import os
from typing import Final

from ondot.flow.alerts.conditions import clear_condition, report_condition
from ondot.settings import Settings
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.day_rewrite import read_data_directory, read_sizes
from ondot.telemetry.log import get_logger

KIND: Final = "disk"
FULL: Final = 0.90
FREE_AGAIN: Final = 0.85

log = get_logger()


class Disk:
    """Remembers whether it was nearly full: it is until clearly less is used."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._is_full = False
        self._is_known_free = False

    async def is_nearly_full(self) -> bool:
        """Look, and report the condition or clear it."""
        async with self._database.connection() as connection:
            used = await read_used(connection, self._database.settings)
            self._is_full = used is not None and used >= (FREE_AGAIN if self._is_full else FULL)
            if self._is_full and used is not None:
                await self._report(connection, used)
            elif not self._is_known_free:
                await clear_condition(connection, KIND)
            self._is_known_free = not self._is_full
        return self._is_full

    async def _report(self, connection: Connection, used: float) -> None:
        least = self._database.settings.retention_min_days
        then = (
            "Free space, or set ONDOT_RETENTION_MIN_DAYS to let history go sooner."
            if least is None
            else f"History is kept for {least} days until there is room."
        )
        message = f"The disk of the database is {used:.0%} full. {then}"
        log.warning("disk.nearly_full", used=round(used, 3), retention_min_days=least)
        await report_condition(connection, KIND, message=message, details={"used": round(used, 3)})


async def read_used(connection: Connection, settings: Settings) -> float | None:
    """From 0 to 1; None: not known."""
    if settings.disk_limit is not None:
        _, size, _ = await read_sizes(connection)
        return size / settings.disk_limit
    directory = await read_data_directory(connection)
    if directory is None:
        return None
    try:
        found = await asyncio.to_thread(os.statvfs, directory)
    except OSError:
        return None
    return 1 - found.f_bavail / found.f_blocks if found.f_blocks else None
