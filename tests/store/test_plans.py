"""The hot statements find their rows by the index that their header names, with any statistics.

Right after a burst the planner still believes that the tables are empty: a statement that then sorts or scans the whole
queue for every batch is the classic collapse of a queue in PostgreSQL. So each is planned on 20,000 rows with the
statistics of empty tables, with fresh ones, and as a generic plan.
"""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID, uuid4

import pytest

from ondot.model.ids import EPOCH, first_id_at
from ondot.store.connection import Connection
from ondot.store.queries import Query, load_queries
from tests.proves import proves
from tests.servers import Server, connected, new_database

ROWS: Final = 20_000
BATCH: Final = 100
WORKER: Final = UUID(int=7)
NOTHING: Final = UUID(int=0)
NEVER_SCANNED: Final = ("execution", "ready", "timer", "history", "job_once", "job_version", "job", "owed", "waiting")

SEED: Final = """
SET session_replication_role = replica;  -- what is seeded was never submitted: the guard would refuse it
CREATE TEMP TABLE seed AS
SELECT n, (left(ondot.first_id_at(now())::text, 24) || lpad(to_hex(n), 12, '0'))::uuid AS id,
       (n % 64)::smallint AS part, now() - interval '1 hour' + n * interval '180 ms' AS at
FROM generate_series(1, {rows}) AS n;
INSERT INTO ondot.worker (id, state, host, pid, release, pool_nos, slots, started_at, beat_at)
VALUES ('{worker}', 'ALIVE', 'here', 1, '0', '{{1}}', 100, now(), now());
INSERT INTO ondot.job (id, tenant_no, name, state, version, pool_no, labels, created_at, updated_at)
SELECT id, 1, 'seed', 'ACTIVE', 1, 1, '{{}}', at, at FROM seed;
INSERT INTO ondot.job_version (job_id, version, tenant_no, spec, created_at) SELECT id, 1, 1, '{{}}', at FROM seed;
INSERT INTO ondot.job_once (id, tenant_no, name, pool_no, fire_at, labels, spec)
SELECT id, 1, 'seed', 1, at, '{{}}', '{{}}' FROM seed;
INSERT INTO ondot.timer (job_id, next_fire_at, version, job_version, tenant_no, partition_no)
SELECT id, at, 1, 1, 1, part FROM seed;
INSERT INTO ondot.execution (id, job_id, fire_at, ready_at, tenant_no, job_version, pool_no, class, state, origin,
    worker_id, attempt_no)
SELECT id, id, at, at, 1, 1, 1, 2, CASE WHEN n % 2 = 0 THEN 'PENDING' ELSE 'RUNNING' END, 'fire', '{worker}', n % 2
FROM seed;
INSERT INTO ondot.ready (pool_no, class, tenant_no, ready_at, execution_id)
SELECT 1, 2, 1, at, id FROM seed WHERE n % 2 = 0;
INSERT INTO ondot.history (id, job_id, fire_at, ready_at, ended_at, tenant_no, job_version, pool_no, attempt_no,
    failures, losses, class, state, origin)
SELECT id, id, at, at, at, 1, 1, 1, 1, 0, 0, 2, 'SUCCEEDED', 'fire' FROM seed;
INSERT INTO ondot.owed (id, job_id, from_at, to_at, turn_at, tenant_no, job_version, concurrency, partition_no,
    newest_first, origin)
SELECT id, id, at, at, at, 1, 1, 1, part, false, 'fire' FROM seed;
INSERT INTO ondot.gate (id, tenant_no, kind, name) SELECT id, 1, 'concurrency', 'seed' FROM seed;
INSERT INTO ondot.line (gate_id, pool_no, tenant_no, is_rate, look_at) SELECT id, 1, 1, false, at FROM seed;
INSERT INTO ondot.gated (execution_id, ready_at, tenant_no, pool_no, class, is_fire, stages)
SELECT id, at, 1, 1, 2, true, '[]' FROM seed;
INSERT INTO ondot.waiting (gate_id, pool_no, ready_at, execution_id, tenant_no, stage)
SELECT id, 1, at, id, 1, 0 FROM seed;
INSERT INTO ondot.slot (gate_id, execution_id, tenant_no, until_end, held_at) SELECT id, id, 1, false, at FROM seed;
SET session_replication_role = origin;
"""


EMPTIED: Final = """
SET session_replication_role = replica;
CREATE TEMP TABLE kept AS TABLE ondot.execution;
DELETE FROM ondot.execution;
ANALYZE ondot.execution;
INSERT INTO ondot.execution SELECT * FROM kept;
SET session_replication_role = origin;
"""


def seeded_ids(first: int, count: int) -> list[UUID]:
    """Some of the seeded ids as arguments; a plan does not depend on whether they exist."""
    start = first_id_at(datetime.now(UTC)).int
    return [UUID(int=start + first + n) for n in range(count)]


def arguments(name: str) -> list[Any]:
    now = datetime.now(UTC)
    ids = seeded_ids(1, BATCH)
    lanes: list[Any] = [[1] * 6, list(range(6)), [1] * 6, [EPOCH] * 6]
    each: dict[str, list[Any]] = {
        "survey_lanes": [*lanes, [1], [1] * 6, list(range(6)), [1] * 6, [2**31 - 1] * 6, 1000, None],
        "lease_executions": [uuid4(), WORKER, BATCH, *lanes, False, [BATCH] * 6, [], []],
        "complete_executions": [
            WORKER,
            ids,
            [1] * BATCH,
            ["SUCCEEDED"] * BATCH,
            ["SUCCEEDED"] * BATCH,
            *[[None] * BATCH] * 3,
            [0.0] * BATCH,
            [2] * BATCH,
            [uuid4()],
            *[[None] * BATCH] * 3,
        ],
        "plan_fires": [
            ids,
            [1] * BATCH,
            [now] * BATCH,
            [now + timedelta(hours=1)] * BATCH,
            [now] * BATCH,
            [None] * BATCH,
            [False] * BATCH,
            [uuid4() for _ in ids],
            ids,
            [now] * BATCH,
            [now] * BATCH,
            [1] * BATCH,
            [2] * BATCH,
            *[[]] * 10,
            100,
            *[[None] * BATCH] * 2,
            [True] * BATCH,
            None,
            False,
        ],
        "take_owed": [list(range(64)), 200, 4],
        "make_owed": [
            ids,
            *[[now] * BATCH] * 4,
            [1] * BATCH,
            [False] * BATCH,
            0.25,
            [uuid4() for _ in ids],
            ids,
            [now] * BATCH,
            [0.0] * BATCH,
            [1] * BATCH,
            [4] * BATCH,
            [None] * BATCH,
            ids[0],
        ],
        "find_due_timers": [list(range(64)), [EPOCH] * 64, 20.0, BATCH, []],
        "is_crowded": [list(range(64)), 20.0, 60.0, BATCH],
        "find_specs": [ids, [1] * BATCH],
        "find_once_specs": [ids, ids[0], ids[-1]],
        "succeed_executions": [WORKER, ids, [1] * BATCH, [None] * BATCH, [uuid4()]],
        "look_at_executions": [NOTHING, seeded_ids(ROWS, 1)[0], BATCH],
        "look_at_ready": [0, 0, 0, EPOCH, NOTHING, now, BATCH],
        "look_at_waiting": [NOTHING, 0, EPOCH, NOTHING, BATCH],
        "look_at_gated": [NOTHING, BATCH],
        "look_at_slots": [NOTHING, NOTHING, BATCH],
        "look_at_lines": [NOTHING, 0, BATCH],
        "look_at_leases": [NOTHING, BATCH],
        "look_at_timers": [30.0, BATCH],
        "list_pools": [1, None, BATCH],
    }
    return each[name]


HOT: Final = [
    pytest.param(load_queries(noun)[name], id=name)
    for noun, name in (
        ("queue", "survey_lanes"),
        ("queue", "lease_executions"),
        ("outcomes", "complete_executions"),
        ("outcomes", "succeed_executions"),
        ("timers", "plan_fires"),
        ("timers", "find_due_timers"),
        ("timers", "is_crowded"),
        ("owed", "take_owed"),
        ("owed", "make_owed"),
        ("jobs", "find_specs"),
        ("jobs", "find_once_specs"),
        ("check", "look_at_executions"),
        ("check", "look_at_ready"),
        ("check", "look_at_waiting"),
        ("check", "look_at_gated"),
        ("check", "look_at_slots"),
        ("check", "look_at_lines"),
        ("check", "look_at_leases"),
        ("check", "look_at_timers"),
        ("pools", "list_pools"),
    )
]


@asynccontextmanager
async def seeded(server: Server, *, analyzed: bool) -> AsyncIterator[str]:
    async with new_database(server) as url:
        async with connected(url) as connection:
            await connection.execute("ANALYZE")
            await connection.execute(SEED.format(rows=ROWS, worker=WORKER))
            if analyzed:
                await connection.execute("ANALYZE")
        yield url


@pytest.fixture(scope="module")
async def stale_statistics(server: Server) -> AsyncIterator[str]:
    async with seeded(server, analyzed=False) as url:
        yield url


@pytest.fixture(scope="module")
async def fresh_statistics(server: Server) -> AsyncIterator[str]:
    async with seeded(server, analyzed=True) as url:
        yield url


@pytest.fixture(scope="module")
async def statistics_of_a_pause(server: Server) -> AsyncIterator[str]:
    """Analysed while nothing ran, on pages that are full before and after: the planner expects one row of many."""
    async with seeded(server, analyzed=True) as url:
        async with connected(url) as connection:
            await connection.execute(EMPTIED)
        yield url


@pytest.fixture(params=["stale_statistics", "fresh_statistics", "statistics_of_a_pause"])
def seeded_url(request: pytest.FixtureRequest) -> str:
    """Either of them: two fixtures and no parameter, because tests in random order would build them again each time."""
    url: str = request.getfixturevalue(request.param)
    return url


@pytest.mark.parametrize("query", HOT)
@proves("N3", "N6")
async def test_a_hot_statement_uses_the_index_of_its_header_and_scans_no_table(seeded_url: str, query: Query) -> None:
    async with connected(seeded_url) as connection:
        explained = await connection.fetchval(f"EXPLAIN (FORMAT JSON) {query.text}", *arguments(query.name))
        _check(query, json.loads(explained))


@pytest.mark.parametrize("query", HOT)
@proves("N3", "N6")
async def test_a_generic_plan_of_a_hot_statement_does_the_same(seeded_url: str, query: Query) -> None:
    async with connected(seeded_url) as connection:
        await connection.execute("SET plan_cache_mode = force_generic_plan")
        _check(query, await _explain_prepared(connection, query))


@proves("N3", "N6")
async def test_a_lease_of_a_batch_reads_about_a_batch(seeded_url: str) -> None:
    query = load_queries("queue")["lease_executions"]
    read = await _rows_read(seeded_url, query)
    assert read["ready"] <= 3 * BATCH
    assert read["execution"] <= 2 * BATCH


@proves("N6")
async def test_the_scan_for_due_timers_reads_at_most_a_batch_of_each_partition(seeded_url: str) -> None:
    assert (await _rows_read(seeded_url, load_queries("timers")["find_due_timers"]))["timer"] == 64 * BATCH


@proves("N6")
async def test_a_step_of_the_self_check_reads_its_rows_and_one_probe_for_each(seeded_url: str) -> None:
    for name, walked, probed in (
        ("look_at_executions", "execution", "ready"),
        ("look_at_ready", "ready", "execution"),
        ("look_at_waiting", "waiting", "execution"),
        ("look_at_slots", "slot", "execution"),
    ):
        read = await _rows_read(seeded_url, load_queries("check")[name])
        assert read[walked] == BATCH, name
        assert read[probed] <= BATCH, name


@proves("N6", "E1")
async def test_executions_that_wait_for_limits_are_counted_by_as_many_probes_as_the_ceiling(seeded_url: str) -> None:
    read = await _rows_read(seeded_url, load_queries("pools")["list_pools"])
    # One probe to find each line, and one for its due executions; older servers round the rows of each loop.
    assert BATCH <= read["waiting"] <= 2 * BATCH + 1
    assert read["ready"] <= BATCH + 6


async def _rows_read(url: str, query: Query) -> dict[str, int]:
    """How many rows of each table a statement touches, by its scans."""
    async with connected(url) as connection:
        transaction = connection.transaction()
        await transaction.start()
        explained = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {query.text}", *arguments(query.name))
        await transaction.rollback()
    read: dict[str, int] = {}
    for node in _nodes(json.loads(explained)):
        if (table := node.get("Relation Name")) and node["Node Type"] != "ModifyTable":
            seen = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            read[table] = read.get(table, 0) + round(seen * node["Actual Loops"])
    return read


async def _explain_prepared(connection: Connection, query: Query) -> Any:
    values = ", ".join(_literal(value) for value in arguments(query.name))
    await connection.execute(f"PREPARE hot AS {query.text}")
    return json.loads(await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE hot ({values})"))


def _check(query: Query, explained: Any) -> None:
    nodes = list(_nodes(explained))
    # A partition without a page costs nothing to scan, and is scanned.
    scanned = {node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan" and node["Total Cost"] > 0}
    assert not [table for table in scanned if table.startswith(NEVER_SCANNED)], json.dumps(explained, indent=1)
    used = {node[key] for node in nodes for key in ("Index Name",) if key in node}
    used |= {index for node in nodes for index in node.get("Conflict Arbiter Indexes", [])}
    for index in query.header["index"].split(", "):
        assert any(_is_index(name, index) for name in used), f"{index} is not among {sorted(used)}"


def _is_index(name: str, wanted: str) -> bool:
    """Whether an index is the wanted one, or its part in a partition."""
    table, _, kind = wanted.rpartition("_")
    return name == wanted or (name.startswith(f"{table}_") and f"_{kind}_" in f"{name}_")


def _nodes(plan: Any) -> Iterator[dict[str, Any]]:
    if isinstance(plan, list):
        for entry in plan:
            yield from _nodes(entry)
    elif isinstance(plan, dict):
        if "Node Type" in plan:
            yield plan
        for value in plan.values():
            if isinstance(value, (list, dict)):
                yield from _nodes(value)


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        entries = ",".join("NULL" if entry is None else f'"{entry}"' for entry in value)
        return "'{" + entries + "}'"
    return f"'{value}'"
