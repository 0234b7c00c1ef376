"""How fast a search is on a long history: ten typical queries, first pages and later ones.

History is filled by SQL, 30 days up to now, evenly: 70 % executions of 1,000 recurring jobs, 30 % one-time jobs of 50
names. 2 % failed, half have labels, all ended within minutes. `ONDOT_BENCH_ROWS` rows (100 million; quick: 5 million).
A page has 50 rows and the budget of the API. *first*: p50 and p99 of the first page in milliseconds. *later*: of pages
that go on from it, up to five in a row. *pages*: how many of the first pages were full or complete; the others say how
far they came (*days*: median). The server is the embedded one, `fsync` and `synchronous_commit` are on; its cache is
warm as far as the memory goes.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import asyncio
import os
import statistics
import time
from datetime import timedelta

import asyncpg
from fleet import fleet
from past_days import make_past_days
from question import Result, ask, say
from structlog.testing import capture_logs

from ondot.model.ids import DEFAULT_TENANT
from ondot.model.query import parse
from ondot.settings import load_settings
from ondot.store.database import Database, open_database
from ondot.store.search import Found, search_executions

DAYS = 30
ROWS = os.environ.pop("ONDOT_BENCH_ROWS", None)
"""Removed from the environment: ondot rejects ONDOT_ variables that it does not know."""
PAGE = 50
LATER = 5
QUERIES = {
    "newest": "",
    "failed": "state:failed",
    "failed of a team": "state:failed label.team=t7",
    "error text": 'error:"number 77 timed"',
    "a recurring job": "job:recurring-77",
    "one-time jobs of a name": "job:once-7",
    "a rare name": "job:no-such-name",
    "label": "label.team=t7 since:7d",
    "slow": "took>9m50s",
    "payload": "payload.customer=777",
}
JOBS = """
INSERT INTO ondot.job (id, tenant_no, name, state, version, pool_no, labels, created_at, updated_at)
SELECT ondot.id_at(now() - interval '40 days' + n * interval '1 second', n), 1, 'recurring-' || n, 'ACTIVE', 1, 1, '{}',
       now(), now() FROM generate_series(1, 1000) n;
INSERT INTO ondot.job_version (job_id, version, tenant_no, spec, created_at)
SELECT id, 1, 1, json_build_object('name', name, 'target', json_build_object('kind', 'function', 'name', 'f'),
                                   'payload', json_build_object('customer', 1)), now() FROM ondot.job;
"""
ID_AT = """
CREATE FUNCTION ondot.id_at(at timestamptz, n bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex(floor(extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || lpad(to_hex(n % 4096), 3, '0')
            || '8' || left(md5(n::text || at::text), 15))::uuid
$$
"""
ONCE = """
INSERT INTO ondot.job_once (id, tenant_no, name, pool_no, fire_at, labels, spec)
SELECT ondot.id_at(at, n), 1, 'once-' || n % 50, 1, at, '{}',
       json_build_object('name', 'once', 'target', json_build_object('kind', 'function', 'name', 'f'), 'payload',
                         json_build_object('customer', n % 100000))
FROM (SELECT n, $1::timestamptz + n * (interval '1 day' / $2::bigint) AS at FROM generate_series(1, $2) n) s
WHERE n % 10 >= 7
"""
HISTORY = """
INSERT INTO ondot.history (id, job_id, worker_id, fire_at, ready_at, started_at, ended_at, tenant_no, job_version,
                           pool_no, attempt_no, failures, losses, class, state, origin, error, labels)
SELECT ondot.id_at(at, n + 1), CASE WHEN n % 10 >= 7 THEN ondot.id_at(at, n) ELSE j.id END, NULL, at, at, at,
       at + (n * 7919 % 600000) * interval '1 millisecond', 1, 1, 1, 1, 0, 0, 2,
       CASE WHEN n % 50 = 3 THEN 'FAILED' ELSE 'SUCCEEDED' END, 'fire',
       CASE WHEN n % 50 = 3
            THEN jsonb_build_object('code', 'x', 'message', 'call number ' || n % 5000 || ' timed out') END,
       CASE WHEN n % 2 = 1 THEN jsonb_build_object('team', 't' || n % 100) END
FROM (SELECT n, $1::timestamptz + n * (interval '1 day' / $2::bigint) AS at FROM generate_series(1, $2) n) s
LEFT JOIN (SELECT id, row_number() OVER (ORDER BY id) - 1 AS no FROM ondot.job) j ON j.no = (n * 31) % 1000
ORDER BY n
"""


def search(quick: bool) -> Result:
    rows = int(ROWS or (5_000_000 if quick else 100_000_000))
    with fleet() as ondot, capture_logs():
        return asyncio.run(_search(ondot.url, rows, 5 if quick else 20))


async def _search(url: str, rows: int, turns: int) -> Result:
    await _fill(url, rows)
    database = await open_database(load_settings(database_url=url))
    result: Result = {"question": "search", "rows": rows}
    try:
        for name, text in QUERIES.items():
            result[name] = await _measure(database, text, turns)
            say(f"{name}: {result[name]}")
    finally:
        await database.close()
    return result


async def _fill(url: str, rows: int) -> None:
    connection = await asyncpg.connect(url, server_settings={"timezone": "UTC", "statement_timeout": "0"})
    try:
        today = await connection.fetchval("SELECT date_trunc('day', now())")
        await make_past_days(connection, DAYS)
        await connection.execute(ID_AT)
        await connection.execute(JOBS)
        for ago in range(DAYS, 0, -1):
            for sql in (ONCE, HISTORY):
                await connection.execute(sql, today - timedelta(days=ago), rows // DAYS)
            say(f"filled {DAYS - ago + 1} of {DAYS} days")
        await connection.execute("ANALYZE ondot.history; ANALYZE ondot.job_once; ANALYZE ondot.job, ondot.job_version")
    finally:
        await connection.close()


async def _measure(database: Database, text: str, turns: int) -> Result:
    first_ms: list[float] = []
    later_ms: list[float] = []
    back: list[float] = []
    whole = 0
    query = parse(text)
    async with database.connection() as connection:

        async def page(after: object, into: list[float]) -> Found:
            began_s = time.perf_counter()
            found = await search_executions(connection, DEFAULT_TENANT, query, after, PAGE)  # type: ignore[arg-type]
            into.append((time.perf_counter() - began_s) * 1000)
            return found

        now = await connection.fetchval("SELECT ondot.clock()")
        for _ in range(turns):
            found = await page(None, first_ms)
            whole += found.searched_through is None
            back.append(DAYS if found.searched_through is None else (now - found.searched_through) / timedelta(days=1))
            for _ in range(LATER):
                if found.next is None:
                    break
                found = await page(found.next, later_ms)
    return {
        "first_p50_ms": round(statistics.median(first_ms), 1),
        "first_p99_ms": round(_p99(first_ms), 1),
        "later_p50_ms": round(statistics.median(later_ms), 1) if later_ms else 0,
        "later_p99_ms": round(_p99(later_ms), 1) if later_ms else 0,
        "whole": f"{whole} of {turns}",
        "days": round(statistics.median(back), 1),
    }


def _p99(values: list[float]) -> float:
    return sorted(values)[max(0, -(-len(values) * 99 // 100) - 1)]


if __name__ == "__main__":
    ask(search, full="100 million rows", quick="5 million rows")
