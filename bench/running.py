"""Very many executions at once: their memory, whether heartbeats are on time, how soon a cancel reaches a function.

Two worker processes with 50,000 slots each (2,500 with --quick) run as many async functions that only wait. They are
submitted in batches of 1,000 by a client in this process; a scheduler does its housekeeping meanwhile. PostgreSQL has
fsync and synchronous_commit on.

- *memory_mib*: proportional set size (shared pages count once) of the workers, the scheduler and PostgreSQL with all of
  them running; *ratio* is it ÷ the limit of 6 GiB. *bytes_each*: of the workers, beyond their idle memory.
- *filled_per_s*: from the first submit to the last start.
- *cancel_s*: some hundreds of them, at random, are cancelled one after another by the flow, as the API does; from
  before its transaction to the function's own CancelledError.
- *beat_gap_s*: the longest time without a heartbeat of a worker, over the whole run; a third of its timeout is healthy,
  a whole one would be a lost worker.

The run is invalid if a worker was lost, if an execution ended without a cancel, or if one was started twice.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import asyncio
import random
import time
from uuid import UUID

import asyncpg
from client import Client, client
from fleet import Fleet, fleet
from msgspec import Raw
from question import Result, ask, quantile, say

from ondot.flow.cancel import cancel
from ondot.flow.dispatch import Dispatcher
from ondot.model.ids import DEFAULT_TENANT, ExecutionId
from ondot.model.job import JobSpec
from ondot.model.target import FunctionTarget
from ondot.store.audit import By
from ondot.store.database import Database
from ondot.transports.polling import PollingTransport

PROCESSES = 2
BATCH = 1_000
LINGER_S = 3_000
LIMIT_BYTES = 6 * 2**30
CANCELS_A_SECOND = 100
SETTLE_S = 3.0


async def fill(from_here: Client, executions: int) -> None:
    spec = JobSpec(
        name="linger",
        target=FunctionTarget(name="linger"),
        payload=Raw(b'{"seconds": %d}' % LINGER_S),
        timeout_s=float(LINGER_S),
    )
    for start in range(0, executions, BATCH):
        await from_here.submit(spec, min(BATCH, executions - start))


async def until(connection: asyncpg.Connection, sql: str, wanted: int, within_s: float) -> None:
    """Wait until a count has reached `wanted`; checked a few times per second, to add no load."""
    deadline_s = time.monotonic() + within_s
    while (found := int(await connection.fetchval(sql))) < wanted:
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"only {found:,} of {wanted:,} after {within_s:g} s: {sql}")
        await asyncio.sleep(0.2)


class Beats:
    """The largest age of a worker's last heartbeat, by the database's clock, read a few times per second."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self.gap_s = 0.0

    async def watch(self) -> None:
        while True:
            gap_s = await self._connection.fetchval(
                "SELECT max(extract(epoch FROM clock_timestamp() - beat_at))::float8 FROM ondot.worker"
            )
            self.gap_s = max(self.gap_s, gap_s or 0.0)
            await asyncio.sleep(0.1)


async def cancel_some(database: Database, ids: list[UUID]) -> dict[UUID, float]:
    """Cancel at a steady rate, at any time between two looks of a worker; return when each was cancelled."""
    asked: dict[UUID, float] = {}
    dispatcher = Dispatcher(PollingTransport())
    began_s = time.monotonic()
    for n, id_ in enumerate(ids):
        await asyncio.sleep(max(began_s + n / CANCELS_A_SECOND - time.monotonic(), 0.0))
        asked[id_] = time.monotonic()
        await cancel(database, dispatcher, DEFAULT_TENANT, ExecutionId(id_), by=By("bench"))
    return asked


def read_cancels(directory: Path) -> dict[UUID, float]:
    lines = [line.split() for file in directory.glob("cancelled-*") for line in file.read_text("ascii").splitlines()]
    return {UUID(id_): float(at_s) for id_, at_s in lines}


async def measure(made: Fleet, from_here: Client, executions: int, cancels: int) -> Result:
    database = from_here.database
    connection, watching = await made.connect(), await made.connect()
    beats = Beats(watching)
    watcher: asyncio.Task[None] | None = None
    try:
        await until(connection, "SELECT count(*) FROM ondot.worker WHERE state = 'ALIVE'", PROCESSES, 60)
        watcher = asyncio.create_task(beats.watch())
        idle_bytes = made.memory_bytes("worker")
        say(f"starting {executions:,} executions at once")
        cpu_before = made.cpu_s()
        began_s = time.monotonic()
        await fill(from_here, executions)
        submitted_s = time.monotonic() - began_s
        say(f"submitted in {submitted_s:.1f} s")
        await until(connection, "SELECT sum(running) FROM ondot.worker WHERE state = 'ALIVE'", executions, 300)
        filled_s = await connection.fetchval("SELECT extract(epoch FROM max(started_at))::float8 FROM ondot.execution")
        first_s = await connection.fetchval("SELECT extract(epoch FROM min(fire_at))::float8 FROM ondot.execution")
        filling = {kind: used - cpu_before.get(kind, 0.0) for kind, used in made.cpu_s().items()}
        say(f"all run after {filled_s - first_s:.1f} s")
        await asyncio.sleep(SETTLE_S)
        memory = {kind: made.memory_bytes(kind) for kind in ("worker", "scheduler", "postgres")}
        cpu_before, at_rest_s = made.cpu_s(), time.monotonic()
        await asyncio.sleep(SETTLE_S)
        resting = made.cpu_s()
        at_rest_s = time.monotonic() - at_rest_s

        ids = [row["id"] for row in await connection.fetch("SELECT id FROM ondot.execution WHERE state = 'RUNNING'")]
        chosen = random.sample(ids, cancels)
        asked = await cancel_some(database, chosen)
        await until(connection, "SELECT count(*) FROM ondot.history WHERE state = 'CANCELLED'", cancels, 30)
        waits = cancel_waits(asked, read_cancels(made.directory))
        await check(connection, executions, cancels)
        if beats.gap_s >= database.settings.heartbeat_s:
            raise RuntimeError(f"a worker sent no heartbeat for {beats.gap_s:.1f} s")
    finally:
        if watcher is not None:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
        await connection.close()
        await watching.close()
    total = sum(memory.values())
    return {
        "question": "running",
        "ratio": round(total / LIMIT_BYTES, 3),
        "running": executions,
        "processes": PROCESSES,
        "memory_mib": {"all": total // 2**20} | {kind: each // 2**20 for kind, each in memory.items()},
        "bytes_each": round((memory["worker"] - idle_bytes) / executions),
        "filled_per_s": round(executions / (filled_s - first_s)),
        "filling_cpu_us_each": {kind: round(used / executions * 1e6) for kind, used in filling.items()},
        "core_percent_while_running": {
            kind: round(100 * (used - cpu_before.get(kind, 0.0)) / at_rest_s, 1) for kind, used in resting.items()
        },
        "cancelled": cancels,
        "cancel_s": {
            "p50": round(quantile(waits, 0.5), 3),
            "p99": round(quantile(waits, 0.99), 3),
            "max": round(waits[-1], 3),
        },
        "beat_gap_s": round(beats.gap_s, 2),
    }


def cancel_waits(asked: dict[UUID, float], ended: dict[UUID, float]) -> list[float]:
    if ended.keys() != asked.keys():
        raise RuntimeError(f"{len(asked):,} were cancelled, but only {len(ended):,} noticed")
    return sorted(ended[id_] - asked_s for id_, asked_s in asked.items())


async def check(connection: asyncpg.Connection, executions: int, cancels: int) -> None:
    row = await connection.fetchrow(
        """
        SELECT (SELECT count(*) FROM ondot.execution WHERE state = 'RUNNING' AND attempt_no = 1) AS running,
               (SELECT count(*) FROM ondot.execution) + (SELECT count(*) FROM ondot.history) AS kept,
               (SELECT count(*) FROM ondot.history WHERE state <> 'CANCELLED') AS ended_otherwise,
               (SELECT count(*) FROM ondot.worker WHERE state <> 'ALIVE') AS lost
        """
    )
    facts = dict(row or {})
    expected = {"running": executions - cancels, "kept": executions, "ended_otherwise": 0, "lost": 0}
    if facts != expected:
        raise RuntimeError(f"invalid run: {facts} instead of {expected}")


async def ask_it(made: Fleet, executions: int, cancels: int) -> Result:
    async with client(made.url) as from_here:
        return await measure(made, from_here, executions, cancels)


def running(quick: bool) -> Result:
    executions, cancels = (5_000, 300) if quick else (100_000, 500)
    with fleet() as made:
        made.scheduler()
        workers = [made.worker(slots=executions // PROCESSES) for _ in range(PROCESSES)]
        try:
            return asyncio.run(ask_it(made, executions, cancels))
        finally:
            for worker in workers:
                worker.kill()  # a graceful stop would end all that runs, which is another question


if __name__ == "__main__":
    ask(running, full="100,000 executions", quick="5,000 executions")
