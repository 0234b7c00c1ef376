"""`/v1/forecast`, `/v1/pools/{name}/scale`, warnings at creation and `spread`, as a client sees them."""

from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml  # type: ignore[import-untyped]

from ondot.model.access import Role
from ondot.model.ids import DEFAULT_TENANT
from tests.api.conftest import Caller, key_of
from tests.proves import proves
from tests.world import job


@proves("S13")
async def test_the_forecast_lists_fires_work_and_the_largest_jobs_by_pool(api: Caller) -> None:
    job = await api.create({"name": "nightly", "function": "f", "cron": "0 3 * * *"})
    await api.create({"name": "often", "function": "f", "every": "30m", "pool": "mail"})
    await api.create({"name": "later", "function": "f", "in": "2h"})
    now = api.world.now
    answer = await api.get("/v1/forecast", to=(now + timedelta(days=2)).isoformat(), bucket="1h")
    pools = {pool["pool"]: pool for pool in answer["pools"]}
    assert sum(bucket["fires"] for bucket in pools["mail"]["buckets"]) == pytest.approx(96, abs=2)
    default = pools["default"]["buckets"]
    assert sum(bucket["fires"] for bucket in default) == 3
    nightly = next(bucket for bucket in default if bucket["at"].endswith("T03:00:00Z"))
    assert [(top["job_id"], top["name"]) for top in nightly["top"]] == [(job["id"], "nightly")]
    assert (nightly["slot_s"], nightly["wait_s"], pools["default"]["slots"]) == (1, None, 0)
    await api.world.worker()
    answer = await api.get("/v1/forecast", bucket="1h", pool="default")
    assert [pool["pool"] for pool in answer["pools"]] == ["default"]
    assert all(bucket["wait_s"] == 0 for bucket in answer["pools"][0]["buckets"])


@proves("S13")
async def test_what_ran_is_shown_beside_what_will(api: Caller) -> None:
    await api.create({"function": "f", "every": "10m"})
    await api.world.advance(600)
    await api.world.plan()
    await api.run_all()
    await api.world.advance(60)
    now = api.world.now
    answer = await api.get("/v1/forecast", **{"from": (now - timedelta(hours=1)).isoformat(), "bucket": "10m"})
    [pool] = answer["pools"]
    assert sum(ran["executions"] for ran in pool["actual"]) >= 1
    assert pool["buckets"]
    assert answer["actual_complete"]


@proves("S13")
@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"bucket": "soon"}, "a duration"),
        ({"bucket": "1s"}, "whole minutes"),
        ({"bucket": "90s"}, "whole minutes"),
        ({"to": "2020-01-01T00:00:00Z"}, "later than"),
        ({"to": "2199-01-01T00:00:00Z"}, "at most 35 days"),
        ({"bucket": "36d"}, "at most 35 days"),
        ({"bucket": "36500d", "to": "SOON"}, "at most 35 days"),
        ({"bucket": "7h1s", "to": "SOON"}, "whole minutes"),
        ({"pols": "a"}, "Unknown parameter"),
        ({"pool": "none"}, "There is no pool"),
    ],
)
async def test_a_forecast_that_cannot_be_is_refused_in_words(
    api: Caller, parameters: dict[str, str], words: str
) -> None:
    soon = (api.world.now + timedelta(hours=1)).isoformat()
    written = {name: soon if value == "SOON" else value for name, value in parameters.items()}
    answer = await api.http.get("/v1/forecast", params=written)
    assert answer.status_code == 422, answer.text
    assert words in answer.json()["detail"]


@proves("S13")
async def test_the_edges_of_time_and_of_a_bucket_are_answered(api: Caller) -> None:
    await api.create({"function": "f", "cron": "* * * * * *"})
    now = api.world.now
    soon = (now + timedelta(hours=1)).isoformat()
    for query, fires in (
        ({"from": "1970-01-01T00:00:00Z", "to": "1970-01-02T00:00:00Z"}, None),
        ({"from": "2199-01-01T00:00:00Z", "to": "2199-01-02T00:00:00Z"}, 86_400),
        ({"to": soon, "bucket": "1s"}, 3600),
        ({"to": soon, "bucket": "35d"}, None),
    ):
        answer = await api.get("/v1/forecast", **query)
        if fires is not None:
            assert sum(bucket["fires"] for bucket in answer["pools"][0]["buckets"]) == pytest.approx(fires, abs=30)


@proves("S13")
async def test_more_buckets_of_all_pools_than_can_be_read_are_refused(api: Caller) -> None:
    for number in range(3):
        await api.create({"function": "f", "cron": "0 3 * * *", "pool": f"pool-{number}"})
    query = {"to": (api.world.now + timedelta(days=7)).isoformat(), "bucket": "1m"}
    answer = await api.http.get("/v1/forecast", params=query)
    assert (answer.status_code, "in 3 pools" in answer.text) == (422, True)
    answer = await api.http.get("/v1/forecast", params={**query, "pool": "pool-1"})
    assert len(answer.json()["pools"][0]["buckets"]) == 7


@proves("C8")
async def test_a_pool_without_workers_gets_one_in_time_and_loses_it_when_nothing_comes(api: Caller) -> None:
    async def workers() -> int:
        return int((await api.get("/v1/pools/rare/scale"))["workers"])

    await api.create({"function": "f", "pool": "rare", "in": "10m"})
    assert await workers() == 0
    await api.world.advance(480)
    for _ in range(6):  # the job is due in two minutes; each look until then says the same
        assert await workers() == 1
        await api.world.advance(20)
    await api.world.plan()
    assert await workers() == 1
    worker = await api.world.worker(
        pool_nos=[await api.world.value("SELECT pool_no FROM ondot.pool WHERE name = 'rare'")]
    )
    [assignment] = await worker.lease()
    await worker.complete(assignment)
    assert await workers() == 0


@proves("C8")
async def test_a_pool_wants_workers_for_what_waits_and_for_what_comes(api: Caller) -> None:
    assert (await api.http.get("/v1/pools/none/scale")).status_code == 404
    await api.create({"function": "f", "pool": "mail", "in": "1h"})
    assert (await api.get("/v1/pools/mail/scale"))["workers"] == 0
    await api.create({"function": "f", "pool": "mail"})
    await api.world.advance(30)
    wanted = await api.get("/v1/pools/mail/scale")
    assert (wanted["workers"], wanted["waiting"], wanted["oldest_wait_s"]) == (1, 1, 30)
    assert "1 waiting" in wanted["why"]
    jobs = [{"function": "f", "pool": "soon", "cron": "* * * * *"} for _ in range(5000)]
    assert (await api.http.post("/v1/jobs/batch", json={"jobs": jobs})).status_code == 201
    wanted = await api.get("/v1/pools/soon/scale")
    assert wanted["coming"] == pytest.approx(25_000, rel=0.25)
    assert wanted["workers"] > 3
    assert (await api.http.patch("/v1/pools/soon", json={"concurrency": 50})).status_code == 200
    assert (await api.get("/v1/pools/soon/scale"))["slots"] == 50


@proves("C8")
async def test_keda_finds_the_number_of_workers_where_its_file_looks(keyed: Caller) -> None:
    file = Path(__file__).parents[2] / "deploy/keda/scaled-object.yml"
    key, scaled = yaml.safe_load_all(file.read_text())
    [secret] = key["spec"]["secretTargetRef"]
    [trigger] = scaled["spec"]["triggers"]
    assert (key["kind"], scaled["kind"], secret["parameter"]) == ("TriggerAuthentication", "ScaledObject", "token")
    assert (trigger["type"], trigger["metadata"]["authMode"]) == ("metrics-api", "bearer")
    assert trigger["authenticationRef"]["name"] == key["metadata"]["name"]
    assert float(trigger["metadata"]["targetValue"]) == 1
    path = urlsplit(trigger["metadata"]["url"]).path
    assert (await keyed.http.get(path)).status_code == 401
    await keyed.world.submit(job())
    keyed.http.headers.update(await key_of(keyed.world, DEFAULT_TENANT, Role.VIEWER))
    value: Any = await keyed.get(path)
    for name in trigger["metadata"]["valueLocation"].split("."):
        value = value[name]
    assert value == 1


@proves("S13", "C8")
async def test_other_tenants_of_a_shared_pool_count_as_numbers_only(keyed: Caller) -> None:
    world = keyed.world
    await world.fetch("INSERT INTO ondot.tenant (tenant_no, name) VALUES (7, 'other')")
    async with world.database.connection() as connection:
        await world.database.tenants.refresh(connection)
    ours, theirs = [await key_of(world, tenant_no, Role.ADMIN) for tenant_no in (DEFAULT_TENANT, 7)]
    bodies = [{"name": "hidden", "function": "f", "cron": "* * * * *"}, {"name": "hidden now", "function": "f"}]
    for body in bodies:
        assert (await keyed.http.post("/v1/jobs", json=body, headers=theirs)).status_code == 201
    keyed.http.headers.update(ours)
    await keyed.create({"name": "own", "function": "f", "cron": "*/30 * * * *"})

    async def look() -> tuple[float, float, list[str], int]:
        answer = await keyed.http.get("/v1/forecast", params={"bucket": "1h"})
        assert "hidden" not in answer.text
        buckets = answer.json()["pools"][0]["buckets"][1:-1]
        names = {top["name"] for bucket in buckets for top in bucket["top"]}
        waiting = (await keyed.get("/v1/pools/default/scale"))["waiting"]
        return buckets[0]["fires"], buckets[0]["others_slot_s"], sorted(names), waiting

    assert await look() == (62, 60, ["own"], 1)
    # Workers that serve only some tenants: what others do there is not known to concern this one.
    await world.worker()
    await world.fetch("UPDATE ondot.worker SET tenant_nos = '{1}'")
    assert await look() == (2, 0, ["own"], 0)


@proves("S13")
async def test_what_ran_in_a_shared_pool_is_that_of_all_tenants_as_numbers_only(keyed: Caller) -> None:
    world = keyed.world
    other = await world.add_tenant("hidden tenant")
    worker = await world.worker()
    await world.submit(job("own"))
    for number in range(3):
        await world.submit(job(f"hidden {number}"), other)
    assignments = await worker.lease()
    await world.advance(20)
    await worker.complete_all(assignments)
    await world.advance(3600)
    rows = await world.fetch("SELECT id, job_id FROM ondot.history")
    ids = [id_ for row in rows for id_ in row.values()]
    ours, theirs = [await key_of(world, tenant_no, Role.VIEWER) for tenant_no in (DEFAULT_TENANT, other)]

    async def look(headers: dict[str, str]) -> list[tuple[int, float, float]]:
        begin_at = (world.now - timedelta(hours=2)).isoformat()
        query = {"from": begin_at, "to": world.now.isoformat(), "bucket": "1d"}
        answer = await keyed.http.get("/v1/forecast", params=query, headers=headers)
        assert "hidden" not in answer.text
        assert not any(str(id_) in answer.text for id_ in ids)
        rans = [ran for pool in answer.json()["pools"] for ran in pool["actual"]]
        return [(ran["executions"], ran["slot_s"], ran["others_slot_s"]) for ran in rans]

    assert await look(ours) == [(4, 80, 60)]
    assert await look(theirs) == [(4, 80, 20)]
    # A pool that the tenant may not use, and workers that do not serve it: as for the forecast itself.
    await world.fetch("UPDATE ondot.tenant SET pools = '{elsewhere}' WHERE tenant_no = $1", other)
    world.database.tenants.forget()
    assert await look(theirs) == []
    await world.fetch("UPDATE ondot.worker SET tenant_nos = '{1}'")
    assert await look(ours) == [(1, 20, 0)]
    limited = await key_of(world, DEFAULT_TENANT, Role.ADMIN, pools=["default"])
    assert (await keyed.http.get("/v1/forecast", headers=limited)).status_code == 403


@proves("S13")
async def test_a_job_in_a_crowd_gets_a_warning_and_one_with_spread_gets_out_of_it(api: Caller) -> None:
    await api.world.worker()
    await api.http.patch("/v1/pools/default", json={"concurrency": 1})
    herd = [{"function": "f", "cron": "0 3 * * *"} for _ in range(20)]
    assert (await api.http.post("/v1/jobs/batch", json={"jobs": herd})).status_code == 201
    api.services.crowds.forget()
    [warning] = (await api.create({"function": "f", "cron": "0 3 * * *"}))["warnings"]
    assert warning["code"] == "crowded"
    assert "There is room at minute" in warning["detail"]
    assert "warnings" not in await api.create({"function": "f", "cron": "0 9 * * *"})
    body = {"key": "k", "function": "f", "schedule": {"cron": "0 3 * * *", "spread": "10m"}}
    spread = await api.create(body)
    assert "warnings" not in spread
    assert (spread["schedule"]["spread"], spread["version"]) == (600, 1)
    assert 60 <= spread["schedule"]["offset"] <= 600
    again = await api.create(body)
    assert (again["version"], again["schedule"]) == (1, spread["schedule"])
    written = await api.create({"key": "k", "function": "f", "schedule": spread["schedule"]})
    assert written["version"] == 1
    coming = await api.get(f"/v1/jobs/{spread['id']}/next", n=1)
    fire = coming["fires"][0]
    assert fire["ready_at"] > fire["fire_at"]


@proves("S13")
@pytest.mark.parametrize(
    ("schedule", "pointer"),
    [
        ({"cron": "0 3 * * *", "spread": "2d"}, "/schedule/spread"),
        ({"cron": "0 3 * * *", "spread": "10m", "jitter": "5s"}, "/schedule/spread"),
        ({"at": "2100-01-01T00:00:00Z", "spread": "10m"}, "/schedule/spread"),
        ({"cron": "0 3 * * *", "offset": "5s"}, "/schedule/offset"),
        ({"cron": "0 3 * * *", "spread": "10m", "offset": "11m"}, "/schedule/offset"),
    ],
)
async def test_a_spread_that_cannot_be_is_refused_with_a_pointer(
    api: Caller, schedule: dict[str, str], pointer: str
) -> None:
    answer = await api.http.post("/v1/jobs", json={"function": "f", "schedule": schedule})
    assert answer.status_code == 422
    assert pointer in [error["pointer"] for error in answer.json()["errors"]]
