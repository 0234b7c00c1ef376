"""A year of history: how large the database is with 30 days kept, how long a day takes to go, and what others feel.

Days are made by SQL, in every table that is cut by day: one-time jobs that have run, one in 50 with a failed attempt,
one in 10 with two log lines, one in 1,000 with an object; of each 10,000 one has an open dead letter, and one job is
due in a year. Three parts:

1. *kept*: 30 days of `kept_a_day` executions. *gb_at_a_million*: 30 times the bytes of one execution times a million;
   computed, because a million a day for 30 days takes longer to make than to measure.
2. *day_s*: some days of `executions_a_day` that are past their retention are rewritten by the code that schedulers run
   (`flow.history`), all tables, while one job after the other is submitted (which plans it), leased and completed;
   *alone_ms* is the same before. What the lock of a swap costs is in the worst of *during_ms*.
3. *year*: the clock moves on day by day; each day gets its executions, and the oldest goes. *mb*: the size of the
   database every 30 days once the days of part 1 have gone; *growth*: the last of them by the first. It has what stays:
   open dead letters, and jobs that are due in a year. *tables*: partitions of history.

The server is the embedded one, `fsync` and `synchronous_commit` are on.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import asyncio
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import date, timedelta
from random import random
from typing import Any, Final

import asyncpg
from fleet import Fleet, fleet
from past_days import make_past_days
from question import Result, ask, quantile, say
from structlog.testing import capture_logs

from ondot.flow.complete import Completer, Done
from ondot.flow.days import make_days
from ondot.flow.dispatch import Dispatcher
from ondot.flow.history.objects import ObjectRemoval
from ondot.flow.history.rewrite import Rewriting
from ondot.flow.lease import Leaser
from ondot.flow.submit import submit
from ondot.model.completion import decide
from ondot.model.ids import DEFAULT_TENANT, PoolNo, WorkerId
from ondot.model.job import JobSpec
from ondot.model.outcome import Succeeded
from ondot.model.target import FunctionTarget
from ondot.objects import open_objects
from ondot.settings import load_settings
from ondot.store.connection import Connection
from ondot.store.database import Database, open_database
from ondot.store.day_rewrite import list_partitions
from ondot.store.workers import register_worker
from ondot.transports.polling import PollingTransport

KEPT_DAYS: Final = 30
SIZE_EVERY_DAYS: Final = 30
BEFORE_S: Final = 5.0
YEAR_WITHIN_S: Final = 300.0
"""On a slow machine the year is shorter; the result has its days."""
MOVED: Final = """
CREATE OR REPLACE FUNCTION ondot.clock() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE
    AS $$SELECT statement_timestamp() + interval '{days} days'$$
"""
NOTHING: Final = JobSpec(name="nothing", target=FunctionTarget(name="nothing"))
FILL: Final = """
WITH made AS MATERIALIZED (
    SELECT n, starts + n * (interval '1 day' / $2::integer) AS at
    FROM generate_series(0, $2 - 1) AS n, (SELECT $1::date::timestamp AT TIME ZONE 'UTC' AS starts) d
), id AS MATERIALIZED (
    SELECT n, at, (time || '7' || substr(gen_random_uuid()::text, 17))::uuid AS id,
           (time || '7' || substr(gen_random_uuid()::text, 17))::uuid AS job_id
    FROM (SELECT *, substr(ondot.first_id_at(at)::text, 1, 15) AS time FROM made) m
), job AS (
    INSERT INTO ondot.job_once (id, tenant_no, name, pool_no, fire_at, labels, spec)
    SELECT job_id, 1, 'nothing', 1, CASE WHEN n % 10000 = 1 THEN at + interval '1 year' ELSE at END, '{}',
           '{"name": "nothing", "target": {"function": {"name": "nothing"}}, "payload": {"customer": 17}}'
    FROM id
), timer AS (
    INSERT INTO ondot.timer (job_id, next_fire_at, version, job_version, tenant_no, partition_no)
    SELECT job_id, at + interval '1 year', 1, 1, 1, 0 FROM id WHERE n % 10000 = 1
), history AS (
    INSERT INTO ondot.history (id, job_id, worker_id, fire_at, ready_at, started_at, ended_at, tenant_no, job_version,
                               pool_no, attempt_no, failures, losses, class, state, origin, result)
    SELECT id, job_id, '019a1de9-9b23-7aac-b1ca-34bc80b2579e', at, at, at, at + interval '1 second', 1, 1, 1,
           CASE WHEN n % 50 = 0 THEN 2 ELSE 1 END, CASE WHEN n % 50 = 0 THEN 1 ELSE 0 END, 0, 2,
           CASE WHEN n % 10000 = 0 THEN 'FAILED' ELSE 'SUCCEEDED' END, 'fire', '{"rows": 12345}'
    FROM id WHERE n % 10000 <> 1
), letter AS (
    INSERT INTO ondot.dead_letter (execution_id, tenant_no, job_id, job_version, failed_at, reason)
    SELECT id, 1, job_id, 1, at, 'it broke' FROM id WHERE n % 10000 = 0
), attempt AS (
    INSERT INTO ondot.attempt (execution_id, attempt_no, tenant_no, outcome, started_at, ended_at, error)
    SELECT id, 1, 1, 'FAILED', at, at, '{"code": "exception", "message": "it broke"}' FROM id WHERE n % 50 = 0
), line AS (
    INSERT INTO ondot.log (execution_id, attempt_no, line_no, tenant_no, at, stream, line)
    SELECT id, 1, no, 1, at, 'stdout', 'read 12345 rows of customer 17' FROM id, generate_series(1, 2) AS no
    WHERE n % 10 = 0
)
INSERT INTO ondot.object (execution_id, attempt_no, kind, tenant_no, key, bytes)
SELECT id, 1, 'result', 1, id::text, 100000 FROM id WHERE n % 1000 = 0
"""


@dataclass(frozen=True, slots=True)
class Size:
    """Executions of a kept day, of a day that is dropped under load, and of a day of the year; and how many of each."""

    kept: int
    dropped: int
    dropped_days: int
    small: int
    year_days: int


FULL: Final = Size(kept=30_000, dropped=1_000_000, dropped_days=2, small=2_000, year_days=365)
QUICK: Final = Size(kept=2_000, dropped=20_000, dropped_days=2, small=500, year_days=70)


def year(quick: bool) -> Result:
    with fleet(max_locks_per_transaction="1024", max_wal_size="4GB") as ondot, capture_logs():
        return asyncio.run(_year(ondot, QUICK if quick else FULL))


async def _year(ondot: Fleet, size: Size) -> Result:
    connection = await asyncpg.connect(ondot.url)
    objects_url = (ondot.directory / "objects").as_uri()
    settings = load_settings(
        database_url=ondot.url, retention_days=KEPT_DAYS, retention_at="00:00", objects_url=objects_url
    )
    database = await open_database(settings)
    try:
        await database.read_clock()
        await make_past_days(connection, KEPT_DAYS + size.dropped_days)
        return {
            "question": "year",
            "executions_a_day": size.dropped,
            "kept_a_day": size.kept,
            "kept": await _keep(connection, size),
            **await _drop(connection, database, size),
            "year": await _pass_a_year(connection, database, size),
        }
    finally:
        await database.close()
        await connection.close()


async def _keep(connection: Connection, size: Size) -> dict[str, float]:
    """Make the days that are kept; returns what they need."""
    empty_bytes = await _read_size(connection)
    today = await _read_today(connection)
    for age in range(1, KEPT_DAYS + 1):
        await connection.execute(FILL, today - timedelta(days=age), size.kept, timeout=None)
    await connection.execute("VACUUM ANALYZE", timeout=None)
    kept_bytes = await _read_size(connection)
    each = (kept_bytes - empty_bytes) / (KEPT_DAYS * size.kept)
    say(f"{KEPT_DAYS} days of {size.kept:,} kept: {kept_bytes / 1e9:.2f} GB")
    return {
        "days": KEPT_DAYS,
        "gb": round(kept_bytes / 1e9, 2),
        "bytes_an_execution": round(each),
        "gb_at_a_million": round((empty_bytes + KEPT_DAYS * 1_000_000 * each) / 1e9, 1),
    }


async def _drop(connection: Connection, database: Database, size: Size) -> Result:
    """Rewrite days of full size beside a load."""
    today = await _read_today(connection)
    old = [today - timedelta(days=KEPT_DAYS + 1 + number) for number in range(size.dropped_days)]
    for day in old:
        began_s = time.perf_counter()
        await connection.execute(FILL, day, size.dropped, timeout=None)
        say(f"{day} with {size.dropped:,} executions made in {time.perf_counter() - began_s:.0f} s")
    await connection.execute("VACUUM ANALYZE ondot.history", timeout=None)
    await connection.execute("CHECKPOINT", timeout=None)
    before = await _load(database, asyncio.create_task(asyncio.sleep(BEFORE_S)))
    rewriting = asyncio.create_task(_rewrite(database))
    during = await _load(database, rewriting)
    took_s, removed = await rewriting
    of_day = sorted(took_s[day] for day in old)
    say(f"days of {size.dropped:,} dropped in {', '.join(f'{each:.1f} s' for each in of_day)}")
    return {
        "rows_removed": removed,
        "day_s": {"median": round(statistics.median(of_day), 2), "longest": round(of_day[-1], 2)},
        "alone_ms": before,
        "during_ms": during,
    }


async def _pass_a_year(connection: Connection, database: Database, size: Size) -> Result:
    sizes, took = [], []
    tables = await _count_partitions(database)
    started_s = time.perf_counter()
    for number in range(1, size.year_days + 1):
        await connection.execute(MOVED.format(days=number))
        await database.read_clock()
        await make_days(database)
        today = await _read_today(connection)
        await connection.execute(FILL, today - timedelta(days=1), size.small, timeout=None)
        began_s = time.perf_counter()
        await _rewrite(database)
        took.append(time.perf_counter() - began_s)
        # The days of part 1 have gone, and those that were merged.
        is_measured = number > KEPT_DAYS and number % SIZE_EVERY_DAYS == SIZE_EVERY_DAYS // 2
        is_last = number == size.year_days or time.perf_counter() - started_s > YEAR_WITHIN_S
        if is_measured or is_last:
            sizes.append(await _read_size(connection))
            say(f"day {number}: {sizes[-1] / 1e6:.0f} MB, {took[-1]:.2f} s for its rewriting")
        if is_last:
            break
    return {
        "days": len(took),
        "executions_a_day": size.small,
        "mb": [round(each / 1e6) for each in sizes],
        "growth": round(sizes[-1] / sizes[0], 2),
        "rewriting_s": {"median": round(statistics.median(took), 2), "longest": round(max(took), 2)},
        "tables": {"before": tables, "after": await _count_partitions(database)},
    }


async def _read_size(connection: Connection) -> int:
    return int(await connection.fetchval("SELECT pg_database_size(current_database())"))


async def _read_today(connection: Connection) -> date:
    today: date = await connection.fetchval("SELECT (ondot.clock() AT TIME ZONE 'UTC')::date")
    return today


async def _count_partitions(database: Database) -> int:
    async with database.connection() as connection:
        return len(await list_partitions(connection, "history"))


async def _rewrite(database: Database) -> tuple[dict[date, float], int]:
    """Rewrite all that is due, and delete its objects; returns the seconds of each day, over all tables, and how many
    rows went."""
    rewriting = Rewriting(database)
    took_s: dict[date, float] = defaultdict(float)
    seen: set[tuple[str, str, object]] = set()
    removed = 0
    while await rewriting.one_pass():
        async with database.connection() as connection:
            rows = await connection.fetch(
                "SELECT parent, name, at, took_s, removed FROM ondot.day_rewritten WHERE kept + removed > 0"
            )
        for row in rows:
            mark = (row["parent"], row["name"], row["at"])
            if mark in seen:
                continue
            seen.add(mark)
            removed += row["removed"]
            if (digits := row["name"].removeprefix(f"{row['parent']}_")).isdecimal():
                took_s[date(int(digits[:4]), int(digits[4:6]), int(digits[6:]))] += row["took_s"]
    objects = ObjectRemoval(database, open_objects(database.settings))
    while await objects.one_pass():
        pass
    return took_s, removed


async def _load(database: Database, until: "asyncio.Task[Any]") -> dict[str, dict[str, float]]:
    """Submit, lease and complete one job after the other until a task has ended; milliseconds of each step."""
    dispatcher, worker_id = Dispatcher(PollingTransport()), WorkerId(database.clock.new_id())
    async with database.connection() as connection:
        await register_worker(connection, worker_id, host="bench", pid=1, release="0", pool_nos=[PoolNo(1)], slots=100)
    leaser, completer = Leaser(database, worker_id, [PoolNo(1)]), Completer(database, dispatcher, worker_id)
    took: dict[str, list[float]] = {"plan": [], "lease": [], "complete": []}
    while not until.done():
        marks = [time.perf_counter()]
        await submit(database, dispatcher, DEFAULT_TENANT, [NOTHING], render=lambda _: "")
        marks.append(time.perf_counter())
        batch = await leaser.one_pass(10)
        leaser.acknowledge()
        marks.append(time.perf_counter())
        done = []
        for assignment in batch.assignments:
            assert assignment.spec is not None
            completer.hold(assignment.lease_id, 1)
            outcome = decide(assignment.leased, assignment.spec, Succeeded("null"), random)
            done.append(Done(outcome, assignment.lease_id))
        await completer.write(done)
        marks.append(time.perf_counter())
        for name, begin_s, end_s in zip(took, marks, marks[1:], strict=False):
            took[name].append(1000 * (end_s - begin_s))
        await asyncio.sleep(0.005)
    return {
        name: {
            "p50": round(quantile(sorted(each), 0.5), 2),
            "p99": round(quantile(sorted(each), 0.99), 2),
            "worst": round(max(each), 2),
            "count": len(each),
        }
        for name, each in took.items()
    }


if __name__ == "__main__":
    ask(year, full="about ten minutes", quick="a minute or two")
