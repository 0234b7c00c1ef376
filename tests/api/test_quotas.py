"""Quotas of a tenant, checked when it sends something: live jobs, payloads, creates by rate."""

import asyncio
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from ondot.api.quotas import QuotaGuard
from ondot.flow.job_counts import JobCounts
from ondot.model.access import Role
from ondot.model.gates import Rate
from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.model.tenant import Quotas
from ondot.store.quotas import take_tokens
from tests.api.conftest import Caller, caller_of, key_of
from tests.proves import proves
from tests.world import World, job

ACME = {"ondot-tenant": "acme"}


async def tenant(api: Caller, **quotas: object) -> int:
    answer = await api.http.post("/v1/tenants", json={"name": "acme", "quotas": quotas})
    assert answer.status_code == 201, answer.text
    return int(answer.json()["tenant_no"])


async def send(api: Caller, jobs: int = 1, **headers: str) -> httpx2.Response:
    body: dict[str, Any] = {"jobs": [{"function": "f"}] * jobs}
    return await api.http.post("/v1/jobs/batch", json=body, headers=ACME | headers)


@proves("T2")
async def test_creates_over_the_rate_are_refused_with_the_quota_and_when(owned: Caller) -> None:
    await tenant(owned, creates="10/10s")
    assert (await send(owned, 8)).status_code == 201
    assert (await send(owned, 2)).status_code == 201
    refused = await send(owned, 3)
    assert (refused.status_code, refused.json()["type"]) == (429, "urn:ondot:problem:quota-exceeded")
    assert (refused.json()["quota"], refused.json()["limit"]) == ("creates", 10)
    assert refused.headers["retry-after"] == "3"
    assert refused.headers["ratelimit-policy"] == '"creates";q=10;w=10'
    assert refused.headers["ratelimit"] == '"creates";r=0;t=3'
    assert await owned.world.count("execution") == 10
    [reached] = await owned.world.fetch("SELECT kind, subject, message FROM ondot.condition")
    assert (reached["kind"], reached["subject"]) == ("quota", "creates"), "an alert may watch it"
    single = await owned.http.post("/v1/jobs", json={"function": "f"}, headers=ACME)
    assert (single.status_code, single.headers["retry-after"]) == (429, "1")
    assert (await owned.http.post("/v1/jobs", json={"function": "f"})).status_code == 201, (
        "the first tenant has no quota"
    )


@proves("O2", "T2")
async def test_refusals_are_counted_for_a_tenant_that_a_setting_names(owned: Caller) -> None:
    await tenant(owned, creates="1/1h")
    settings = owned.world.database.settings
    counted = 'ondot_tenant_quota_refusals_total{quota="creates",tenant="acme"}'
    for names, is_counted in ((None, False), ("acme", True)):
        owned.world.database.settings = settings.model_copy(update={"metrics_tenants": names})
        assert [(await send(owned)).status_code for _ in range(2)][-1] == 429
        assert (counted in (await owned.http.get("/metrics")).text) == is_counted


@proves("T2")
async def test_tokens_come_back_with_time(owned: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    await tenant(owned, creates="10/10s")
    now_s = 1000.0
    monkeypatch.setattr("ondot.api.quotas.monotonic", lambda: now_s)
    assert (await send(owned, 10)).status_code == 201
    assert (await send(owned, 1)).status_code == 429
    await owned.world.advance(3)
    assert (await send(owned, 1)).status_code == 429, "it is refused without a statement until there are tokens"
    now_s += 3
    assert [(await send(owned, 1)).status_code for _ in range(4)] == [201, 201, 201, 429]
    await owned.world.advance(3600)
    now_s += 3600
    assert (await send(owned, 10)).status_code == 201
    assert (await send(owned, 1)).status_code == 429, "a bucket holds no more than its burst"


@proves("T2")
async def test_a_batch_that_can_never_pass_says_in_which_parts_to_send_it(owned: Caller) -> None:
    await tenant(owned, creates="10/1s")
    answer = await send(owned, 11)
    assert (answer.status_code, answer.json()["quota"]) == (413, "creates")
    assert "at most 10" in answer.json()["detail"]


@proves("T2", "P2")
async def test_a_repeated_request_gets_its_answer_although_the_quota_is_used_up(owned: Caller) -> None:
    await tenant(owned, creates="2/1h", jobs=2)
    first = await send(owned, 2, **{"idempotency-key": "one"})
    again = await send(owned, 2, **{"idempotency-key": "one"})
    assert (again.status_code, again.text) == (201, first.text)
    assert (await send(owned, 2, **{"idempotency-key": "two"})).status_code == 429


@proves("T2")
async def test_jobs_that_exist_by_their_key_cost_no_token_and_no_room(owned: Caller) -> None:
    await tenant(owned, creates="2/1h", jobs=1)
    body = {"function": "f", "every": "1h", "key": "nightly"}
    assert [(await owned.http.post("/v1/jobs", json=body, headers=ACME)).status_code for _ in range(5)] == [201] * 5
    other = await owned.http.post("/v1/jobs", json=body | {"key": "other"}, headers=ACME)
    assert (other.status_code, other.json()["quota"]) == (429, "jobs")


@proves("T2")
async def test_processes_share_one_bucket_and_exceed_the_rate_by_no_token(world: World) -> None:
    callers = [caller_of(world, auth="on") for _ in range(4)]
    owner = await key_of(world, DEFAULT_TENANT, Role.OWNER)
    for caller in callers:
        caller.http.headers.update(owner)
    await tenant(callers[0], creates="100/1h")
    answers = await asyncio.gather(*(send(caller) for caller in callers for _ in range(50)))
    for caller in callers:
        await caller.http.aclose()
    statuses = [answer.status_code for answer in answers]
    assert set(statuses) == {201, 429}
    assert statuses.count(201) == await world.count("execution") == 100


@proves("T2")
async def test_a_portion_is_taken_in_one_statement_and_expires(world: World) -> None:
    acme = await world.add_tenant("acme")
    rate = Rate(limit=10, per_s=10, burst=10)
    async with world.database.connection() as connection:
        assert (await take_tokens(connection, acme, "creates", rate, least=1, wanted=4)).count == 4
        assert (await take_tokens(connection, acme, "creates", rate, least=7, wanted=7)).count == 0
        assert (await take_tokens(connection, acme, "creates", rate, least=1, wanted=9)).count == 6
        empty = await take_tokens(connection, acme, "creates", rate, least=2, wanted=9)
        assert (empty.count, empty.wait_s) == (0, 2)
        await world.advance(-3600)  # the clock was set back
        assert (await take_tokens(connection, acme, "creates", rate, least=1, wanted=1)).wait_s <= 10
        assert (await take_tokens(connection, TenantNo(acme + 1), "creates", rate, least=1, wanted=99)).count == 10


@proves("T2")
async def test_live_jobs_are_counted_and_refused_beyond_the_quota(
    owned: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = await tenant(owned, jobs=4)
    now_s = 1000.0
    monkeypatch.setattr("ondot.api.quotas.monotonic", lambda: now_s)
    recurring = await owned.create({"function": "f", "every": "1h"}, **ACME)
    await owned.create({"function": "f", "in": "1h"}, **ACME)
    assert (await send(owned, 2)).status_code == 201
    refused = await send(owned, 1)
    assert (refused.status_code, refused.json()["quota"], refused.headers["retry-after"]) == (429, "jobs", "5")
    await JobCounts(owned.world.database).one_pass()
    [row] = await owned.world.fetch("SELECT jobs FROM ondot.job_count WHERE tenant_no = $1", acme)
    assert row["jobs"] == 4
    paused = await owned.http.post(f"/v1/jobs/{recurring['id']}/pause", headers=ACME)
    assert paused.status_code == 200
    assert len(await owned.run_all()) == 2
    await owned.world.advance(1)
    await JobCounts(owned.world.database).one_pass()
    [row] = await owned.world.fetch("SELECT jobs FROM ondot.job_count WHERE tenant_no = $1", acme)
    assert row["jobs"] == 2, "a paused job and one for later; those that ended do not count"
    now_s += 2
    assert (await send(owned, 2)).status_code == 201
    assert (await send(owned, 1)).status_code == 429


@proves("T2")
async def test_the_first_tenant_can_have_a_quota_of_jobs_too(owned: Caller) -> None:
    await owned.http.patch("/v1/tenants/default", json={"quotas": {"jobs": 2}})
    body = {"jobs": [{"function": "f"}] * 2}
    assert (await owned.http.post("/v1/jobs/batch", json=body)).status_code == 201
    assert (await owned.http.post("/v1/jobs", json={"function": "f"})).status_code == 429
    await JobCounts(owned.world.database).one_pass()
    assert await owned.world.value("SELECT jobs FROM ondot.job_count WHERE tenant_no = 1") == 2


@proves("T2")
async def test_a_payload_over_the_quota_is_too_large_wherever_it_comes_in(owned: Caller) -> None:
    await tenant(owned, payload_bytes=20)
    small, large = {"a": "x"}, {"a": "x" * 20}
    job = await owned.create({"function": "f", "every": "1h", "payload": small}, **ACME)
    path = f"/v1/jobs/{job['id']}"
    run = (await owned.http.post(f"{path}/run", json={"payload": small}, headers=ACME)).json()
    await owned.http.post(f"/v1/executions/{run['execution_id']}/cancel", headers=ACME)
    again = f"/v1/executions/{run['execution_id']}/retry"
    for method, url, body in (
        ("POST", again, {"payload": large}),
        ("POST", "/v1/dead-letters/replay", {"ids": [run["execution_id"]], "payload": large}),
        ("POST", "/v1/dead-letters/replay", {"filter": {"pool": "default"}, "payload": large}),
        ("POST", "/v1/jobs", {"function": "f", "payload": large}),
        ("POST", "/v1/jobs/batch", {"jobs": [{"function": "f"}, {"function": "f", "payload": large}]}),
        ("POST", f"{path}/run", {"payload": large}),
        ("PATCH", path, {"payload": large}),
        ("PUT", path, {"function": "f", "every": "1h", "payload": large}),
    ):
        answer = await owned.http.request(method, url, json=body, headers=ACME)
        assert (answer.status_code, answer.json().get("quota")) == (413, "payload_bytes"), url
        assert answer.json()["limit"] == 20
    assert (await owned.http.post(again, json={"payload": small}, headers=ACME)).status_code == 201


@proves("T2")
async def test_runs_that_are_asked_for_count_as_creates(owned: Caller) -> None:
    await tenant(owned, creates="3/1h")
    job = await owned.create({"function": "f", "every": "1h"}, **ACME)
    path = f"/v1/jobs/{job['id']}/run"
    assert [(await owned.http.post(path, headers=ACME)).status_code for _ in range(3)] == [201, 201, 429]


@proves("T2")
async def test_a_tenant_without_quotas_costs_no_statement(owned: Caller) -> None:
    answer = await owned.http.post("/v1/tenants", json={"name": "acme"})
    assert answer.status_code == 201
    assert (await send(owned, 5)).status_code == 201
    assert (await owned.world.count("quota_token"), await owned.world.count("job_count")) == (0, 0)


@proves("T2")
async def test_nothing_is_kept_for_a_quota_of_jobs_that_was_removed(world: World) -> None:
    acme = await world.add_tenant("acme")
    guard, limited = QuotaGuard(world.database), await world.database.tenants.get(acme)
    assert limited is not None
    by_rate = Quotas(creates=Rate(limit=1000, per_s=1.0, burst=1000))
    for one in (Quotas(jobs=1000), by_rate, by_rate):
        async with guard.room_for_jobs(replace(limited, quotas=one), [job()], None):
            pass
    assert len(guard._counts[acme].accepted) == 1
