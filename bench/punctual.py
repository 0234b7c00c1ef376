"""How late one-time jobs start, one each 10 ms for a minute, while ten million others are at rest.

The jobs call a function, are due at distinct instants and are submitted ahead by `submit`, in batches of 1,000: those
within the horizon are planned by it, the others by the scheduler, from their timers. One scheduler, one worker process
and PostgreSQL share the machine; `fsync` and `synchronous_commit` are on. The jobs at rest are recurring ones that fire
in hours or weeks (common/seeding.py). The server has ondot's own settings, such as 256 MB of shared buffers; a vacuum
and a checkpoint run right before.

Lateness is counted for every job: *started*: from its instant to the recorded start, and *called*: to the instant that
the function itself reads (on one machine it is the same clock). Each job must have run once, and not before its instant
by either.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import asyncio
import time
from datetime import timedelta

import asyncpg
from fires import read_fires, submit_all, until_ended
from fleet import Fleet, fleet
from question import Result, ask, say
from seeding import Rest

from ondot.model.job import JobSpec
from ondot.model.schedule import Once, Schedule
from ondot.model.target import FunctionTarget

EVERY = timedelta(milliseconds=10)
FIRST_IN = timedelta(seconds=10)
"""Enough to submit them all, and for the roles to start."""


def punctual(quick: bool) -> Result:
    jobs, at_rest = (1_500, 200_000) if quick else (6_000, 10_000_000)
    with fleet() as ondot:
        return asyncio.run(_punctual(ondot, jobs, at_rest))


async def _punctual(ondot: Fleet, jobs: int, at_rest: int) -> Result:
    connection = await ondot.connect()
    try:
        rest = Rest(connection, await connection.fetchval("SELECT ondot.clock()"), at_rest)
        say(f"making {at_rest:,} jobs at rest")
        seeded_s = await rest.grow(ondot.url, at_rest)
        ondot.scheduler()
        ondot.worker()
        return await _measure(ondot, connection, jobs, at_rest) | {"seeded_s": round(seeded_s, 1)}
    finally:
        await connection.close()


async def _measure(ondot: Fleet, connection: asyncpg.Connection, jobs: int, at_rest: int) -> Result:
    first_at = await connection.fetchval("SELECT ondot.clock()") + FIRST_IN
    specs = [
        JobSpec(
            name="punctual", target=FunctionTarget(name="now"), schedule=Schedule(when=Once(at=first_at + n * EVERY))
        )
        for n in range(jobs)
    ]
    submitted_s = await submit_all(ondot.url, specs)
    through_timers = await connection.fetchval(
        "SELECT count(*) FROM ondot.timer WHERE next_fire_at BETWEEN $1 AND $2", first_at, first_at + jobs * EVERY
    )
    if not through_timers or submitted_s > FIRST_IN.total_seconds() / 2:
        raise RuntimeError(f"submitting took too long: {submitted_s:.1f} s, {through_timers} timers")
    say(f"{jobs:,} jobs submitted in {submitted_s:.1f} s, {through_timers:,} of them with a timer")
    before_s, began_s = ondot.cpu_s(), time.monotonic()
    await asyncio.sleep((FIRST_IN + jobs * EVERY).total_seconds() - submitted_s)
    await until_ended(connection, first_at + jobs * EVERY, within_s=30)
    took_s = time.monotonic() - began_s
    cpu_s = {kind: spent_s - before_s.get(kind, 0.0) for kind, spent_s in ondot.cpu_s().items()}
    fires = await read_fires(connection, first_at, first_at + jobs * EVERY, jobs)
    return {
        "question": "punctual",
        "jobs": jobs,
        "every_ms": EVERY.total_seconds() * 1000,
        "jobs_at_rest": at_rest,
        "through_timers": through_timers,
        **fires.as_result(),
        "cores_used": {kind: round(spent_s / took_s, 3) for kind, spent_s in cpu_s.items()},
        "scheduler_mib": ondot.memory_bytes("scheduler") // 2**20,
    }


if __name__ == "__main__":
    ask(punctual, full="a minute with 10 million jobs at rest", quick="15 s with 200,000 jobs at rest")
