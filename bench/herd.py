"""How soon a herd has started: 100,000 cron jobs of 1,000 expressions that are all due in the same second.

Each expression has a fire at the instant, at another minute and at another hour, and none shortly before. `submit`
creates the jobs in batches of 1,000, early enough that the scheduler plans them from their timers, at most 20 s before
they are due. One scheduler, two worker processes with 1,000 slots each and PostgreSQL share the machine; `fsync` and
`synchronous_commit` are on. First a herd of functions that do nothing; then, a minute later (with --quick: some
seconds), one of HTTP calls to a lean receiver in another process, which must receive one call of each.

*first_s*, *median_s*, *last_s*: from the instant to the recorded start; *per_s* is the herd of functions ÷ the time of
its last start. *last_called_s*: by the clock that the functions read. *planned_ahead_s*: how long before the instant
the last execution was planned. *ended_s*: when the last outcome was written. Each fire must have run once, at its first
attempt, and not before its instant.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import asyncio
from datetime import datetime, timedelta

import asyncpg
from fires import Fires, read_fires, submit_all, until_ended
from fleet import Fleet, fleet
from question import Result, ask, quantile, say

from ondot.model.job import JobSpec, TargetSpec
from ondot.model.schedule import Cron, Schedule
from ondot.model.target import FunctionTarget, HttpTarget
from receiver import Receiver, receiving

EXPRESSIONS = 1_000
BEFORE_PLANNED = timedelta(seconds=21)
"""More than the horizon, so that the scheduler plans them and not submit."""
SUBMITTED_PER_S = 3_000
"""The least that is expected; the instant is chosen by it."""
AFTER_QUICK = timedelta(seconds=4)
ALL_WITHIN_S = 300


def herd(quick: bool) -> Result:
    jobs, http_jobs = (10_000, 2_500) if quick else (100_000, 100_000)
    with fleet() as ondot, receiving() as receiver:
        return asyncio.run(_herd(ondot, receiver, jobs, http_jobs, quick=quick))


async def _herd(ondot: Fleet, receiver: Receiver, jobs: int, http_jobs: int, *, quick: bool) -> Result:
    ondot.scheduler()
    ondot.worker(processes=2, ONDOT_ALLOW_PRIVATE_TARGETS="1")
    connection = await ondot.connect()
    try:
        now = await connection.fetchval("SELECT ondot.clock()")
        unit = timedelta(seconds=1) if quick else timedelta(minutes=1)
        due_at = _full(now + BEFORE_PLANNED + timedelta(seconds=(jobs + http_jobs) / SUBMITTED_PER_S), unit)
        called_at = due_at + AFTER_QUICK if quick else due_at + unit
        submitted_s = await _submit(ondot, connection, jobs, due_at, FunctionTarget(name="now"))
        await _submit(ondot, connection, http_jobs, called_at, HttpTarget(url=f"{receiver.url}/"))
        before_s = ondot.cpu_s()
        functions = await _run(connection, due_at, jobs)
        cpu_s = {kind: spent_s - before_s[kind] for kind, spent_s in ondot.cpu_s().items()}
        if await connection.fetchval("SELECT ondot.clock()") > called_at:
            raise RuntimeError("the herd of functions had not ended when the herd of HTTP calls started")
        calls = await _run(connection, called_at, http_jobs)
    finally:
        await connection.close()
    counted, executions = await asyncio.to_thread(receiver.counts)
    if not counted == executions == http_jobs:
        raise RuntimeError(f"invalid run: {http_jobs} jobs, {counted} calls of {executions} executions")
    return {
        "question": "herd",
        "per_s": round(jobs / functions.started_s[-1]),
        "jobs": jobs,
        "expressions": EXPRESSIONS,
        "submitted_per_s": round(jobs / submitted_s),
        **_result(functions),
        "last_called_s": round(functions.called_s[-1], 3),
        "http": {"jobs": http_jobs} | _result(calls),
        "cpu_us_each": {kind: round(spent_s / jobs * 1e6, 1) for kind, spent_s in cpu_s.items()},
    }


def _full(at: datetime, unit: timedelta) -> datetime:
    """The first full second or minute from an instant on."""
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight - (midnight - at) // unit * unit


def schedules(due_at: datetime) -> list[Schedule]:
    """A thousand schedules with a fire at an instant, and no other from some minutes before to some after."""
    minutes = [(due_at.minute + 5 + n) % 60 for n in range(50)]
    hours = [(due_at.hour + 2 + n) % 24 for n in range(20)]
    return [
        Schedule(when=Cron(expression=f"{due_at.second} {due_at.minute},{minute} {due_at.hour},{hour} * * *"))
        for minute in minutes
        for hour in hours
    ]


async def _submit(
    ondot: Fleet, connection: asyncpg.Connection, jobs: int, due_at: datetime, target: TargetSpec
) -> float:
    shared = schedules(due_at)
    specs = [JobSpec(name=f"herd-{n}", target=target, schedule=shared[n % EXPRESSIONS]) for n in range(jobs)]
    took_s = await submit_all(ondot.url, specs)
    planned = await connection.fetchval("SELECT count(*) FROM ondot.execution WHERE fire_at = $1", due_at)
    if planned:
        raise RuntimeError(f"{planned} of {jobs} were planned before all were submitted, which took {took_s:.0f} s")
    say(f"{jobs:,} jobs submitted in {took_s:.1f} s, due at {due_at:%H:%M:%S}")
    return took_s


async def _run(connection: asyncpg.Connection, due_at: datetime, jobs: int) -> Fires:
    now = await connection.fetchval("SELECT ondot.clock()")
    await asyncio.sleep((due_at - now).total_seconds())
    await until_ended(connection, due_at, within_s=ALL_WITHIN_S)
    return await read_fires(connection, due_at, due_at, jobs)


def _result(fires: Fires) -> dict[str, float]:
    return {
        "first_s": round(fires.started_s[0], 3),
        "median_s": round(quantile(fires.started_s, 0.5), 3),
        "last_s": round(fires.started_s[-1], 3),
        "planned_ahead_s": round(fires.ahead_s, 2),
        "ended_s": round(fires.ended_s, 3),
    }


if __name__ == "__main__":
    ask(herd, full="two herds of 100,000 jobs", quick="10,000 jobs, and 2,500 of HTTP calls")
