"""Executions that wait for a limit count as waiting, and every surface names the limit."""

import re

import pytest

from ondot.doctor.checks import judge_held_back
from ondot.model.access import Role
from ondot.model.gates import Limits, Rate
from ondot.model.held_back import HeldBack, limit_in_words
from ondot.model.ids import DEFAULT_TENANT
from ondot.store import overview as store
from ondot.ui.fleet import FleetHealth, read_fleet
from ondot.ui.health import Health
from ondot.ui.overview import Numbers, read_overview
from tests.api.conftest import Caller, caller_of
from tests.api.two_tenants import make_key
from tests.proves import proves
from tests.world import World, every, job


async def held_of(world: World, *, lines: int = 5) -> HeldBack:
    async with world.database.connection() as connection:
        return await store.read_held_back(connection, world.database.specs, DEFAULT_TENANT, lines=lines)


async def a_backlog(world: World) -> None:
    """60 s of a job that fires every 3 s, runs one at a time and takes 20 s."""
    await world.submit(job("crawl", schedule=every(3, world.now), limits=Limits(concurrency=1)))
    worker, started_at = await world.worker(), world.now
    running = await worker.lease()
    for _ in range(20):
        await world.plan()
        await world.advance(3)
        await worker.beat()
        if running and (world.now - started_at).total_seconds() >= 20:
            await worker.complete_all(running)
            running = []
        if not running:
            running, started_at = await worker.lease(), world.now
            assert len(running) == 1, "one at a time"


@pytest.fixture
async def api(world: World) -> Caller:
    return caller_of(world, auth="off")


@proves("E13", "L7", "O5")
async def test_a_backlog_behind_a_limit_is_shown_on_the_first_page_and_the_fleet(world: World) -> None:
    await a_backlog(world)
    await world.value(
        "INSERT INTO ondot.node (id, host, pid, release, started_at, beat_at, expires_at) SELECT gen_random_uuid(),"
        " 'here', 1, '0', ondot.clock(), ondot.clock(), ondot.clock() + interval '1 hour' RETURNING 1"
    )
    held = await held_of(world)
    waiting = await world.value("SELECT count(*) FROM ondot.waiting WHERE ready_at <= ondot.clock()")
    assert held.count == waiting > 10
    [line] = held.lines
    assert (line.job_name, line.limit, line.count) == ("crawl", "1 at a time", waiting)
    sections = (await read_overview(world.database, DEFAULT_TENANT, is_whole=True)).sections
    numbers, health = sections["numbers"], sections["health"]
    assert isinstance(numbers, Numbers)
    assert isinstance(health, Health)
    assert numbers.waiting == f"{waiting}"
    assert [line.job_name for line in numbers.held.lines] == ["crawl"]
    assert (health.level, health.word) == ("warning", "Held back")
    assert (f"{waiting} due executions" in health.text, health.why) == (
        True,
        "They wait for crawl's limit: 1 at a time",
    )
    assert health.link == (f"/jobs/{line.job_id}", "See the job")
    fleet = (await read_fleet(world.database, DEFAULT_TENANT, is_whole=True)).sections["fleet_health"]
    assert isinstance(fleet, FleetHealth)
    assert any("most of them wait for crawl's limit: 1 at a time" in trouble.text for trouble in fleet.troubles)


@proves("E13", "L7")
async def test_readyz_stays_ready_and_reports_what_is_held_back(world: World, api: Caller) -> None:
    async with api.http:
        idle = await api.get("/readyz")
        assert (idle["held_back"], idle["limits"]) == (0, [])
        await a_backlog(world)
        answer = await api.http.get("/readyz")
        assert answer.status_code == 200
        body = answer.json()
        assert body["status"] == "ready"
        assert body["held_back"] > 10
        assert body["held_back_s"] >= 30
        [limit] = body["limits"]
        assert (limit["job"], limit["limit"], limit["count"]) == ("crawl", "1 at a time", body["held_back"])
        metrics = (await api.http.get("/metrics")).text
        assert f'ondot_held_back{{limit="concurrency"}} {body["held_back"]:.1f}' in metrics
        [age] = re.findall(r"^ondot_held_back_oldest_seconds (\S+)$", metrics, re.MULTILINE)
        assert float(age) >= 30


@proves("T1")
async def test_readyz_names_jobs_only_to_callers_who_may_read_all_of_them(world: World) -> None:
    keyed = caller_of(world, auth="on")
    await a_backlog(world)
    owner, viewer, of_a_pool = [
        {"authorization": f"Bearer {await make_key(world, DEFAULT_TENANT, role, Role(role), pools=pools)}"}
        for role, pools in (("owner", None), ("viewer", None), ("viewer", ["default"]))
    ]
    async with keyed.http:

        async def names(headers: dict[str, str]) -> list[str]:
            body = (await keyed.http.get("/readyz", headers=headers)).json()
            assert body["held_back"] > 10
            return [line["job"] for line in body.get("limits", [])]

        assert [await names(headers) for headers in (owner, viewer, of_a_pool, {})] == [["crawl"], ["crawl"], [], []]
        await world.fetch("INSERT INTO ondot.tenant (tenant_no, name) VALUES (2, 'other')")
        async with world.database.connection() as connection:
            await world.database.tenants.refresh(connection)
        assert [await names(headers) for headers in (owner, viewer, of_a_pool, {})] == [["crawl"], [], [], []]


@proves("E13", "O6")
async def test_the_doctor_warns_and_shows_the_fix(world: World) -> None:
    await a_backlog(world)
    finding = judge_held_back(await held_of(world))
    assert (finding.level, "crawl" in finding.message) == ("warning", True)
    assert "ondot job update ID --concurrency N" in (finding.advice or "")
    assert judge_held_back(HeldBack(world.now)).level == "ok"


@proves("E13")
async def test_the_longest_lines_come_first_and_counting_stops_at_a_ceiling(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.submit_all(
        [job("few", limits=Limits(key="k", key_concurrency=1)) for _ in range(3)]
        + [job("many", limits=Limits(key="erp", key_rate=Rate(limit=1, per_s=60))) for _ in range(9)]
        + [job("free")]
    )
    held = await held_of(world)
    assert (held.count, held.is_least) == (12, False)
    assert [(line.job_name, line.limit, line.count) for line in held.lines] == [
        ("many", "key 'erp': one every 1 minute", 9),
        ("few", "key 'k': 1 at a time", 3),
    ]
    assert held.by_kind == {"rate": 9, "concurrency": 3}
    assert [line.job_name for line in (await held_of(world, lines=1)).lines] == ["many"]
    monkeypatch.setattr(store, "CEILING", 5)
    held = await held_of(world)
    assert (held.count, held.is_least, held.counted) == (5, True, "5 or more")
    monkeypatch.setattr(store, "LINES_LOOKED_AT", 1)
    assert (await held_of(world)).is_least


def test_limits_are_written_in_words() -> None:
    assert limit_in_words({"kind": "overlap", "name": "job:1", "limit": 2}) == "2 at a time"
    assert limit_in_words({"kind": "order", "name": "key:a:b", "limit": 1}) == "order key 'a:b': one after the other"


def test_the_limit_of_a_function_names_the_function_and_not_its_internal_key() -> None:
    stage = {"kind": "concurrency", "name": "key:function:crawl", "limit": 1}
    assert limit_in_words(stage) == "function crawl: 1 at a time"
