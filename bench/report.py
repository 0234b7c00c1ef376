"""How long does the report of a night take on a long history (O10)?

A day of executions is written into history by SQL, those of 500 recurring jobs and as many one-time ones, 1 in 500
failed with a dead letter, 1 in 100 retried; and as many again in the two weeks before. Then `make_report` is called for
the last 24 hours, once cold and then several times: *first_ms*, *p50_ms*, *worst_ms*. *covered*: the share of the
window whose successes were summed within the budget of time (failures, letters, attempts and skips always are).
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import asyncio
import statistics
import time
from datetime import timedelta

from fleet import Fleet, fleet
from question import Result, ask, say

from ondot.flow.report.make import make_report
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.report.window import parse_window
from ondot.settings import load_settings
from ondot.store.database import Database, open_database

JOBS = 500
AT_ONCE = 250_000

FILL_JOBS = """
INSERT INTO ondot.job (id, tenant_no, name, state, version, pool_no, labels, created_at, updated_at)
SELECT md5('job' || n)::uuid, 1, 'job-' || n, 'ACTIVE', 1, 1, '{}', ondot.clock(), ondot.clock()
FROM generate_series(0, $1::integer - 1) AS n
"""
FILL = """
INSERT INTO ondot.history (id, job_id, fire_at, ready_at, started_at, ended_at, tenant_no, job_version, pool_no,
                           attempt_no, failures, losses, class, state, origin, reason, error, result)
SELECT x.id, md5(CASE WHEN n % 2 = 0 THEN 'job' || n / 2 % $4::integer ELSE 'once' || n END)::uuid, x.at, x.at,
       x.at + make_interval(secs => CASE WHEN n % 97 = 0 THEN 90 ELSE 0.01 END),
       x.at + make_interval(secs => 1.5 + n % 7), 1, 1, 1, 1 + (n % 100 = 0)::integer, 0, 0, 2,
       CASE WHEN n % 500 = 0 THEN 'FAILED' ELSE 'SUCCEEDED' END, 'fire',
       CASE WHEN n % 500 = 0 THEN 'no retries are left' END,
       CASE WHEN n % 500 = 0
            THEN jsonb_build_object('code', 'broken', 'message', 'it broke ' || n % 10, 'fingerprint', n % 10) END,
       '"some result"'
FROM generate_series($1::bigint, $2::bigint) AS n
CROSS JOIN LATERAL (
    SELECT ondot.clock() - $3::interval * ((n - $1)::float8 / greatest($2 - $1, 1)) - $5::interval AS at
) t
CROSS JOIN LATERAL (
    SELECT t.at, (lpad(to_hex((extract(epoch FROM t.at) * 1000)::bigint), 12, '0') || '70008000'
                  || lpad(to_hex(n), 12, '0'))::uuid AS id
) x
"""
LETTERS = """
INSERT INTO ondot.dead_letter (execution_id, tenant_no, job_id, job_version, failed_at, reason, error)
SELECT id, 1, job_id, 1, ended_at, reason, error FROM ondot.history WHERE tenant_no = 1 AND state <> 'SUCCEEDED'
"""
ATTEMPTS = """
INSERT INTO ondot.attempt (execution_id, attempt_no, tenant_no, outcome, started_at, ended_at, error)
SELECT id, 1, 1, 'FAILED', started_at, ended_at, '{"message": "it broke"}' FROM ondot.history WHERE attempt_no > 1
"""


def report(quick: bool) -> Result:
    with fleet() as started:
        return asyncio.run(_measure(started, 200_000 if quick else 3_000_000))


async def _measure(started: Fleet, rows: int) -> Result:
    database = await open_database(load_settings(database_url=started.url, statement_timeout_s=600), connections=2)
    await database.read_clock()
    await _fill(database, rows)
    window = parse_window("24h", None, None, database.clock.now())
    took_ms: list[float] = []
    found = None
    for _ in range(9):
        started_s = time.monotonic()
        found = await make_report(database, DEFAULT_TENANT, window, is_whole=True)
        took_ms.append((time.monotonic() - started_s) * 1000)
    assert found is not None
    covered = 1.0
    if found.ran.from_at is not None:
        covered = (window.until - found.ran.from_at) / (window.until - window.since)
    await database.close()
    return {
        "question": "the report of a night",
        "rows": rows,
        "first_ms": round(took_ms[0]),
        "p50_ms": round(statistics.median(took_ms[1:])),
        "worst_ms": round(max(took_ms)),
        "covered": round(covered, 3),
        "findings": len(found.findings),
    }


async def _fill(database: Database, rows: int) -> None:
    async with database.connection() as connection:
        await connection.execute(FILL_JOBS, JOBS)
        parts = [(timedelta(days=1), timedelta(), 0), (timedelta(days=14), timedelta(days=1), rows)]
        for span, back, first in parts:
            for number in range(0, rows, AT_ONCE):
                share = span * (min(AT_ONCE, rows) / rows)
                last = first + min(number + AT_ONCE, rows) - 1
                before = back + span * (number / rows)
                await connection.execute(FILL, first + number, last, share, JOBS, before, timeout=300)
        say(f"{2 * rows:,} executions are in history")
        await connection.execute(LETTERS, timeout=300)
        await connection.execute(ATTEMPTS, timeout=300)
        await connection.execute("ANALYZE ondot.history", timeout=300)


if __name__ == "__main__":
    ask(report, full="3,000,000 executions a day", quick="200,000")
