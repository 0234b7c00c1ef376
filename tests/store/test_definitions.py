"""The page of jobs on 100,000 of them: each statement reads a page, not the table."""

import json
from collections.abc import Iterator
from typing import Any, Final

from ondot.model.ids import DEFAULT_TENANT
from ondot.store.day_bounds import LAST_ID
from ondot.store.definitions import find_latest_runs, list_definitions, list_definitions_by_name
from ondot.store.newest import NO_ID, read_kept
from ondot.store.queries import load_queries
from tests.proves import proves
from tests.servers import connected

PAGE, RUNS = 51, 20
READ_AT_MOST: Final = 3_000
"""Rows of one table by one statement: the page, its runs, and some that the planner reads besides."""

SEED: Final = """
SET session_replication_role = replica;  -- seeded rows were never submitted: the guard would refuse them
CREATE TEMP TABLE seed AS
SELECT n, (left(ondot.first_id_at(at)::text, 24) || lpad(to_hex(n), 12, '0'))::uuid AS id, at
FROM (SELECT n, now() - (100000 - n) * interval '20 ms' AS at FROM generate_series(1, 100000) AS n) n;
INSERT INTO ondot.job (id, tenant_no, name, state, version, pool_no, labels, created_at, updated_at)
SELECT id, 1, 'job ' || lpad((100000 - n)::text, 6, '0'), 'ACTIVE', 1, 1, '{}', at, at FROM seed;
INSERT INTO ondot.job_version (job_id, version, tenant_no, spec, created_at)
SELECT id, 1, 1, '{"name":"x","target":{"kind":"function","name":"f"},"schedule":{"when":{"kind":"interval",'
    '"every_s":60.0,"anchor_at":"2026-01-01T00:00:00Z"}}}', at FROM seed;
INSERT INTO ondot.timer (job_id, next_fire_at, version, job_version, tenant_no, partition_no)
SELECT id, at + interval '1 hour', 1, 1, 1, n % 64 FROM seed;
INSERT INTO ondot.history (id, job_id, fire_at, ready_at, started_at, ended_at, tenant_no, job_version, pool_no,
    attempt_no, failures, losses, class, state, origin)
SELECT (left(s.id::text, 24) || lpad(to_hex(1000000 + s.n * 30 + r), 12, '0'))::uuid, s.id, s.at - r * interval '1 min',
    s.at, s.at, s.at, 1, 1, 1, 1, 0, 0, 2, 'SUCCEEDED', 'fire'
FROM seed s, generate_series(0, 29) r WHERE s.n % 50 = 0 OR s.n > 99940;
-- One job has a backlog: its first run goes on, the others wait behind it.
INSERT INTO ondot.execution (id, job_id, fire_at, ready_at, started_at, tenant_no, job_version, pool_no, attempt_no,
    class, state, origin)
SELECT (left(s.id::text, 24) || lpad(to_hex(9000000 + r), 12, '0'))::uuid, s.id, s.at + r * interval '1 s', s.at,
    CASE r WHEN 0 THEN s.at END, 1, 1, 1, CASE r WHEN 0 THEN 1 ELSE 0 END, 2,
    CASE r WHEN 0 THEN 'RUNNING' ELSE 'PENDING' END, 'fire'
FROM seed s, generate_series(0, 19999) r WHERE s.n = 100000;
ANALYZE;
"""


@proves("O5")
async def test_a_page_of_100_000_jobs_reads_the_rows_of_a_page(database_url: str) -> None:
    queries = load_queries("definitions")
    async with connected(database_url) as connection:
        await connection.execute(SEED)
        newest = await list_definitions(connection, DEFAULT_TENANT, limit=PAGE)
        by_name = await list_definitions_by_name(connection, DEFAULT_TENANT, after=("", NO_ID), limit=PAGE)
        runs = await find_latest_runs(connection, DEFAULT_TENANT, newest, RUNS)
        from_id, before_id = next((await read_kept(connection)).windows())
        statements: dict[str, list[Any]] = {
            "list_definitions": [DEFAULT_TENANT, LAST_ID, PAGE, None],
            "list_definitions_by_name": [DEFAULT_TENANT, "", NO_ID, None, PAGE],
            "latest_runs": [DEFAULT_TENANT, [job.id for job in newest], from_id, before_id, RUNS],
        }
        read: dict[str, dict[str, float]] = {}
        for name, arguments in statements.items():
            text = await connection.fetchval(
                f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {queries[name].text}", *arguments
            )
            rows: dict[str, float] = {}
            for table, count in _read(json.loads(text)[0]["Plan"]):
                rows[table] = rows.get(table, 0) + count
            read[name] = rows
    assert (len(newest), len(by_name), by_name[0].id) == (PAGE, PAGE, newest[0].id)
    assert len({job.id for job in by_name} & {job.id for job in newest}) == PAGE
    behind = runs[newest[0].id]
    assert (behind[0].state.value, len(behind), behind[0].ended_at) == ("RUNNING", RUNS, None)
    assert [len(runs[job.id]) for job in newest] == [RUNS] * PAGE
    assert not {name: rows for name, rows in read.items() if max(rows.values()) > READ_AT_MOST}, read


def _read(node: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The tables of a plan, and how many rows were read of each, those that a filter left out included."""
    if "Relation Name" in node:
        count = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        yield node["Relation Name"].partition("_2")[0], count
    for child in node.get("Plans", ()):
        yield from _read(child)
