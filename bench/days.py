"""What a year of history costs: plan, pause, resume and the lists of pages, with 8, 365 and 730 day tables.

Each day that is kept is a separate table in everything that is cut by day. A statement that could read any of them must
lock and plan them all, with or without rows. So the tables are empty except today's, and only that cost grows with
their number. Steps are repeated on one connection, with the settings of each role; a worker's step is *spec_of_once*,
which reads the specs of one-time jobs.

Lists read one page, which the last days fill; *list_nothing_found* must look through all days. *ms*: median of each
step. *locks*: how many locks it holds at its end, of tables and indexes (the table of locks has room for
`max_locks_per_transaction` per connection). *ratio*: plan with most days ÷ plan with fewest. The server is the embedded
one, `fsync` and `synchronous_commit` are on.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import asyncpg
from fleet import fleet
from past_days import make_past_days
from question import Result, ask, say
from structlog.testing import capture_logs

from ondot.flow.change import change
from ondot.flow.dispatch import Dispatcher
from ondot.flow.plan import Planning, plan_timers
from ondot.flow.submit import submit
from ondot.model.ids import DEFAULT_TENANT, JobId
from ondot.model.job import JobSpec
from ondot.model.schedule import Interval, Once, Schedule
from ondot.model.target import FunctionTarget
from ondot.settings import load_settings
from ondot.store.audit import list_audit
from ondot.store.connection import Connection
from ondot.store.database import Database, open_database
from ondot.store.dead_letters import LetterFilter, list_letters
from ondot.store.executions import find_latest_execution, list_executions, list_job_executions
from ondot.store.explain import read_fire
from ondot.store.jobs import list_jobs
from ondot.store.overview import list_latest_executions
from ondot.store.specs import Specs
from ondot.store.timers import get_timer
from ondot.transports.polling import PollingTransport

AHEAD = 8
"""The days that are made ahead, including today."""
PAGE = 50
SEED = """
INSERT INTO ondot.history (id, job_id, fire_at, ready_at, ended_at, tenant_no, job_version, pool_no, attempt_no,
                           failures, losses, class, state, origin)
SELECT ondot.new_id(), gen_random_uuid(), now(), now(), now(), 1, 1, 1, 1, 0, 0, 2, 'SUCCEEDED', 'fire'
FROM generate_series(1, {page});
INSERT INTO ondot.job_once (id, tenant_no, name, pool_no, fire_at, labels, spec)
SELECT ondot.new_id(), 1, o.name, o.pool_no, o.fire_at, o.labels, o.spec
FROM (SELECT * FROM ondot.job_once LIMIT 1) o, generate_series(1, {page});
INSERT INTO ondot.audit (id, tenant_no, actor, action)
SELECT ondot.new_id(), 1, 'a', 'b' FROM generate_series(1, {page});
"""
"""A page of each."""


def days(quick: bool) -> Result:
    levels, turns = ((8, 120), 10) if quick else ((8, 365, 730), 30)
    # Enough locks for two years, even if each statement takes those of all days, so that both can be measured.
    with fleet(max_locks_per_transaction="1024") as ondot, capture_logs():
        return asyncio.run(_days(ondot.url, levels, turns))


async def _days(url: str, levels: tuple[int, ...], turns: int) -> Result:
    connection = await asyncpg.connect(url)
    database = await open_database(load_settings(database_url=url))
    by_key = await open_database(load_settings(database_url=url), by_key=True)
    try:
        await database.read_clock()
        made = AHEAD
        found: dict[str, dict[str, Any]] = {}
        for level in levels:
            await make_past_days(connection, level - made)
            made = level
            await connection.execute("VACUUM ANALYZE")
            say(f"{level} days")
            found[f"{level} days"] = await _steps(database, by_key, turns)
    finally:
        await by_key.close()
        await database.close()
        await connection.close()
    plan = [each["ms"]["plan"] for each in found.values()]
    return {"question": "days", "ratio": round(plan[-1] / plan[0], 2), "turns": turns, **found}


async def _steps(database: Database, by_key: Database, turns: int) -> dict[str, Any]:
    dispatcher = Dispatcher(PollingTransport())
    now = database.clock.now()
    recurring, once = await _jobs(database, dispatcher, now)
    async with database.connection() as connection:
        await connection.execute(SEED.format(page=PAGE))
    reads: dict[str, Callable[[Connection], Awaitable[object]]] = {
        "plan": lambda connection: _plan(connection, database, recurring),
        "list_executions": lambda connection: list_executions(connection, DEFAULT_TENANT, limit=PAGE, horizon_s=20),
        "list_nothing_found": lambda connection: list_executions(
            connection, DEFAULT_TENANT, limit=PAGE, horizon_s=20, state="FAILED"
        ),
        "executions_of_job": lambda connection: list_job_executions(
            connection, DEFAULT_TENANT, recurring, limit=PAGE, horizon_s=20
        ),
        "latest_of_job": lambda connection: find_latest_execution(connection, DEFAULT_TENANT, recurring),
        "overview": lambda connection: list_latest_executions(connection, DEFAULT_TENANT, PAGE),
        "list_jobs": lambda connection: list_jobs(connection, DEFAULT_TENANT, limit=PAGE),
        "list_letters": lambda connection: list_letters(connection, DEFAULT_TENANT, LetterFilter(), limit=PAGE),
        "list_audit": lambda connection: list_audit(connection, DEFAULT_TENANT, limit=PAGE),
        "explain_fire": lambda connection: read_fire(connection, DEFAULT_TENANT, recurring, now),
    }
    ms: dict[str, float] = {}
    locks: dict[str, int] = {}
    for name, read in reads.items():
        ms[name], locks[name] = await _measured(database, read, turns)

    async def spec_of_once(connection: Connection) -> None:
        await Specs().find(connection, [(once, 1)])

    ms["spec_of_once"], locks["spec_of_once"] = await _measured(by_key, spec_of_once, turns)
    took: dict[str, list[float]] = {"pause": [], "resume": []}
    for _ in range(turns):
        for name, step in (
            ("pause", change.pause(database, DEFAULT_TENANT, recurring)),
            ("resume", change.resume(database, dispatcher, DEFAULT_TENANT, recurring)),
        ):
            began_s = time.perf_counter()
            await step
            took[name].append(time.perf_counter() - began_s)
    ms |= {name: _median_ms(each) for name, each in took.items()}
    return {"ms": ms, "locks": locks}


async def _jobs(database: Database, dispatcher: Dispatcher, now: datetime) -> tuple[JobId, JobId]:
    target = FunctionTarget(name="nothing")
    specs = [
        JobSpec(name="r", target=target, schedule=Schedule(when=Interval(every_s=60.0, anchor_at=now))),
        JobSpec(name="o", target=target, schedule=Schedule(when=Once(at=now))),
    ]
    ids: list[JobId] = []

    def answer(accepted: list[Any]) -> str:
        ids[:] = [each.id for each in accepted]
        return ""

    await submit(database, dispatcher, DEFAULT_TENANT, specs, render=answer)
    return ids[0], ids[1]


async def _plan(connection: Connection, database: Database, job_id: JobId) -> None:
    """Plan one fire of one job, as a pass that finds one due."""
    timer = await get_timer(connection, DEFAULT_TENANT, job_id)
    assert timer is not None
    assert timer.next_fire_at is not None
    [spec] = (await database.specs.find(connection, [(job_id, timer.job_version)])).values()
    [pool_no] = (await database.pools.numbers(connection, DEFAULT_TENANT, [spec.pool])).values()
    planning = Planning(timer, spec, pool_no)
    at = timer.next_fire_at
    planned = await plan_timers(
        connection, database.clock, [planning], now=at - timedelta(seconds=1), horizon_at=at + timedelta(seconds=1)
    )
    if planned.planned != 1:
        raise RuntimeError(f"{planned.planned} fires were planned, expected one")


async def _measured(
    database: Database, step: Callable[[Connection], Awaitable[object]], turns: int
) -> tuple[float, int]:
    took = []
    async with database.connection() as connection:
        for _ in range(turns):
            began_s = time.perf_counter()
            await step(connection)
            took.append(time.perf_counter() - began_s)
    async with database.transaction() as connection:
        await step(connection)
        locks = await connection.fetchval("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()")
    return _median_ms(took), int(locks)


def _median_ms(took: list[float]) -> float:
    return round(1000 * statistics.median(took), 2)


if __name__ == "__main__":
    ask(days, full="five minutes", quick="a minute")
