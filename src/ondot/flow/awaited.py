"""Programs that wait for jobs to end (D2): one survey in each API process looks for all of them.

While anything is awaited, one statement for up to JOBS_A_LOOK jobs asks which are over; without a waiter, no statement
runs, and ending a job costs nothing more in either case. A job is looked for again after LOOK_SHARE of the time that it
has been awaited, so that short jobs are noticed within FIRST_LOOK_S and long ones cost little. However many are
awaited, the survey rests nine times as long as its statements take.
"""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from ondot.model.errors import Unavailable
from ondot.model.ids import JobId, TenantNo
from ondot.store.awaited import find_jobs_over
from ondot.store.database import Database
from ondot.telemetry.log import get_logger

log = get_logger()

JOBS_A_LOOK: Final = 1_000
FIRST_LOOK_S: Final = 0.02
LONGEST_LOOK_S: Final = 0.25
LOOK_SHARE: Final = 0.02
REST: Final = 9

Awaited = tuple[TenantNo, JobId]


@dataclass(slots=True, eq=False)
class Waiter:
    """One request that waits. `over`: those of its jobs that were found to be over."""

    wake: asyncio.Event = field(default_factory=asyncio.Event)
    over: set[JobId] = field(default_factory=set)
    error: Unavailable | None = None


@dataclass(slots=True)
class Look:
    """A job that is awaited: since when, when to look for it next, and by which requests."""

    since_s: float
    next_s: float
    waiters: set[Waiter] = field(default_factory=set)


class AwaitedJobs:
    def __init__(self, database: Database, stopping: asyncio.Event) -> None:
        self._database = database
        self._stopping = stopping
        self._looks: dict[Awaited, Look] = {}
        self._wake = asyncio.Event()
        self._survey: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """How many jobs are awaited."""
        return len(self._looks)

    async def look(self, tenant_no: TenantNo, ids: Collection[JobId]) -> set[JobId]:
        """Those of these jobs that are over now."""
        async with self._database.connection() as connection:
            return set(await find_jobs_over(connection, [(tenant_no, id_) for id_ in ids]))

    @contextmanager
    def watch(self, tenant_no: TenantNo, ids: Collection[JobId]) -> Iterator[Waiter]:
        """In the block, the survey looks for these jobs, and wakes the waiter when some are over, when the database
        cannot be reached, and when the process stops."""
        waiter = Waiter()
        now_s = monotonic()
        for id_ in ids:
            look = self._looks.setdefault((tenant_no, id_), Look(now_s, now_s))
            look.next_s = now_s
            look.waiters.add(waiter)
        self._wake.set()
        if self._survey is None:
            # A task of its own: a caller that disconnects must not end the survey of others.
            self._survey = asyncio.create_task(self._run(), name="awaited jobs")
        try:
            yield waiter
        finally:
            for id_ in ids:
                look = self._looks[tenant_no, id_]
                look.waiters.discard(waiter)
                if not look.waiters:
                    del self._looks[tenant_no, id_]

    async def _run(self) -> None:
        try:
            while self._looks and not self._stopping.is_set():
                self._wake.clear()
                started_s = monotonic()
                await self.one_pass(started_s)
                took_s = monotonic() - started_s
                rest_s = max(FIRST_LOOK_S, REST * took_s)
                next_s = min((look.next_s for look in self._looks.values()), default=started_s)
                await asyncio.sleep(rest_s)
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(0, min(next_s - monotonic(), LONGEST_LOOK_S))):
                        await self._wake.wait()
        finally:
            self._survey = None
            # At the end of the process, or after a bug: no request may wait for a survey that does not run.
            for look in self._looks.values():
                for waiter in look.waiters:
                    waiter.wake.set()

    async def one_pass(self, now_s: float) -> int:
        """Look once for the jobs whose turn it is. Returns how many were over."""
        due = [awaited for awaited, look in self._looks.items() if look.next_s <= now_s]
        over = 0
        for start in range(0, len(due), JOBS_A_LOOK):
            batch = due[start : start + JOBS_A_LOOK]
            try:
                async with self._database.connection() as connection:
                    found = set(await find_jobs_over(connection, batch))
            except Unavailable as error:
                self._fail(batch, error)
                continue
            except Exception:  # the boundary of a pass: a bug must not leave requests without an answer
                log.exception("pass.failed", loop="awaited jobs")
                self._fail(batch, Unavailable("The jobs could not be looked for. Try again."))
                continue
            over += len(found)
            for awaited in batch:
                look = self._looks.get(awaited)
                if look is None:
                    continue
                waited_s = monotonic() - look.since_s
                look.next_s = monotonic() + min(max(FIRST_LOOK_S, LOOK_SHARE * waited_s), LONGEST_LOOK_S)
                if awaited[1] in found:
                    for waiter in look.waiters:
                        waiter.over.add(awaited[1])
                        waiter.wake.set()
        return over

    def _fail(self, batch: list[Awaited], error: Unavailable) -> None:
        for look in (self._looks[awaited] for awaited in batch if awaited in self._looks):
            for waiter in look.waiters:
                waiter.error = error
                waiter.wake.set()
