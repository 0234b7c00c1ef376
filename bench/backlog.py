"""What a lease costs with much waiting, and with many tenants waiting.

One database for each case, all on one PostgreSQL (fsync and synchronous_commit on): 1,000, 100,000 and 10 million
executions due and waiting for one tenant; 100,000 waiting for 10 and for 1,000 tenants, evenly (--quick: 1,000 and
50,000). They are loaded by SQL, as executions of 1,000 jobs with their places in the queue, vacuumed and analysed;
caches are as that leaves them. There is no checkpoint during the run: rows that have waited for long would pay for the
image of each page that is first touched after it, and new rows would not. A worker's Leaser then leases batches of
1,000, ten passes in a row in each database by turns, so that other load of the machine affects all of them. The case of
1,000 is filled up again before each pass, outside the measurement.

A pass is everything from free slots to assignments that can be run: survey, lease, definitions of the jobs.
*cost_us* of each case, for each leased execution, the median of its turns: processor time of the server's backend (by
the kernel's count) and of the client; *pass_ms*: the median duration of a pass. *ratio*: cost with the most waiting ÷
with 1,000; *tenants_ratio*: cost with 1,000 tenants ÷ with one, both with the same number waiting. *server_ratio* and
*tenants_server_ratio*: the same of the server alone.

Every pass must return its whole batch, nothing twice, and leased executions must be RUNNING, under one lease per pass.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import asyncpg
from client import Client, client
from fleet import Fleet, fleet
from question import Result, ask, say

from ondot.flow.lease import Leaser
from ondot.model.ids import PoolNo, WorkerId
from ondot.model.job import FunctionTarget, JobSpec
from ondot.model.schedule import Interval, Schedule
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
           now() - interval '1 hour' + n * interval '100 us' AS at, (n % $4::bigint)::integer + 1 AS tenant_no
    FROM generate_series($1::bigint, $2::bigint) AS n, (SELECT $3::uuid[] AS jobs) j
), stored AS (
    INSERT INTO ondot.execution (id, job_id, fire_at, ready_at, tenant_no, job_version, pool_no, class, state, origin)
    SELECT id, job_id, at, at, tenant_no, 1, 1, 2, 'PENDING', 'fire' FROM new
)
INSERT INTO ondot.ready (pool_no, class, tenant_no, ready_at, execution_id) SELECT 1, 2, tenant_no, at, id FROM new
"""


@dataclass(slots=True)
class Case:
    """One database with its worker, and the cost of its passes."""

    name: str
    waiting: int
    tenants: int
    client: Client
    leaser: Leaser
    connection: asyncpg.Connection
    jobs: list[UUID]
    loaded: int = 0
    seen: set[UUID] = field(default_factory=set)
    took_s: list[float] = field(default_factory=list)
    turns: list[tuple[float, float]] = field(default_factory=list)
    """For every turn: processor seconds of the server, and of the client."""

    @property
    def leased(self) -> int:
        return len(self.seen)

    async def load(self, count: int) -> None:
        while count > 0:
            batch = min(count, A_STATEMENT)
            await self.connection.execute(LOAD, self.loaded, self.loaded + batch - 1, self.jobs, self.tenants)
            self.loaded += batch
            count -= batch

    async def turn(self) -> None:
        spent = [await self._one_pass() for _ in range(IN_A_ROW)]
        self.turns.append((sum(server_s for server_s, _ in spent), sum(client_s for _, client_s in spent)))

    async def _one_pass(self) -> tuple[float, float]:
        if self.loaded - self.leased < BATCH:
            await self.load(BATCH)
        pids = await self._backends()
        server_before, client_before_s, began_s = _server_s(pids), time.thread_time(), time.perf_counter()
        batch = await self.leaser.one_pass(BATCH)
        took_s = time.perf_counter() - began_s
        client_s, server_s = time.thread_time() - client_before_s, _server_s(pids) - server_before
        self.leaser.acknowledge()
        ids = {assignment.leased.id for assignment in batch.assignments}
        if len(ids) != BATCH or ids & self.seen:
            raise RuntimeError(
                f"{self.name}: a pass leased {len(ids):,} of {BATCH:,}, {len(ids & self.seen):,} of them twice"
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
        return {side: round(used_s / (IN_A_ROW * BATCH) * 1e6, 2) for side, used_s in spent.items()}

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


async def open_case(stack: AsyncExitStack, made: Fleet, name: str, waiting: int, tenants: int) -> Case:
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
    case = Case(name, waiting, tenants, from_here, Leaser(from_here.database, worker_id, [POOL]), connection, jobs)
    began_s = time.monotonic()
    await case.load(waiting)
    await connection.execute("VACUUM (ANALYZE) ondot.execution, ondot.ready")
    say(f"{name}: loaded in {time.monotonic() - began_s:.1f} s")
    return case


async def measure(made: Fleet, depths: list[int], tenants: list[int], with_tenants: int, rounds: int) -> Result:
    wanted = {f"waiting_{depth}": (depth, 1) for depth in depths}
    wanted |= {f"tenants_{count}": (with_tenants, count) for count in tenants if count > 1}
    await make_databases(made, list(wanted))
    async with AsyncExitStack() as stack:
        cases = [await open_case(stack, made, name, *numbers) for name, numbers in wanted.items()]
        for n in range(rounds + 1):
            for case in cases:
                await case.turn()
                if n == 0:
                    case.forget()
        for case in cases:
            await case.check()
    found = {case.name: case.result() for case in cases}
    alone, many = f"waiting_{with_tenants}", f"tenants_{tenants[-1]}"
    least, most = f"waiting_{depths[0]}", f"waiting_{depths[-1]}"
    figures: dict[str, Any] = {
        "question": "backlog",
        "ratio": ratio(found[most]["all"], found[least]["all"]),
        "tenants_ratio": ratio(found[many]["all"], found[alone]["all"]),
        "server_ratio": ratio(found[most]["server"], found[least]["server"]),
        "tenants_server_ratio": ratio(found[many]["server"], found[alone]["server"]),
        "batch": BATCH,
        "passes": rounds * IN_A_ROW,
    }
    return (
        figures
        | {f"cost_us {name}": each for name, each in found.items()}
        | {"pass_ms": {case.name: round(median(case.took_s) * 1e3, 1) for case in cases}}
    )


def ratio(these: float, those: float) -> float:
    return round(these / those, 3)


def backlog(quick: bool) -> Result:
    depths = [1_000, 50_000] if quick else [1_000, 100_000, 10_000_000]
    with_tenants, rounds = depths[1], 3 if quick else 7
    with fleet(checkpoint_timeout="1d", max_wal_size="32GB") as made:
        return asyncio.run(measure(made, depths, [1, 10, 1_000], with_tenants, rounds))


if __name__ == "__main__":
    ask(backlog, full="up to 10 million waiting", quick="up to 50,000 waiting")
