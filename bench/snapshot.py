"""Whether the rate holds while another session keeps an old snapshot, as a dump or a forgotten transaction does.

A process submits no-op jobs in batches of 1,000, ahead by the work of three seconds; two worker processes with 1,000
slots each lease, run and complete them; a scheduler does its housekeeping meanwhile. PostgreSQL has fsync and
synchronous_commit on. A lifecycle counts when it has ended, at its instant in history.

First a minute without, then three minutes with a session that has read in a REPEATABLE READ transaction and does not
end it (4 and 12 seconds with --quick): from then on vacuum can remove no deleted row, and dead rows pile up in the
queue, the executions, the leases. *ratio*: the rate of the last minute with it (third, with --quick) ÷ the rate before;
*ratios*: of every minute. *dead_rows*: the server's count at its end, *after_ratio*: after the snapshot is released.
*cpu_us*: processor time for each lifecycle by kind of process, without and in the last part with it.

Every acknowledged job must have succeeded once, at its first attempt.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import asyncio
import subprocess
from dataclasses import dataclass
from datetime import datetime, timedelta

import asyncpg
import psutil
from fleet import Fleet, fleet
from question import Result, ask, say

PROCESSES, SLOTS = 2, 1_000
WARM, SETTLE_S = 5_000, 3.0
PARTS = 3
SUBMITTING = Path(__file__).parent / "common" / "submitting.py"
WARM_WITHIN_S, DRAINED_WITHIN_S = 60.0, 60.0

DEAD = """
SELECT relname, n_dead_tup FROM pg_stat_user_tables
WHERE schemaname = 'ondot' AND n_dead_tup > 0 ORDER BY n_dead_tup DESC LIMIT 6
"""
CHECK = """
SELECT count(*) AS ended, count(DISTINCT job_id) AS jobs,
       count(*) FILTER (WHERE state = 'SUCCEEDED' AND attempt_no = 1) AS succeeded
FROM ondot.history
"""


async def now(connection: asyncpg.Connection) -> datetime:
    at: datetime = await connection.fetchval("SELECT clock_timestamp()")
    return at


async def warmed(connection: asyncpg.Connection) -> None:
    """Wait until all processes work and their statements are prepared."""
    deadline = await now(connection) + timedelta(seconds=WARM_WITHIN_S)
    while await connection.fetchval("SELECT count(*) FROM ondot.history") < WARM:
        if await now(connection) > deadline:
            raise RuntimeError("the processes did not come to work")
        await asyncio.sleep(0.1)
    await asyncio.sleep(SETTLE_S)


@dataclass(frozen=True, slots=True)
class Span:
    """A measured span: from when to when, and the processor time by kind of process."""

    since: datetime
    until: datetime
    cpu_s: dict[str, float]

    async def ended(self, connection: asyncpg.Connection) -> int:
        sql = "SELECT count(*) FROM ondot.history WHERE ended_at >= $1 AND ended_at < $2"
        return int(await connection.fetchval(sql, self.since, self.until))

    async def per_s(self, connection: asyncpg.Connection) -> float:
        return await self.ended(connection) / (self.until - self.since).total_seconds()

    async def cpu_us(self, connection: asyncpg.Connection) -> dict[str, int]:
        ended = await self.ended(connection)
        return {kind: round(used / max(ended, 1) * 1e6) for kind, used in self.cpu_s.items()}


async def watched(made: Fleet, connection: asyncpg.Connection, seconds: float) -> Span:
    since, cpu_before = await now(connection), made.cpu_s()
    await asyncio.sleep(seconds)
    until, cpu = await now(connection), made.cpu_s()
    return Span(since, until, {kind: used - cpu_before.get(kind, 0.0) for kind, used in cpu.items()})


async def measure(made: Fleet, part_s: float, before_s: float) -> Result:
    connection, holder = await made.connect(), await made.connect()
    submitter = psutil.Popen([sys.executable, str(SUBMITTING), made.url], stdout=subprocess.PIPE)
    made.members.append(("submitter", submitter))
    try:
        await warmed(connection)
        say(f"{before_s:g} s without a held snapshot")
        before = await watched(made, connection, before_s)
        snapshot = holder.transaction(isolation="repeatable_read")
        await snapshot.start()
        await holder.fetchval("SELECT count(*) FROM ondot.pool")
        held = []
        for part in range(PARTS):
            say(f"held: part {part + 1} of {PARTS}, {part_s:g} s each")
            held.append(await watched(made, connection, part_s))
        dead = {row["relname"]: row["n_dead_tup"] for row in await connection.fetch(DEAD)}
        await snapshot.rollback()
        after = await watched(made, connection, part_s / 2)
        submitted = await asyncio.to_thread(stopped, submitter)
        await check(connection, submitted)
        before_per_s = await before.per_s(connection)
        rates = [await part.per_s(connection) for part in held]
        after_per_s = await after.per_s(connection)
        cpu_us = {"before": await before.cpu_us(connection), "held": await held[-1].cpu_us(connection)}
    finally:
        made.stop(submitter)
        await holder.close()
        await connection.close()
    return {
        "question": "snapshot",
        "ratio": round(rates[-1] / before_per_s, 3),
        "ratios": [round(each / before_per_s, 3) for each in rates],
        "before_per_s": round(before_per_s),
        "held_per_s": [round(each) for each in rates],
        "held_s": part_s * PARTS,
        "after_ratio": round(after_per_s / before_per_s, 3),
        "cpu_us": cpu_us,
        "dead_rows": dead,
        "lifecycles": submitted,
    }


def stopped(submitter: psutil.Popen) -> int:
    submitter.terminate()
    output, _ = submitter.communicate(timeout=30)
    return int(output)


async def check(connection: asyncpg.Connection, submitted: int) -> None:
    """After the end of all jobs: none is lost, none is doubled."""
    deadline = await now(connection) + timedelta(seconds=DRAINED_WITHIN_S)
    while await connection.fetchval("SELECT EXISTS (SELECT FROM ondot.execution)"):
        if await now(connection) > deadline:
            raise RuntimeError("the workers did not come to an end with what was submitted")
        await asyncio.sleep(0.1)
    row = await connection.fetchrow(CHECK)
    facts = dict(row or {})
    if set(facts.values()) != {submitted}:
        raise RuntimeError(f"{submitted:,} jobs were acknowledged, but history has: {facts}")


def snapshot(quick: bool) -> Result:
    part_s, before_s = (4.0, 4.0) if quick else (60.0, 60.0)
    with fleet() as made:
        made.scheduler()
        for _ in range(PROCESSES):
            made.worker(slots=SLOTS)
        return asyncio.run(measure(made, part_s, before_s))


if __name__ == "__main__":
    ask(snapshot, full="three minutes of a held snapshot", quick="12 seconds")
