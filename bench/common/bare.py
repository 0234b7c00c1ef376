"""A life of a job as bare SQL: ondot's own hot statements, sent through asyncpg by as little Python as possible.

The statements for a thousand one-time jobs are recorded from the store's own functions, so that text and arguments are
the engine's: insert → lease → complete, each statement a separate commit, durable, history kept. The arguments are made
before the clock starts; Python only copies the ids of the lease into the completion. Each process keeps three
statements in flight, on as many connections. A life counts when its completion has returned within the measured time.

As a command it is one such process: it prints `ready`, starts when it reads a line, and prints its result as JSON.
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
from ondot.model.job import JobSpec, fill_in_schedule
from ondot.model.target import FunctionTarget
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
"""Prepared batches for each second: more than a process can send. If they run out, it makes more."""
POOL = "default"
RECENT = timedelta(seconds=1)
"""While leases are full, waiting rows are younger than this. After one that is not, the next looks at all rows."""
LEASE = LeaseId(UUID(int=1))
IDS = [ExecutionId(UUID(int=n)) for n in range(BATCH)]
"""Placeholders in recorded arguments; each batch has its own values."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A statement as the store sends it."""

    text: str
    arguments: tuple[Any, ...]

    def place_of(self, argument: object) -> int:
        """The position of an argument: only the store knows the order."""
        return next(n for n, each in enumerate(self.arguments) if each == argument)


class _Recorder:
    """Takes the place of a connection, and records the statements."""

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
    """Lives within the measured time; `all`: with those before and after. `cpu_us`: of the clients, per life."""

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
    """The three statements, for one worker of one database."""

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
        """First attempts without a result."""
        recorder = _Recorder()
        outcomes = [succeed(_FirstAttempt(ExecutionId(id_))) for id_ in ids]
        await succeed_executions(_as_connection(recorder), self.worker_id, outcomes, [LeaseId(lease_id)])
        return recorder.sent


async def statements_of(database: Database) -> Statements:
    """Register a worker, and record the statements for its pool."""
    await database.read_clock()
    worker_id = WorkerId(database.clock.new_id())
    async with database.connection() as connection:
        pool_no = (await database.pools.numbers(connection, DEFAULT_TENANT, [POOL]))[POOL]
        await register_worker(
            connection, worker_id, host="bench", pid=os.getpid(), release="bench", pool_nos=[pool_no], slots=BATCH
        )
    return Statements(database, worker_id, pool_no, database.clock.now())


class Strand:
    """One connection that runs lives, one statement after the other."""

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
        """One batch through its three statements (without `insert`: of waiting rows); return how many ended."""
        return await self.end(*await self.start(insert))

    async def start(self, insert: Sent | None) -> tuple[list[Record], UUID]:
        """The first two statements."""
        if insert is not None:
            await self._connection.execute(insert.text, *insert.arguments)
        lease_id = self._clock.new_id()
        arguments = list(self._lease.arguments)
        arguments[self._lease_at] = lease_id
        if self._is_full:
            # As a worker, which knows the head of its lane: it does not look at rows that were taken long ago.
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
            raise RuntimeError(f"only {len(counted)} of {len(rows)} leased executions could be completed")
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
    """Run this many processes at once, from the same instant on."""
    outputs = await crew_of(processes, sys.executable, str(Path(__file__).resolve()), url, str(seconds))
    results = [json.loads(out) for out in outputs]
    count, everything, cpu_us = (sum(each[name] for each in results) for name in ("count", "all", "cpu_us"))
    return Lives(count, everything, seconds, cpu_us / processes)


def _as_connection(recorder: _Recorder) -> Connection:
    return cast("Connection", recorder)


if __name__ == "__main__":
    uvloop.run(_one_process(sys.argv[1], float(sys.argv[2])))
