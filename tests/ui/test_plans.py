"""The statements of the page run each second: on tables of 20,000 rows none of them scans a table."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from ondot.model.ids import first_id_at
from ondot.store.queries import load_queries
from tests.proves import proves
from tests.servers import connected

NEVER_SCANNED: Final = ("job", "job_version", "execution", "ready", "timer", "history", "attempt", "dead_letter")

SEED: Final = """
SET session_replication_role = replica;  -- seeded rows were never submitted: the guard would refuse them
CREATE TEMP TABLE seed AS
SELECT n, (left(ondot.first_id_at(at)::text, 24) || lpad(to_hex(n), 12, '0'))::uuid AS id, at
FROM (SELECT n, now() + (n - 20000) * interval '90 ms' AS at FROM generate_series(1, 20000) AS n) n;
INSERT INTO ondot.timer (job_id, next_fire_at, version, job_version, tenant_no, partition_no)
SELECT id, at + interval '1 hour', 1, 1, 1, n % 64 FROM seed;
INSERT INTO ondot.execution (id, job_id, fire_at, ready_at, tenant_no, job_version, pool_no, class, state, origin)
SELECT id, id, at, at, 1, 1, 1, 2, CASE n % 100 WHEN 0 THEN 'RUNNING' WHEN 1 THEN 'RETRYING' ELSE 'PENDING' END, 'fire'
FROM seed;
INSERT INTO ondot.lease (id, worker_id, leased_at, execution_ids, attempt_nos)
SELECT gen_random_uuid(), gen_random_uuid(), now(), array_agg(id), array_agg(1) FROM seed WHERE n % 100 = 0;
INSERT INTO ondot.ready (pool_no, class, tenant_no, ready_at, execution_id)
SELECT 1, 2, 1, at + (n % 2) * interval '40 min', id FROM seed WHERE n % 100 > 0;
INSERT INTO ondot.history (id, job_id, fire_at, ready_at, ended_at, tenant_no, job_version, pool_no, attempt_no,
    failures, losses, class, state, origin)
SELECT id, id, at, at, at, 1, 1, 1, 1, 0, 0, 2, 'SUCCEEDED', 'fire' FROM seed;
INSERT INTO ondot.attempt (execution_id, attempt_no, tenant_no, outcome, ended_at)
SELECT id, 1, 1, 'FAILED', at FROM seed;
INSERT INTO ondot.dead_letter (execution_id, tenant_no, job_id, job_version, failed_at)
SELECT id, 1, id, 1, at FROM seed;
INSERT INTO ondot.job (id, tenant_no, name, state, version, pool_no, labels, created_at, updated_at, state_reason)
SELECT id, 1, 'job ' || n, CASE n % 1000 WHEN 0 THEN 'PAUSED' ELSE 'ACTIVE' END, 1, 1, '{}', at, at,
    CASE n % 1000 WHEN 0 THEN '5 failures in a row' END
FROM seed;
UPDATE ondot.timer SET next_fire_at = 'infinity' WHERE job_id IN (SELECT id FROM ondot.job WHERE state = 'PAUSED');
INSERT INTO ondot.job_version (job_id, version, tenant_no, spec, created_at) SELECT id, 1, 1, '{}', at FROM seed;
INSERT INTO ondot.skipped (job_id, from_at, to_at, tenant_no, reason, count, at)
SELECT id, at, at, 1, 'misfire', 1, at FROM seed;
ANALYZE;
"""


@proves("O5")
async def test_no_statement_of_the_page_scans_a_table(database_url: str) -> None:
    window = first_id_at(datetime.now(UTC) - timedelta(minutes=10))
    statements: dict[str, list[Any]] = {
        "pools_at_work": [1, 1000],
        "running_now": [1, 8, 1000],
        "coming_fires": [1, 200, 8],
        "latest_executions": [1, 20, 1000, window],
        "recent_states": [1, window, 1000],
        "latest_dead_letters": [1, 4, 1000],
        "paused_by_itself": [1, 4, 200],
        "version_made_at": [1, first_id_at(datetime.now(UTC)), 1],
    }
    queries = load_queries("overview")
    async with connected(database_url) as connection:
        await connection.execute(SEED)
        for name, arguments in statements.items():
            text = await connection.fetchval(
                f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {queries[name].text}", *arguments
            )
            read = {table: rows for table, rows in _scans(json.loads(text)[0]["Plan"]) if table in NEVER_SCANNED}
            assert not read, f"{name} reads all of {read}"


@proves("O5")
async def test_recent_skips_are_found_without_a_scan_of_all_skips(database_url: str) -> None:
    async with connected(database_url) as connection:
        await connection.execute(SEED)
        text = await connection.fetchval(
            f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {load_queries('overview')['recent_skips'].text}", 1, 20.0
        )
    assert not list(_scans(json.loads(text)[0]["Plan"]))


def _scans(node: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Sequential scans: the table, without the day of its partition, and how many rows it returned."""
    if node["Node Type"] == "Seq Scan" and node["Actual Rows"]:
        yield node["Relation Name"].partition("_2")[0].removesuffix("_past").removesuffix("_ahead"), node["Actual Rows"]
    for child in node.get("Plans", ()):
        yield from _scans(child)


@proves("O5")
@pytest.mark.parametrize("name", ["pools_at_work", "running_now", "coming_fires", "latest_executions"])
def test_every_statement_of_the_page_names_its_index(name: str) -> None:
    assert load_queries("overview")[name].header["index"]
