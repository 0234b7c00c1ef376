"""How fast a search is on a long history: ten typical queries, first pages and later ones, cold and warm.

History is filled by SQL, 30 days up to today, evenly: 70 % executions of 1,000 recurring jobs, 30 % one-time jobs of 50
names; one in a thousand is of a second tenant. 2 % failed, half have labels, all ended within minutes. `--rows` rows
(100 million; quick: 2 million). Each day is written into a table of its own without WAL, its indexes are built after
that, as the product has them, and it is vacuumed and attached; names are indexed as schedulers do. `--home DIR` keeps
the database there: days that are filled already are not filled again, so a run that was ended goes on. 100 million rows
need 31 GB of disk and half an hour on 2 cores.

A page has 50 rows and the budget of the API. *cold*: the first page after a restart of PostgreSQL, with no page of its
files in the memory of the system. *first*: p50 and p99 of the first page. *later*: of pages that go on from it, up to
five in a row, of the cold and the warm turns. *whole*: how many of the first pages were full or complete; the others
state how far they came (*days*: median). All in milliseconds. `--plans` prints the plan of a chunk of each query.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date, datetime, timedelta
from uuid import UUID

import asyncpg
from past_days import make_past_days
from question import Result, ask, say
from started import place
from structlog.testing import capture_logs

from ondot.embedded.server import EmbeddedPostgres
from ondot.flow.days import make_days
from ondot.flow.history.names import NameIndexes
from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.model.query import parse
from ondot.settings import load_settings
from ondot.store.connection import Connection
from ondot.store.database import Database, open_database
from ondot.store.migrate import migrate_up
from ondot.store.search import Found, search_executions

DAYS = 30
PAGE = 50
LATER = 5
OTHER = TenantNo(2)
SETTINGS = {
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "shared_buffers": "2GB",
    "effective_cache_size": "12GB",
    "maintenance_work_mem": "256MB",
    "max_wal_size": "8GB",
}
QUERIES: dict[str, tuple[TenantNo, str]] = {
    "newest": (DEFAULT_TENANT, ""),
    "failed": (DEFAULT_TENANT, "state:failed"),
    "failed of a team": (DEFAULT_TENANT, "state:failed label.team=t7"),
    "error text": (DEFAULT_TENANT, 'error:"number 77 timed"'),
    "a recurring job": (DEFAULT_TENANT, "job:recurring-77"),
    "one-time jobs of a name": (DEFAULT_TENANT, "job:once-7"),
    "a name that no job has": (DEFAULT_TENANT, "job:no-such-name"),
    "a label, last week": (DEFAULT_TENANT, "label.team=t7 since:7d"),
    "slow ones": (DEFAULT_TENANT, "took>9m50s"),
    "a payload field": (DEFAULT_TENANT, "payload.customer=777"),
    "failed, small tenant": (OTHER, "state:failed"),
    "a label, small tenant": (OTHER, "label.team=t7"),
}
ID_AT = """
CREATE OR REPLACE FUNCTION ondot.id_at(at timestamptz, n bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || lpad(to_hex(n % 4096), 3, '0')
            || '8' || lpad(to_hex(n * 2654435761 % 1152921504606846976), 15, '0'))::uuid
$$
"""
JOBS = """
INSERT INTO ondot.tenant (name, pools) VALUES ('other', '{*}');
INSERT INTO ondot.job (id, tenant_no, name, state, version, pool_no, labels, created_at, updated_at)
SELECT ondot.id_at(now() - interval '40 days' + n * interval '1 second', n), 1, 'recurring-' || n, 'ACTIVE', 1, 1, '{}',
       now(), now() FROM generate_series(1, 1000) n;
INSERT INTO ondot.job_version (job_id, version, tenant_no, spec, created_at)
SELECT id, 1, 1, json_build_object('name', name, 'target', json_build_object('kind', 'function', 'name', 'f'),
                                   'payload', json_build_object('customer', 1)), now() FROM ondot.job
"""
INSTANTS = """(SELECT n, 'DAY'::timestamptz + n * (interval '1 day' / ROWS) AS at
      FROM generate_series(1, ROWS - 1::bigint) n) s"""
FILL = {
    "job_once": """
SELECT ondot.id_at(at, n) AS id, CASE WHEN n % 1000 = 9 THEN 2 ELSE 1 END AS tenant_no, 'once-' || n % 50 AS name,
       1 AS pool_no, at AS fire_at, '{}'::jsonb AS labels,
       ('{"name": "once", "target": {"kind": "function", "name": "f"}, "payload": {"customer": ' || n % 100000
        || '}}')::json AS spec, NULL::uuid AS created_by
FROM INSTANTS WHERE n % 10 >= 7""",
    "history": """
SELECT ondot.id_at(at, n + 1) AS id,
       CASE WHEN n % 10 >= 7 THEN ondot.id_at(at, n) ELSE j.ids[1 + (n * 31) % 1000] END AS job_id,
       '019a1de9-9b23-7aac-b1ca-34bc80b2579e'::uuid AS worker_id, at AS fire_at, at AS ready_at, at AS started_at,
       at + (n * 7919 % 600000) * interval '1 millisecond' AS ended_at,
       CASE WHEN n % 1000 = 9 THEN 2 ELSE 1 END AS tenant_no, 1 AS job_version, 1 AS pool_no, 1 AS attempt_no,
       0 AS failures, 0 AS losses, 2::smallint AS class,
       CASE WHEN n % 50 = 9 THEN 'FAILED' ELSE 'SUCCEEDED' END AS state, 'fire' AS origin, NULL::text AS reason,
       NULL::json AS payload, NULL::json AS result,
       CASE WHEN n % 50 = 9
            THEN ('{"code": "x", "message": "call number ' || n / 50 % 5000 || ' timed out"}')::jsonb END AS error,
       NULL::uuid AS replay_of, NULL::integer AS step_no, NULL::integer AS item_no,
       CASE WHEN n % 2 = 1 THEN ('{"team": "t' || n / 50 % 100 || '"}')::jsonb END AS labels
FROM INSTANTS, (SELECT array_agg(id ORDER BY id) AS ids FROM ondot.job) j""",
}


def search(quick: bool) -> Result:
    rows = GIVEN.rows or (2_000_000 if quick else 100_000_000)
    if GIVEN.home:
        return _search(GIVEN.home.absolute(), rows, 5 if quick else 20)
    with place() as home:
        return _search(home, rows, 5 if quick else 20)


def _search(home: Path, rows: int, turns: int) -> Result:
    with serving(home) as url:
        began_s = time.monotonic()
        asyncio.run(_prepare(url))
        asyncio.run(_fill(url, rows))
        index_s = asyncio.run(_index_names(url))
        fill_s = time.monotonic() - began_s
        size = asyncio.run(_ask(url, "SELECT pg_database_size(current_database())"))
    result: Result = {"question": "search", "rows": rows, "fill_s": round(fill_s), "gb": round(size / 1e9, 1)}
    if index_s:
        result["index_of_a_day_s"] = round(statistics.median(index_s), 2)
    for name, (tenant_no, text) in QUERIES.items():
        forget(home)
        with serving(home) as url:
            result[name] = asyncio.run(_measure(url, tenant_no, text, turns))
        say(f"{name}: {result[name]}")
    return result


@contextmanager
def serving(home: Path) -> Iterator[str]:
    postgres = EmbeddedPostgres(home, settings=SETTINGS)
    with capture_logs():
        url = postgres.start()
    try:
        yield url
    finally:
        with capture_logs():
            postgres.stop()


def forget(home: Path) -> None:
    """Drop the files of a stopped server from the memory of the system, as far as it allows that."""
    for path in (home / "data").rglob("*"):
        with suppress(OSError):
            file = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)


async def _prepare(url: str) -> None:
    database = await open_database(load_settings(database_url=url))
    try:
        await migrate_up(database)
        await make_days(database)
    finally:
        await database.close()


async def _index_names(url: str) -> list[float]:
    """As schedulers do with closed days; returns the seconds of each."""
    database = await open_database(load_settings(database_url=url))
    took_s = []
    try:
        indexes, has_more = NameIndexes(database), 1
        while has_more:
            began_s = time.perf_counter()
            has_more = await indexes.one_pass()
            took_s.append(time.perf_counter() - began_s)
    finally:
        await database.close()
    return took_s[:-1]


async def _connect(url: str) -> asyncpg.Connection:
    return await asyncpg.connect(url, server_settings={"timezone": "UTC", "statement_timeout": "0", "jit": "off"})


async def _ask(url: str, sql: str) -> int:
    connection = await _connect(url)
    try:
        return int(await connection.fetchval(sql))
    finally:
        await connection.close()


async def _fill(url: str, rows: int) -> None:
    """Two days at a time: one for each core of a small machine."""
    connection = await _connect(url)
    try:
        await connection.execute(ID_AT)
        if not await connection.fetchval("SELECT EXISTS (SELECT FROM ondot.job)"):
            await make_past_days(connection, DAYS)
            await connection.execute(JOBS)
            await connection.execute("ANALYZE ondot.job, ondot.job_version")
        first_day = await connection.fetchval("SELECT first_day FROM ondot.day_table WHERE parent = 'history'")
        missing = []
        for day in (first_day + timedelta(days=n) for n in range(DAYS)):
            for parent in FILL:
                if not await connection.fetchval(f"SELECT EXISTS (SELECT FROM {_name(parent, day)})"):
                    missing.append((parent, day))
    finally:
        await connection.close()
    left = iter(missing)
    attaching = asyncio.Lock()

    async def work() -> None:
        connection = await _connect(url)
        try:
            for parent, day in left:
                await _fill_day(connection, parent, day, rows // DAYS, attaching)
                say(f"filled {parent} of {day}")
        finally:
            await connection.close()

    await asyncio.gather(work(), work())


def _name(parent: str, day: date) -> str:
    return f"ondot.{parent}_{day:%Y%m%d}"


async def _fill_day(connection: asyncpg.Connection, parent: str, day: date, rows: int, attaching: asyncio.Lock) -> None:
    own, loaded = _name(parent, day), f"{parent}_load_{day:%Y%m%d}"
    bounds = [await connection.fetchval("SELECT ondot.day_starts($1::date)", d) for d in (day, day + timedelta(days=1))]
    indexes = await connection.fetch(
        "SELECT pg_get_indexdef(indexrelid) AS text, indisprimary FROM pg_index WHERE indrelid = $1::text::regclass",
        own,
    )
    await connection.execute(f"DROP TABLE IF EXISTS ondot.{loaded}")
    async with connection.transaction():
        # A table that is new in its transaction is written without WAL; the check spares the attach a scan.
        await connection.execute(f"CREATE TABLE ondot.{loaded} (LIKE ondot.{parent} INCLUDING DEFAULTS)")
        await connection.execute(
            f"ALTER TABLE ondot.{loaded} ADD CHECK (id >= '{bounds[0]}' AND id < '{bounds[1]}' AND id IS NOT NULL)"
        )
        sql = FILL[parent].replace("INSTANTS", INSTANTS).replace("DAY", f"{day}T00:00:00Z").replace("ROWS", str(rows))
        await connection.execute(f"INSERT INTO ondot.{loaded} {sql}")
        await connection.execute(f"ALTER TABLE ondot.{loaded} ADD PRIMARY KEY (id)")
        for index in indexes:
            if not index["indisprimary"]:
                text = index["text"].split(" ON ", 1)[1].split(" ", 1)[1]
                await connection.execute(f"CREATE INDEX ON ondot.{loaded} {text}")
    await connection.execute(f"VACUUM (ANALYZE) ondot.{loaded}")
    async with attaching, connection.transaction():
        await connection.execute(f"ALTER TABLE ondot.{parent} DETACH PARTITION {own}")
        await connection.execute(f"DROP TABLE {own}")
        await connection.execute(f"ALTER TABLE ondot.{loaded} RENAME TO {own.removeprefix('ondot.')}")
        await connection.execute(
            f"ALTER TABLE ondot.{parent} ATTACH PARTITION {own} FOR VALUES FROM ('{bounds[0]}') TO ('{bounds[1]}')"
        )


async def _measure(url: str, tenant_no: TenantNo, text: str, turns: int) -> Result:
    database = await open_database(load_settings(database_url=url))
    try:
        return await _measure_on(database, tenant_no, text, turns)
    finally:
        await database.close()


async def _measure_on(database: Database, tenant_no: TenantNo, text: str, turns: int) -> Result:
    first_ms: list[float] = []
    later_ms: list[float] = []
    back: list[float] = []
    whole = 0
    query = parse(text)
    async with database.connection() as connection:

        async def page(after: UUID | None, into: list[float]) -> Found:
            began_s = time.perf_counter()
            found = await search_executions(connection, tenant_no, query, after, PAGE)
            into.append((time.perf_counter() - began_s) * 1000)
            return found

        now: datetime = await connection.fetchval("SELECT ondot.clock()")
        for _ in range(turns + 1):
            found = await page(None, first_ms)
            whole += found.searched_through is None
            back.append(DAYS if found.searched_through is None else (now - found.searched_through) / timedelta(days=1))
            for _ in range(LATER):
                if found.next is None:
                    break
                found = await page(found.next, later_ms)
        if GIVEN.plans:
            await _show_plan(connection, tenant_no, text)
    cold_ms, *warm_ms = first_ms
    return {
        "cold": round(cold_ms, 1),
        "first_p50": round(statistics.median(warm_ms), 1),
        "first_p99": round(_p99(warm_ms), 1),
        "later_p50": round(statistics.median(later_ms), 1) if later_ms else 0,
        "later_p99": round(_p99(later_ms), 1) if later_ms else 0,
        "whole": f"{whole} of {turns + 1}",
        "days": round(statistics.median(back), 1),
    }


async def _show_plan(connection: Connection, tenant_no: TenantNo, text: str) -> None:
    from ondot.store.search import start_walk

    walk = await start_walk(connection, tenant_no, parse(text), None, None)
    from_id = walk.chunk_start()
    arguments = [*walk.bounds(from_id, walk.before, PAGE + 1), *walk.parameters]
    plan = await connection.fetch(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) {walk.text}", *arguments)
    say("\n".join([text, *(row[0] for row in plan)]))


def _p99(values: list[float]) -> float:
    return sorted(values)[max(0, -(-len(values) * 99 // 100) - 1)]


def _read_arguments() -> argparse.Namespace:
    """Those of this benchmark alone; `ask` reads the others."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--plans", action="store_true")
    given, sys.argv[1:] = parser.parse_known_args()
    return given


GIVEN = _read_arguments() if __name__ == "__main__" else argparse.Namespace(rows=None, home=None, plans=False)


if __name__ == "__main__":
    ask(search, full="100 million rows", quick="2 million rows")
