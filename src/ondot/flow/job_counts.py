"""Counts the live jobs of tenants that have a quota of them (T1), each second, for the API and for SQL.

A counter that every submission writes would be one row that all of them lock; so the jobs are counted instead, up to
the quota and one more. Counting takes at most a tenth of the time. Without such a quota nothing runs.
"""

import time
from typing import Final

from ondot.store.database import Database
from ondot.store.quotas import count_jobs

SHARE: Final = 10
"""After a count this many times its duration passes before the next."""


class JobCounts:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._again_s = 0.0

    async def one_pass(self) -> int:
        """Count, unless the last count took too long for that; returns 0, because the next waits for its tick."""
        started_s = time.monotonic()
        if started_s < self._again_s:
            return 0
        tenants = await self._database.tenants.snapshot()
        quotas = {
            no: tenant.quotas.jobs
            for no, tenant in tenants.items()
            if tenant.is_active and tenant.quotas.jobs is not None
        }
        if quotas:
            async with self._database.connection() as connection:
                await count_jobs(connection, quotas)
        ended_s = time.monotonic()
        self._again_s = ended_s + (ended_s - started_s) * SHARE
        return 0
