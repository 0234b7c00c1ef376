"""Names, labels and pools of the jobs that alerts meet, and why they failed last (O4): read once, kept for a moment.

A storm makes ten thousand jobs fail, and alerts look each second: only those that are new are read.
"""

import time
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Final

from ondot.model.ids import JobId
from ondot.store.alert_sources import KnownJob, LatestLetter, describe_jobs, latest_letters
from ondot.store.connection import Connection

KEPT_S: Final = 15.0
"""A changed label or name is seen after this."""
MOST: Final = 50_000


class KnownJobs:
    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._jobs: dict[JobId, KnownJob | None] = {}
        self._letters: dict[JobId, tuple[datetime, LatestLetter | None]] = {}
        self._since_s = monotonic()

    def forget(self) -> None:
        self._jobs.clear()
        self._letters.clear()
        self._since_s = self._monotonic()

    async def get(self, connection: Connection, job_ids: Collection[JobId]) -> dict[JobId, KnownJob]:
        """Those that exist and are not deleted."""
        if self._monotonic() - self._since_s > KEPT_S or len(self._jobs) > MOST:
            self.forget()
        if missing := [id_ for id_ in dict.fromkeys(job_ids) if id_ not in self._jobs]:
            found = await describe_jobs(connection, missing)
            self._jobs.update({id_: found.get(id_) for id_ in missing})
        return {id_: job for id_ in job_ids if (job := self._jobs[id_]) is not None}

    async def why(self, connection: Connection, failed: dict[JobId, datetime]) -> dict[JobId, LatestLetter]:
        """The last letter of each job; `failed`: when it failed last."""
        missing = [id_ for id_, at in failed.items() if id_ not in self._letters or self._letters[id_][0] != at]
        if missing:
            found = await latest_letters(connection, missing)
            self._letters.update({id_: (failed[id_], found.get(id_)) for id_ in missing})
        return {id_: letter for id_ in failed if (letter := self._letters[id_][1]) is not None}
