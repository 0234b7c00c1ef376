"""`/livez`, `/readyz` and `/metrics` as monitoring sees them."""

import asyncio
import re
from http import HTTPStatus

import pytest
from pydantic import ValidationError

from ondot.model.access import Role
from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.roles.metrics import KeyCheck
from ondot.settings import Settings
from tests.api.conftest import Caller, caller_of
from tests.api.two_tenants import add_tenant, make_key
from tests.holding import COMMAND, WHY, hold
from tests.proves import proves
from tests.world import World, every, job


@proves("L7")
async def test_readiness_follows_the_oldest_due_execution_that_no_worker_serves(api: Caller) -> None:
    assert (await api.get("/readyz"))["status"] == "ready"
    await api.create({"name": "x", "function": "f", "pool": "lonely"})
    await api.world.advance(31)
    late = await api.http.get("/readyz")
    assert (late.status_code, late.json()["lag_s"]) == (503, 31)
    assert "lonely" in late.json()["why"]


@proves("L7")
async def test_readiness_follows_the_oldest_fire_that_no_scheduler_plans(api: Caller) -> None:
    await api.create({"name": "x", "function": "f", "every": "1h"})
    await api.world.advance(3600 + 31)
    late = await api.http.get("/readyz")
    assert late.status_code == 503
    assert "scheduler" in late.json()["why"]
    await api.world.plan()
    await api.run_all()
    assert (await api.get("/readyz"))["status"] == "ready"


@proves("L7", "P13")
async def test_a_due_fire_that_is_not_planned_is_late_after_seconds(api: Caller) -> None:
    """Fires are planned ahead: when a scheduler hangs, its first fire that is late is due a horizon later."""
    await api.create({"name": "x", "function": "f", "every": "1h"})
    await api.world.advance(3600 + 4)
    assert (await api.get("/readyz"))["status"] == "ready"
    await api.world.advance(2)
    late = await api.http.get("/readyz")
    assert (late.status_code, late.json()["lag_s"], late.json()["limit_s"]) == (503, 6, 5)
    assert "ondot fleet" in late.json()["why"]


async def test_liveness_needs_no_database(api: Caller) -> None:
    await api.world.database.close()
    assert (await api.get("/livez"))["status"] == "alive"


@proves("L4")
async def test_a_database_that_is_away_is_503_with_retry_after(api: Caller) -> None:
    await api.world.database.close()
    for path in ("/readyz", "/v1/jobs"):
        answer = await api.http.get(path)
        assert answer.status_code == 503, answer.text
        assert int(answer.headers["retry-after"]) > 0


@proves("L7", "P1")
async def test_a_database_that_may_have_lost_commits_is_not_ready(api: Caller) -> None:
    assert "ondot_held 0.0" in (await api.http.get("/metrics")).text
    await hold(api.world)
    answer = await api.http.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (503, "held")
    assert WHY in answer.json()["why"]
    assert COMMAND in answer.json()["why"]
    assert "ondot_held 1.0" in (await api.http.get("/metrics")).text


@proves("O2", "T1")
async def test_metrics_have_a_bounded_number_of_series_for_any_pools_and_methods(api: Caller) -> None:
    jobs = [{"name": "x", "function": "f", "pool": f"p{number}"} for number in range(300)]
    await api.create({"name": "x", "function": "f", "pool": "oldest"})
    await api.world.advance(5)
    assert (await api.http.post("/v1/jobs/batch", json={"jobs": jobs})).status_code == 201
    await api.http.request("BREW", "/v1/jobs")
    await api.world.advance(1)
    text = (await api.http.get("/metrics")).text
    depth = {
        line.split()[0]: float(line.split()[1]) for line in text.splitlines() if line.startswith("ondot_queue_depth{")
    }
    assert len(depth) == 101
    assert sum(depth.values()) == 301
    assert depth['ondot_queue_depth{class="normal",pool="(other)"}'] == 201
    assert 'ondot_queue_oldest_seconds{class="normal",pool="oldest"} 6.0' in text
    assert 'ondot_queue_oldest_seconds{class="normal",pool="(other)"} 1.0' in text
    assert "BREW" not in text
    assert 'ondot_http_request_seconds_count{method="other",route="/jobs",status="405"}' in text


@proves("O2")
async def test_metrics_show_depth_lag_and_fleet(api: Caller) -> None:
    await api.create({"name": "x", "function": "f"})
    await api.world.advance(7)
    text = (await api.http.get("/metrics")).text
    assert 'ondot_queue_depth{class="normal",pool="default"} 1.0' in text
    assert "ondot_lag_seconds 7.0" in text
    assert "ondot_database_up 1.0" in text
    assert "ondot_partitions_unowned 64.0" in text
    assert "ondot_partitions_owned 0.0" in text
    assert 'ondot_http_request_seconds_count{method="POST",route="/jobs",status="201"}' in text


@proves("T1", "O2")
async def test_metrics_can_be_kept_for_owners_and_count_all_tenants(keyed: Caller) -> None:
    world = keyed.world
    await add_tenant(world, TenantNo(2), "other")
    await world.submit(job("theirs", schedule=every(3600, world.now)))
    await world.fetch("UPDATE ondot.job SET tenant_no = 2")
    open_to_all = await keyed.http.get("/metrics")
    assert 'ondot_jobs{state="active"} 1.0' in open_to_all.text
    world.database.settings = world.database.settings.model_copy(update={"metrics_auth": "on"})
    assert (await keyed.http.get("/metrics")).status_code == 401
    for role, status in ((Role.OWNER, 200), (Role.ADMIN, 403)):
        key = await make_key(world, DEFAULT_TENANT, role, role)
        assert (await keyed.http.get("/metrics", headers={"authorization": f"Bearer {key}"})).status_code == status


@proves("T1", "O2")
async def test_a_role_of_its_own_asks_a_scraper_for_the_key_of_an_owner(world: World) -> None:
    check = KeyCheck(world.database.settings)
    owner = await make_key(world, DEFAULT_TENANT, Role.OWNER, Role.OWNER)
    admin = await make_key(world, DEFAULT_TENANT, Role.ADMIN, Role.ADMIN)
    sent = {
        None: HTTPStatus.UNAUTHORIZED,
        "Bearer ": HTTPStatus.UNAUTHORIZED,
        f"Basic {owner}": HTTPStatus.UNAUTHORIZED,
        f"Bearer {owner[:-1]}": HTTPStatus.UNAUTHORIZED,
        f"Bearer {admin}": HTTPStatus.FORBIDDEN,
        f"Bearer {owner}": HTTPStatus.OK,
    }
    for authorization, status in sent.items():
        # In another thread, as the server of a role calls it.
        assert await asyncio.to_thread(check, authorization) is status
    away = KeyCheck(world.database.settings.model_copy(update={"database_url": "postgresql://127.0.0.1:1/x"}))
    assert await asyncio.to_thread(away, f"Bearer {owner}") is HTTPStatus.SERVICE_UNAVAILABLE


@proves("O2", "T2")
async def test_only_tenants_that_a_setting_names_have_metrics_of_their_own(world: World) -> None:
    acme, other = await world.add_tenant("acme"), await world.add_tenant("other")
    for tenant_no, count in ((acme, 3), (other, 2)):
        await world.submit_all([job()] * count, tenant_no)
    await world.advance(1)
    expected = {None: set(), "acme, nobody": {"acme"}, "*": {"acme", "other", "default"}}
    for names, shown in expected.items():
        caller = caller_of(world, auth="off", metrics_tenants=names)
        async with caller.http:
            text = (await caller.http.get("/metrics")).text
        waiting = dict(re.findall(r'^ondot_tenant_waiting\{tenant="(.*)"\} (.*)$', text, re.MULTILINE))
        assert set(waiting) == shown
        assert set(re.findall(r'^ondot_tenant_slots\{tenant="(.*)"\}', text, re.MULTILINE)) == shown
        assert waiting.get("acme", "3.0") == "3.0"


@proves("O2", "T2")
def test_more_tenants_than_have_series_are_rejected() -> None:
    with pytest.raises(ValidationError, match="at most 100 tenants"):
        Settings.model_validate({"metrics_tenants": ",".join(f"tenant-{number}" for number in range(101))})
