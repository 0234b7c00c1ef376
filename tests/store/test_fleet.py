"""Pools and the fleet as people see them: bounded however much waits, with the right oldest wait."""

import json
from datetime import timedelta
from typing import Any

import pytest

from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.store import pools
from ondot.store.pools import list_pools, read_pool_depths
from ondot.store.queries import load_queries
from tests.proves import proves
from tests.servers import connected
from tests.ui.test_plans import NEVER_SCANNED, SEED, _scans
from tests.world import DEFAULT_POOL, World, job, once

IN_LINE = """
INSERT INTO ondot.waiting (gate_id, pool_no, ready_at, execution_id, tenant_no, stage)
SELECT lpad(to_hex($1::integer), 32, '0')::uuid, $2::integer, ondot.clock() + make_interval(secs => $3),
       gen_random_uuid(), $4::integer, 0
FROM generate_series(1, $5::integer)
"""


@proves("E1", "O5", "C7")
async def test_no_statement_about_pools_or_workers_reads_a_whole_table(database_url: str) -> None:
    queries = load_queries("pools") | load_queries("fleet")
    statements: dict[str, list[Any]] = {
        "list_pools": [1, None, 1000],
        "read_pool_depths": [1, ["default"], 1000],
        "list_workers": [None, None, 100, 1],
        "find_hinted_pools": [["redis"], "redis", 30.0],
    }
    async with connected(database_url) as connection:
        await connection.execute(SEED)
        for name, arguments in statements.items():
            text = await connection.fetchval(
                f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {queries[name].text}", *arguments
            )
            plan = json.loads(text)[0]["Plan"]
            assert not {table for table, _ in _scans(plan) if table in (*NEVER_SCANNED, "waiting")}, name
            assert _most_rows(plan) <= 1000, f"{name} counts beyond its ceiling"
        assert await read_pool_depths(connection, DEFAULT_TENANT, ["default", "none"], 1000) == {"default": 1000}
        assert await read_pool_depths(connection, TenantNo(2), ["default"], 1000) == {"default": 0}


def _most_rows(node: dict[str, Any]) -> float:
    return max([float(node["Actual Rows"]), *(_most_rows(child) for child in node.get("Plans", ()))])


@proves("E1", "C7")
async def test_depth_and_oldest_wait_are_right_over_all_classes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "WAITING_COUNTED", 3)
    await world.submit(job("oldest", priority="low"))
    await world.advance(4)
    await world.submit_all([job("urgent", priority="high") for _ in range(5)])
    await world.submit(job("later", schedule=once(world.after(10))))
    async with world.database.connection() as connection:
        [row] = await list_pools(connection, DEFAULT_TENANT)
        assert (row.waiting, row.oldest_waiting_s) == (3, 4)
        assert row.oldest_waiting_at == world.now - timedelta(seconds=4)
        assert await read_pool_depths(connection, DEFAULT_TENANT, ["default"], 100) == {"default": 6}


@proves("E1", "E13")
async def test_executions_that_are_not_due_hide_none_that_are_held_back_now(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "WAITING_COUNTED", 5)
    mail = (await world.fetch("INSERT INTO ondot.pool (name) VALUES ('mail') RETURNING pool_no"))[0][0]
    async with connected(world.url) as connection:
        await connection.execute(
            "SET session_replication_role = replica"
        )  # this execution only waits in line, and was never submitted
        for gate, pool_no, in_s, tenant_no, count in (
            (1, DEFAULT_POOL, 10.0, 1, 20),
            (2, DEFAULT_POOL, 10.0, 1, 20),
            (2, DEFAULT_POOL, -1.0, 1, 3),
            (3, 99, -1.0, 2, 20),
            (4, DEFAULT_POOL, 0.0, 1, 1),
            (4, mail, -1.0, 1, 20),
            (5, mail, -1.0, 1, 1),
        ):
            await connection.execute(IN_LINE, gate, pool_no, in_s, tenant_no, count)
        assert [(row.name, row.gated) for row in await list_pools(connection, DEFAULT_TENANT)] == [
            ("default", 4),
            ("mail", 5),
        ]
