"""`GET /v1/tenants/{name}/usage`: a tenant sees its own figures and totals, an owner sees everyone."""

import pytest

from ondot.model.access import Role
from ondot.model.errors import WrongPassword
from ondot.model.ids import TenantNo
from ondot.people.sign_in import SignIn, Visitor
from ondot.store.connection import Connection
from tests.api.conftest import Caller, key_of
from tests.flow.test_quotas import set_quotas
from tests.proves import proves
from tests.world import World, job


async def load(world: World) -> TenantNo:
    """acme runs 1 of 100 slots and waits with 20; another tenant runs 99."""
    acme = await world.add_tenant("acme", pools=["default"], weight=3)
    await set_quotas(world, acme, concurrent=500)
    other = await world.add_tenant("verysecret")
    worker = await world.worker()
    await world.submit_all([job()] * 99, other)
    assert len(await worker.lease(99)) == 99
    await world.submit_all([job()] * 21, acme)
    await worker.lease(0)
    for _ in range(3):
        await worker.lease(1 - await world.value("SELECT count(*)::integer FROM ondot.tenant_running"))
    await world.submit(job(), other)
    return acme


@proves("T2")
async def test_an_owner_sees_which_tenants_one_waits_for(keyed: Caller) -> None:
    await load(keyed.world)
    owner = await key_of(keyed.world, 1, Role.OWNER)
    found = (await keyed.http.get("/v1/tenants/acme/usage", headers=owner)).json()
    assert (found["name"], found["weight"], found["quotas"], found["running"]) == ("acme", 3, {"concurrent": 500}, 1)
    [pool] = found["pools"]
    assert (pool["slots"], pool["running"], pool["waiting"]) == (100, 1, 20)
    assert (pool["running_of_all"], pool["waiting_of_all"], pool["fair_slots"]) == (100, 21, 75.0)
    assert [(one["name"], one["running"]) for one in pool["waits_for"]] == [("verysecret", 99)]


@proves("T1", "T2")
async def test_a_tenant_sees_its_own_figures_and_totals_without_names(keyed: Caller) -> None:
    world = keyed.world
    acme = await load(world)
    viewer = await key_of(world, acme, Role.VIEWER)
    answer = await keyed.http.get("/v1/tenants/acme/usage", headers=viewer)
    assert answer.status_code == 200
    assert "verysecret" not in answer.text
    [pool] = answer.json()["pools"]
    assert (pool["running"], pool["running_of_all"], pool["waits_for"]) == (1, 100, None)


@proves("T1")
async def test_the_usage_of_another_tenant_is_not_found_as_that_of_an_unknown_one(keyed: Caller) -> None:
    world = keyed.world
    acme = await load(world)
    admin = await key_of(world, acme, Role.ADMIN)
    texts = []
    for name in ("verysecret", "default", "nosuchthing"):
        answer = await keyed.http.get(f"/v1/tenants/{name}/usage", headers=admin)
        assert answer.status_code == 404, (name, answer.text)
        texts.append({**answer.json(), "detail": answer.json()["detail"].replace(name, "…")})
    assert texts[0]["detail"] == texts[1]["detail"] == texts[2]["detail"]


@proves("T2")
async def test_a_pool_that_a_tenant_may_not_name_is_not_shown(keyed: Caller) -> None:
    world = keyed.world
    await world.add_tenant("acme", pools=["default"])
    await world.submit(job(pool="gpu"))
    owner = await key_of(world, 1, Role.OWNER)
    found = (await keyed.http.get("/v1/tenants/acme/usage", headers=owner)).json()
    assert [pool["name"] for pool in found["pools"]] == ["default"]
    first = (await keyed.http.get("/v1/tenants/default/usage", headers=owner)).json()
    assert [pool["name"] for pool in first["pools"]] == ["default", "gpu"]


@proves("T1")
async def test_the_name_of_another_tenant_costs_as_many_statements_as_an_unknown_one(
    keyed: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = keyed.world
    acme = await load(world)
    admin = await key_of(world, acme, Role.ADMIN)
    tenants = world.database.tenants
    monkeypatch.setattr("ondot.store.tenants.CACHED_S", 3600.0)
    await tenants.snapshot()
    refresh, read = tenants.refresh, []

    async def count(connection: Connection) -> None:
        read.append(connection)
        await refresh(connection)

    monkeypatch.setattr(tenants, "refresh", count)
    for name in ("verysecret", "nosuchthing"):
        assert (await keyed.http.get(f"/v1/tenants/{name}/usage", headers=admin)).status_code == 404
    sign_in = SignIn(world.database)
    for name in ("verysecret", "nosuchthing"):
        with pytest.raises(WrongPassword):
            await sign_in.with_password(name, "ada@example.com", "wrong but long enough", Visitor("203.0.113.1", ""))
    assert read == []
