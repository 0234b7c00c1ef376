"""A year of history: how large the database is with 30 days kept, how long a day takes to go, and what others feel.

Days are made by SQL, in every table that is cut by day: one-time jobs that have run, one in 50 with a failed attempt,
one in 10 with two log lines, one in 1,000 with an object; of each 10,000 one has an open dead letter, and one job is
due in a year. 30 days are kept; the days before them are past their retention, and are rewritten by the code that
schedulers run (`flow.history`). A few of them are of full size, the rest of a hundredth, so that a year of days is
rewritten and merged. Meanwhile, and before, one job after the other is submitted (which plans it), leased and
completed, and each step is timed.

*day_s*: seconds for a day of full size, over all tables, median and longest. *swap_ms*: what the lock costs is in the
longest of the steps beside it. *tables*: partitions of history before and after the year. The server is the embedded
one, `fsync` and `synchronous_commit` are on.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import asyncio
import statistics
import time
from collections import defaultdict
from datetime import date, timedelta
from random import random
from typing import Any, Final

import asyncpg
from fleet import fleet
from past_days import make_past_days
from question import Result, ask, quantile, say
from structlog.testing import capture_logs

from ondot.flow.complete import Completer, Done
from ondot.flow.dispatch import Dispatcher
from ondot.flow.history.rewrite import Rewriting
from ondot.flow.lease import Leaser
from ondot.flow.submit import submit
from ondot.model.completion import decide
from ondot.model.ids import DEFAULT_TENANT, PoolNo, WorkerId
from ondot.model.job import JobSpec
from ondot.model.outcome import Succeeded
from ondot.model.target import FunctionTarget
from ondot.settings import load_settings
from ondot.store.database import Database, open_database
from ondot.store.day_rewrite import list_partitions
from ondot.store.workers import register_worker
from ondot.transports.polling import PollingTransport

KEPT_DAYS: Final = 30
YEAR_DAYS: Final = 365
SMALL: Final = 100
BEFORE_S: Final = 5.0
REWRITTEN: Final = "SELECT parent, name, at, took_s, removed FROM ondot.day_rewritten WHERE kept + removed > 0"
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


def year(quick: bool) -> Result:
    """Full: 1,000,000 executions a day, 12 days of full size past their retention among those of a year."""
    size, whole, days = (20_000, 2, 60) if quick else (1_000_000, 12, YEAR_DAYS)
    with fleet(max_locks_per_transaction="1024", max_wal_size="4GB") as ondot, capture_logs():
        return asyncio.run(_year(ondot.url, size, whole, days))


async def _year(url: str, size: int, whole: int, days: int) -> Result:
    connection = await asyncpg.connect(url)
    database = await open_database(load_settings(database_url=url, retention_days=KEPT_DAYS))
    try:
        await database.read_clock()
        await make_past_days(connection, days)
        today = await connection.fetchval("SELECT (ondot.clock() AT TIME ZONE 'UTC')::date")
        for age in range(1, KEPT_DAYS + 1):
            await connection.execute(FILL, today - timedelta(days=age), size, timeout=None)
        await connection.execute("VACUUM ANALYZE", timeout=None)
        kept_bytes = await connection.fetchval("SELECT pg_database_size(current_database())")
        say(f"{KEPT_DAYS} days of {size:,} kept: {kept_bytes / 1e9:.2f} GB")
        old = [today - timedelta(days=age) for age in range(KEPT_DAYS + 1, days + 1)]
        of_full_size = set(old[:: max(len(old) // whole, 1)][:whole])
        for day in old:
            await connection.execute(FILL, day, size if day in of_full_size else size // SMALL, timeout=None)
        tables = await _count_partitions(database)
        before = await _load(database, asyncio.create_task(asyncio.sleep(BEFORE_S)))
        rewriting = asyncio.create_task(_rewrite(database))
        during = await _load(database, rewriting)
        took_s, removed = await rewriting
        whole_s = sorted(took_s[day] for day in of_full_size)
        return {
            "question": "year",
            "executions_a_day": size,
            "kept_days": KEPT_DAYS,
            "kept_gb": round(kept_bytes / 1e9, 2),
            "bytes_an_execution": round(kept_bytes / KEPT_DAYS / size),
            "days_rewritten": len(took_s),
            "rows_removed": removed,
            "day_s": {"median": round(statistics.median(whole_s), 2), "longest": round(whole_s[-1], 2)},
            "tables": {"before": tables, "after": await _count_partitions(database)},
            "alone_ms": before,
            "during_ms": during,
        }
    finally:
        await database.close()
        await connection.close()


async def _count_partitions(database: Database) -> int:
    async with database.connection() as connection:
        return len(await list_partitions(connection, "history"))


async def _rewrite(database: Database) -> tuple[dict[date, float], int]:
    """Rewrite all that is due; returns the seconds of each day, over all tables, and how many rows went."""
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
    ask(year, full="hours", quick="some minutes")
