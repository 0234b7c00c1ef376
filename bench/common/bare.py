"""A life of a job as bare SQL: ondot's own hot statements, sent through asyncpg by as little Python as can be.

What the store would send for a thousand one-time jobs is recorded from the store's own functions, so that text and
arguments are the engine's: insert → lease → complete, each statement a commit of its own, durable, history kept. The
arguments are made before the clock starts; what is left to Python is to name in the completion what the lease gave.
Each process keeps three statements in flight, on as many connections. A life counts when its completion has come back
within the measured time.

As a command it is one such process: it says `ready`, begins when it reads a line, and prints what it did as JSON.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, cast
from uuid import UUID

import uvloop
from crew import crew_of

from ondot.model.completion import succeed
from ondot.model.execution import PriorityClass
from ondot.model.fairness import Lane, Take
from ondot.model.ids import DEFAULT_TENANT, EPOCH, ExecutionId, JobId, LeaseId, PoolNo, WorkerId
from ondot.model.job import FunctionTarget, JobSpec, fill_in_schedule
from ondot.settings import load_settings
from ondot.store.connection import Connection, OwnConnection, Record
from ondot.store.database import Database, connect, open_database
from ondot.store.jobs import NewOnceJob, insert_once_jobs
from ondot.store.outcomes import succeed_executions
from ondot.store.queue import lease_executions
from ondot.store.workers import register_worker

BATCH = 1_000
STRANDS = 3
MADE_AHEAD_PER_S = 40
"""Batches a process has ready for each second: more than it can send. If it can, it makes more as it goes."""
POOL = "default"
RECENT = timedelta(seconds=1)
"""What waits is younger than that while leases come back full; when one does not, the next looks at all there is."""
LEASE = LeaseId(UUID(int=1))
IDS = [ExecutionId(UUID(int=n)) for n in range(BATCH)]
"""Stand in recorded arguments where each batch has its own."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A statement as the store sends it."""

    text: str
    arguments: tuple[Any, ...]

    def place_of(self, argument: object) -> int:
        """Where an argument stands: the store alone knows the order."""
        return next(n for n, each in enumerate(self.arguments) if each == argument)


class _Recorder:
    """Stands where a connection would, and keeps what would have been sent."""

    def __init__(self) -> None:
        self.sent = Sent("", ())

    async def execute(self, text: str, *arguments: Any) -> None:
        self.sent = Sent(text, arguments)

    async def fetch(self, text: str, *arguments: Any) -> list[Any]:
        self.sent = Sent(text, arguments)
        return []

    async def fetchval(self, text: str, *arguments: Any) -> None:
        self.sent = Sent(text, arguments)


@dataclass(frozen=True, slots=True)
class Lives:
    """What was done within the measured time; `all`: with those before and after. `cpu_us`: the clients', of a life."""

    count: int
    all: int
    took_s: float
    cpu_us: float = 0.0

    @property
    def per_s(self) -> float:
        return self.count / self.took_s


class _FirstAttempt(NamedTuple):
    id: ExecutionId
    attempt_no: int = 1


@dataclass(slots=True)
class Statements:
    """The three, for one worker of one database."""

    database: Database
    worker_id: WorkerId
    pool_no: PoolNo
    now: datetime

    async def insert(self, count: int = BATCH) -> Sent:
        """New one-time jobs that are due now."""
        jobs = []
        new_ids = self.database.clock.new_ids
        spec = fill_in_schedule(
            JobSpec(name="bare", target=FunctionTarget(name="nothing")), JobId(self.worker_id), self.now
        )
        for job_id, execution_id in zip(new_ids(count), new_ids(count), strict=True):
            jobs.append(NewOnceJob(JobId(job_id), spec, self.pool_no, self.now, self.now, execution_id))
        recorder = _Recorder()
        await insert_once_jobs(_as_connection(recorder), DEFAULT_TENANT, jobs)
        return recorder.sent

    async def lease(self, lease_id: UUID) -> Sent:
        recorder = _Recorder()
        await lease_executions(
            _as_connection(recorder),
            LeaseId(lease_id),
            self.worker_id,
            limit=BATCH,
            takes=[Take(Lane(self.pool_no, PriorityClass.NORMAL, DEFAULT_TENANT), BATCH)],
            from_ats=[EPOCH],
        )
        return recorder.sent

    async def complete(self, ids: Sequence[UUID], lease_id: UUID) -> Sent:
        """First attempts that gave back nothing."""
        recorder = _Recorder()
        outcomes = [succeed(_FirstAttempt(ExecutionId(id_))) for id_ in ids]
        await succeed_executions(_as_connection(recorder), self.worker_id, outcomes, [LeaseId(lease_id)])
        return recorder.sent


async def statements_of(database: Database) -> Statements:
    """Register a worker and learn what it takes from."""
    await database.read_clock()
    worker_id = WorkerId(database.clock.new_id())
    async with database.connection() as connection:
        pool_no = (await database.pools.numbers(connection, DEFAULT_TENANT, [POOL]))[POOL]
        await register_worker(
            connection, worker_id, host="bench", pid=os.getpid(), release="bench", pool_nos=[pool_no], slots=BATCH
        )
    return Statements(database, worker_id, pool_no, database.clock.now())


class Strand:
    """One connection that goes through lives, one statement after the other."""

    @classmethod
    async def of(cls, connection: OwnConnection, statements: Statements) -> "Strand":
        return cls(connection, statements, await statements.lease(LEASE), await statements.complete(IDS, LEASE))

    def __init__(self, connection: OwnConnection, statements: Statements, lease: Sent, complete: Sent) -> None:
        self._connection = connection
        self._clock = statements.database.clock
        self._lease, self._complete = lease, complete
        self._lease_at = lease.place_of(LEASE)
        self._from_at = lease.place_of([EPOCH])
        self._is_full = False
        self._ids_at = complete.place_of(IDS)
        self._last_of_at = complete.place_of([LEASE])

    async def live(self, insert: Sent | None) -> int:
        """One batch through its three statements (without `insert`: of what there is); gives how many ended."""
        return await self.end(*await self.start(insert))

    async def start(self, insert: Sent | None) -> tuple[list[Record], UUID]:
        """The first two."""
        if insert is not None:
            await self._connection.execute(insert.text, *insert.arguments)
        lease_id = self._clock.new_id()
        arguments = list(self._lease.arguments)
        arguments[self._lease_at] = lease_id
        if self._is_full:
            # As a worker does, which knows the head of its lane: rows that were taken long ago are not looked at.
            arguments[self._from_at] = [self._clock.now() - RECENT]
        rows = await self._connection.fetch(self._lease.text, *arguments)
        self._is_full = len(rows) == BATCH
        return rows, lease_id

    async def end(self, rows: list[Record], lease_id: UUID) -> int:
        if not rows:
            return 0
        arguments = list(self._complete.arguments)
        if len(rows) < BATCH:
            arguments = [each[: len(rows)] if isinstance(each, list) else each for each in arguments]
        arguments[self._ids_at] = sorted([row["id"] for row in rows])
        arguments[self._last_of_at] = [lease_id]
        counted = await self._connection.fetchval(self._complete.text, *arguments)
        if counted is not None:
            raise RuntimeError(f"{len(counted)} of {len(rows)} leased executions could be completed")
        return len(rows)


async def _one_process(url: str, seconds: float) -> None:
    settings = load_settings(database_url=url)
    database = await open_database(settings)
    connections = [await connect(settings, by_key=True) for _ in range(STRANDS)]
    try:
        statements = await statements_of(database)
        strands = [await Strand.of(connection, statements) for connection in connections]
        before = sum([await strand.live(await statements.insert()) for strand in strands])
        made = iter([await statements.insert() for _ in range(int(seconds * MADE_AHEAD_PER_S) + STRANDS)])
        print("ready", flush=True)
        sys.stdin.readline()
        cpu_s, began_s = time.process_time(), time.perf_counter()

        async def go(strand: Strand) -> tuple[int, int]:
            count = 0
            while True:
                ended = await strand.live(next(made, None) or await statements.insert())
                if time.perf_counter() - began_s > seconds:
                    return count, count + ended
                count += ended

        counts = await asyncio.gather(*(go(strand) for strand in strands))
        count, everything = (sum(each) for each in zip(*counts, strict=True))
        cpu_us = 1e6 * (time.process_time() - cpu_s) / everything
        after = 0
        while more := await strands[0].live(None):
            after += more
        print(json.dumps({"count": count, "all": before + everything + after, "cpu_us": cpu_us}), flush=True)
    finally:
        for connection in connections:
            await connection.close()
        await database.close()


async def bare_lives(url: str, seconds: float, processes: int) -> Lives:
    """So many processes at once, from the same instant on."""
    told = await crew_of(processes, sys.executable, str(Path(__file__).resolve()), url, str(seconds))
    results = [json.loads(out) for out in told]
    count, everything, cpu_us = (sum(each[name] for each in results) for name in ("count", "all", "cpu_us"))
    return Lives(count, everything, seconds, cpu_us / processes)


def _as_connection(recorder: _Recorder) -> Connection:
    return cast("Connection", recorder)


if __name__ == "__main__":
    uvloop.run(_one_process(sys.argv[1], float(sys.argv[2])))
