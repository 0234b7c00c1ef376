"""A steady load: jobs submitted in a closed loop, run by real workers, and counted within measured windows.

A rate counts the rows that reached history as SUCCEEDED between two instants of the database's clock, after the load.
WAL and processor time between the same instants are divided by those rows.
"""

import asyncio
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import asyncpg
import psutil
from fleet import Fleet, wal_bytes

from ondot.model.job import JobSpec, encode_spec

HERE = Path(__file__).resolve().parent
STARTED_WITHIN_S = 60.0
DRAINED_WITHIN_S = 120.0
SUBMITTER = "submitter"


@dataclass(frozen=True, slots=True)
class Load:
    """The windows of a load, one after the other. `cpu_us`, `wal_bytes`: per job, `cpu_us` by kind."""

    submitted: int
    per_s: float
    rates: list[float]
    wal_bytes: float
    cpu_us: dict[str, float]


async def steady(started: Fleet, spec: JobSpec, *, backlog: int, warm_s: float, windows_s: list[float]) -> Load:
    """Load the fleet, and return when all submitted jobs have ended. `warm_s`: from the first lease."""
    connection = await started.connect()
    submitter = _submitter(started, spec, backlog)
    try:
        await _until_started(started, connection)
        await asyncio.sleep(warm_s)
        wal, cpu_s = await wal_bytes(connection), started.cpu_s()
        instants = [await _now(connection)]
        for window_s in windows_s:
            await asyncio.sleep(window_s)
            _all_alive(started)
            instants.append(await _now(connection))
        wal, cpu = await wal_bytes(connection) - wal, started.cpu_s()
        output, _ = await asyncio.to_thread(submitter.communicate, timeout=60)
        started.members.remove((SUBMITTER, submitter))
        await _drain(started, connection)
        counts = await _ended(connection, instants)
    finally:
        started.stop(submitter)
        await connection.close()
    jobs, seconds = sum(counts), (instants[-1] - instants[0]).total_seconds()
    if not jobs:
        raise RuntimeError("no job ended within the measured windows")
    return Load(
        submitted=int(output),
        per_s=jobs / seconds,
        rates=[
            count / (until - since).total_seconds()
            for count, since, until in zip(counts, instants, instants[1:], strict=False)
        ],
        wal_bytes=wal / jobs,
        cpu_us={kind: 1e6 * (cpu[kind] - cpu_s.get(kind, 0.0)) / jobs for kind in cpu},
    )


async def check(started: Fleet, submitted: int) -> None:
    """Every acknowledged job has exactly one row of history, SUCCEEDED at its first attempt; none is left."""
    connection = await started.connect()
    try:
        row = await connection.fetchrow(
            "SELECT (SELECT count(*) FROM ondot.execution) AS live, (SELECT count(*) FROM ondot.ready) AS ready,"
            " (SELECT count(*) FROM ondot.dead_letter) AS dead, (SELECT count(*) FROM ondot.job_once) AS jobs,"
            " count(*) AS ended, count(DISTINCT job_id) AS distinct_jobs,"
            " count(*) FILTER (WHERE state <> 'SUCCEEDED' OR attempt_no <> 1) AS otherwise,"
            " count(*) FILTER (WHERE started_at < fire_at) AS early FROM ondot.history"
        )
    finally:
        await connection.close()
    assert row is not None
    found = dict(row)
    wanted = dict.fromkeys(("live", "ready", "dead", "otherwise", "early"), 0)
    wanted |= dict.fromkeys(("jobs", "ended", "distinct_jobs"), submitted)
    if found != wanted:
        raise RuntimeError(f"invalid run: of {submitted} submitted jobs: {found}")


def _submitter(started: Fleet, spec: JobSpec, backlog: int) -> psutil.Popen:
    process = psutil.Popen(
        [sys.executable, str(HERE / "submitter.py"), started.url, str(backlog)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=started.directory,
        env={**os.environ, **started.settings},
        text=True,
    )
    process.stdin.write(encode_spec(spec) + "\n")
    process.stdin.flush()
    started.members.append((SUBMITTER, process))
    return process


async def _now(connection: asyncpg.Connection) -> datetime:
    now: datetime = await connection.fetchval("SELECT ondot.clock()")
    return now


def _all_alive(started: Fleet) -> None:
    for role, process in started.members:
        if process.poll() is not None:
            raise RuntimeError(f"The {role} ended before the end of the run. See its message above.")


async def _until_started(started: Fleet, connection: asyncpg.Connection) -> None:
    """Wait until the first execution has been leased: processes take a moment to start."""
    deadline_s = time.monotonic() + STARTED_WITHIN_S
    while not await connection.fetchval("SELECT EXISTS (SELECT FROM ondot.lease)"):
        _all_alive(started)
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"no execution was leased {STARTED_WITHIN_S:.0f} s after the start")
        await asyncio.sleep(0.02)


async def _drain(started: Fleet, connection: asyncpg.Connection) -> None:
    deadline_s = time.monotonic() + DRAINED_WITHIN_S
    while await connection.fetchval("SELECT EXISTS (SELECT FROM ondot.execution)"):
        _all_alive(started)
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"not all jobs have ended {DRAINED_WITHIN_S:.0f} s after the last submit")
        await asyncio.sleep(0.05)


async def _ended(connection: asyncpg.Connection, instants: list[datetime]) -> list[int]:
    """How many ended between each of these instants and the next."""
    rows = await connection.fetch(
        "SELECT width_bucket(ended_at, $1::timestamptz[]) AS n, count(*) AS count FROM ondot.history"
        " WHERE ended_at >= $2 AND ended_at < $3 AND state = 'SUCCEEDED' GROUP BY 1",
        instants,
        instants[0],
        instants[-1],
    )
    counts = {row["n"]: row["count"] for row in rows}
    return [counts.get(n, 0) for n in range(1, len(instants))]
