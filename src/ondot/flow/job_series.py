"""Series of single jobs (O2), for recurring jobs that ask for them (`"metrics": true`).

Their number is bounded for the whole installation, because each worker has all of them: the JOBS_SHOWN oldest jobs that
ask have series of their own, and the others share one. A worker reads which these are when it leases a job that asks
and that it does not know. All other jobs cost nothing but the question whether they ask.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ondot.model.errors import Unavailable
from ondot.store.connection import DATABASE_ERROR
from ondot.store.database import Database
from ondot.store.job_series import find_jobs_with_series
from ondot.telemetry.metrics import JOB_ATTEMPTS, JOB_DURATION, JOB_LATENESS, OTHER_POOLS

if TYPE_CHECKING:
    from ondot.flow.lease import Assignment
    from ondot.model.completion import Completion
    from ondot.model.ids import JobId

JOBS_SHOWN: Final = 200
READ_AGAIN_S: Final = 60.0
READ_WHILE_ROOM_S: Final = 1.0
"""While fewer jobs ask, a new one has its series at once."""
OTHERS: Final = (OTHER_POOLS, OTHER_POOLS)

Labels = tuple[str, str]


class JobSeries:
    """The jobs that have series of their own, as this process knows them."""

    def __init__(self) -> None:
        self._shown: frozenset[JobId] = frozenset()
        self._labels: dict[JobId, Labels] = {}
        self._used: set[Labels] = set()
        self._read_s = -READ_AGAIN_S

    async def learn(self, database: Database, asking: Sequence["Assignment"]) -> None:
        """Before jobs that ask are measured. If the database is away, they are counted among the others."""
        unknown = [one for one in asking if one.leased.job_id not in self._labels]
        every_s = READ_WHILE_ROOM_S if len(self._shown) < JOBS_SHOWN else READ_AGAIN_S
        if not unknown:
            return
        with suppress(Unavailable, DATABASE_ERROR):
            if time.monotonic() - self._read_s >= every_s:
                self._read_s = time.monotonic()
                async with database.connection() as connection:
                    self._shown = await find_jobs_with_series(connection, JOBS_SHOWN)
                self._labels = {id_: labels for id_, labels in self._labels.items() if id_ in self._shown}
            for assignment in unknown:
                await self._name(database, assignment)

    async def _name(self, database: Database, assignment: "Assignment") -> None:
        leased, spec = assignment.leased, assignment.spec
        tenant = await database.tenants.get(leased.tenant_no)
        if leased.job_id not in self._shown or tenant is None or spec is None:
            return
        labels = (tenant.name, spec.name)
        # Jobs that ask may come and go, and a series stays as long as the process.
        if len(self._used | {labels}) <= JOBS_SHOWN:
            self._used.add(labels)
            self._labels[leased.job_id] = labels

    def measure_leased(self, assignment: "Assignment", late_s: float) -> None:
        series = JOB_LATENESS.labels(*self._labels.get(assignment.leased.job_id, OTHERS))
        series.observe(late_s)
        series.show(late_s, assignment.leased.id)

    def measure_ended(self, job_id: "JobId", completion: "Completion", took_s: float) -> None:
        labels = self._labels.get(job_id, OTHERS)
        series = JOB_DURATION.labels(*labels)
        series.observe(took_s)
        series.show(took_s, completion.execution_id)
        JOB_ATTEMPTS.labels(*labels, completion.outcome.value).inc()


JOB_SERIES: Final = JobSeries()
