"""What leasing costs from a queue of many: databases with executions that wait, and a worker's Leaser in each.

Executions are loaded by SQL, as executions of 1,000 jobs with their places in the queue, vacuumed and analysed; caches
are as that leaves them. A turn is ten passes in a row, each a batch of 1,000: everything from free slots to assignments
that can be run, and what the ends of its attempts cost in this process (no outcome is written). Python collects
garbage as in a worker. Every pass must return its whole batch (or `least`), nothing twice, and leased executions must
be RUNNING, under one lease per pass.
"""

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import asyncpg
from client import Client, client
from fleet import Fleet
from question import say

from ondot.flow.in_flight import InFlight
from ondot.flow.lease import Leaser
from ondot.model.ids import PoolNo, WorkerId
from ondot.model.job import JobSpec
from ondot.model.schedule import Interval, Schedule
from ondot.model.target import FunctionTarget
from ondot.roles.process import collect_rarely
from ondot.store.workers import register_worker

BATCH = 1_000
IN_A_ROW = 10
JOBS = 1_000
A_STATEMENT = 250_000
POOL = PoolNo(1)
A_YEAR_S = 31_536_000.0

# One job's fires are a microsecond apart and in the past; ids and instants grow together, as in production.
LOAD = """
WITH new AS MATERIALIZED (
    SELECT (left(ondot.first_id_at(now() - interval '1 hour' + n * interval '100 us')::text, 14) || '7'
            || right(gen_random_uuid()::text, 21))::uuid AS id,
           jobs[n % cardinality(jobs) + 1] AS job_id,
           now() - interval '1 hour' + n * interval '100 us' AS at, (n % $4::bigint)::integer + $5::integer AS tenant_no
    FROM generate_series($1::bigint, $2::bigint) AS n, (SELECT $3::uuid[] AS jobs) j
), stored AS (
    INSERT INTO ondot.execution (id, job_id, fire_at, ready_at, tenant_no, job_version, pool_no, class, state, origin)
    SELECT id, job_id, at, at, tenant_no, 1, 1, 2, 'PENDING', 'fire' FROM new
)
INSERT INTO ondot.ready (pool_no, class, tenant_no, ready_at, execution_id) SELECT 1, 2, tenant_no, at, id FROM new
"""


async def load_waiting(
    connection: asyncpg.Connection,
    jobs: Sequence[UUID],
    first: int,
    count: int,
    *,
    tenants: int = 1,
    tenant_no: int = 1,
) -> None:
    """Executions `first` and following of these jobs, due and waiting, evenly for tenants from `tenant_no` on."""
    for start in range(first, first + count, A_STATEMENT):
        last = min(start + A_STATEMENT, first + count) - 1
        await connection.execute(LOAD, start, last, list(jobs), tenants, tenant_no)


@dataclass(slots=True)
class Case:
    """One database with its worker, and the cost of its passes."""

    name: str
    waiting: int
    tenants: int
    client: Client
    leaser: Leaser
    in_flight: InFlight
    connection: asyncpg.Connection
    jobs: list[UUID]
    loaded: int = 0
    seen: set[UUID] = field(default_factory=set)
    took_s: list[float] = field(default_factory=list)
    turns: list[tuple[float, float]] = field(default_factory=list)
    """For every turn: processor seconds of the server and of the client, for each leased execution."""
    least: int = BATCH
    """What a pass must lease: less than a batch if many tenants have few each."""

    @property
    def leased(self) -> int:
        return len(self.seen)

    async def load(self, count: int) -> None:
        await load_waiting(self.connection, self.jobs, self.loaded, count, tenants=self.tenants)
        self.loaded += count

    async def turn(self) -> None:
        before = self.leased
        spent = [await self._one_pass() for _ in range(IN_A_ROW)]
        server_s, client_s = (sum(side) for side in zip(*spent, strict=True))
        self.turns.append((server_s / (self.leased - before), client_s / (self.leased - before)))

    async def _one_pass(self) -> tuple[float, float]:
        if self.loaded - self.leased < BATCH:
            await self.load(BATCH)
        pids = await self._backends()
        server_before, client_before_s, began_s = _server_s(pids), time.thread_time(), time.perf_counter()
        batch = await self.leaser.one_pass(BATCH)
        took_s = time.perf_counter() - began_s
        for assignment in batch.assignments:
            self.in_flight.remove((assignment.leased.id, assignment.leased.attempt_no))
        client_s, server_s = time.thread_time() - client_before_s, _server_s(pids) - server_before
        self.leaser.acknowledge()
        ids = {assignment.leased.id for assignment in batch.assignments}
        if len(ids) < self.least or ids & self.seen:
            raise RuntimeError(
                f"{self.name}: a pass leased {len(ids):,} of {self.least:,}, {len(ids & self.seen):,} of them twice"
            )
        self.seen |= ids
        self.took_s.append(took_s)
        return server_s, client_s

    def forget(self) -> None:
        """Drop the passes so far: they were the warm-up."""
        self.took_s.clear()
        self.turns.clear()

    async def _backends(self) -> list[int]:
        rows = await self.connection.fetch(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"
        )
        return [row["pid"] for row in rows]

    def result(self) -> dict[str, float]:
        server_s, client_s = median(server for server, _ in self.turns), median(client for _, client in self.turns)
        all_s = median(map(sum, self.turns))
        spent = {"server": server_s, "client": client_s, "all": all_s}
        return {side: round(used_s * 1e6, 2) for side, used_s in spent.items()}

    async def check(self) -> None:
        row = await self.connection.fetchrow(
            "SELECT (SELECT count(*) FROM ondot.execution WHERE state = 'RUNNING') AS running,"
            " (SELECT sum(cardinality(execution_ids)) FROM ondot.lease) AS held"
        )
        if row is None or (row["running"], row["held"]) != (self.leased, self.leased):
            raise RuntimeError(f"{self.name}: {self.leased:,} were leased, but the database has {dict(row or {})}")


def _server_s(pids: list[int]) -> float:
    """Processor time of these processes, in the kernel's nanoseconds."""
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text("ascii").split()[0]) for pid in pids) / 1e9


def named(url: str, name: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"/{name}"))


async def make_databases(made: Fleet, names: list[str]) -> None:
    """Make copies of the migrated database, each with the name of a case."""
    original = urlsplit(made.url).path.lstrip("/")
    connection = await asyncpg.connect(named(made.url, "postgres"))
    try:
        for name in names:
            await connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{original}"')
    finally:
        await connection.close()


async def open_case(
    stack: AsyncExitStack, made: Fleet, name: str, waiting: int, tenants: int, least: int = BATCH
) -> Case:
    from_here = await stack.enter_async_context(client(named(made.url, name)))
    connection = await asyncpg.connect(named(made.url, name))
    stack.push_async_callback(connection.close)
    schedule = Schedule(when=Interval(every_s=A_YEAR_S, anchor_at=from_here.database.clock.now()))
    await from_here.submit(JobSpec(name="rest", target=FunctionTarget(name="nothing"), schedule=schedule), JOBS)
    await connection.execute("INSERT INTO ondot.tenant SELECT n, n FROM generate_series(2, $1::integer) AS n", tenants)
    jobs = [row["id"] for row in await connection.fetch("SELECT id FROM ondot.job")]
    worker_id = WorkerId(from_here.database.clock.new_id())
    async with from_here.database.connection() as own:
        await register_worker(own, worker_id, host="bench", pid=1, release="0", pool_nos=[POOL], slots=BATCH)
    in_flight = InFlight(on_free=lambda: None)
    leaser = Leaser(from_here.database, worker_id, [POOL], in_flight=in_flight)
    case = Case(name, waiting, tenants, from_here, leaser, in_flight, connection, jobs, least=least)
    collect_rarely()
    began_s = time.monotonic()
    await case.load(waiting)
    await connection.execute("VACUUM (ANALYZE) ondot.execution, ondot.ready")
    say(f"{name}: loaded in {time.monotonic() - began_s:.1f} s")
    return case
