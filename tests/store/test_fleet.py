"""Pools and the fleet as they are read for people: bounded however much waits, and right about what is oldest."""

import json
from datetime import timedelta
from typing import Any

import pytest

from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.store import pools
from ondot.store.pools import list_pools, pool_depths
from ondot.store.queries import load_queries
from tests.proves import proves
from tests.servers import connected
from tests.ui.test_plans import NEVER_SCANNED, SEED, _scans
from tests.world import World, job, once


@proves("E1", "O5", "C7")
async def test_no_reading_of_pools_or_workers_reads_a_whole_table(database_url: str) -> None:
    queries = load_queries("pools") | load_queries("fleet")
    statements: dict[str, list[Any]] = {
        "list_pools": [1, None, 1000],
        "pool_depths": [1, ["default"], 1000],
        "fleet_workers": [1, None, None, 100],
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
        assert await pool_depths(connection, DEFAULT_TENANT, ["default", "none"], 1000) == {"default": 1000}
        assert await pool_depths(connection, TenantNo(2), ["default"], 1000) == {}


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
        assert await pool_depths(connection, DEFAULT_TENANT, ["default"], 100) == {"default": 6}
