"""What belongs to another tenant has no effect and shows nothing: keys of every kind, cursors, pools, the fleet."""

from typing import Any

import pytest

from ondot.model.access import Role
from ondot.model.ids import PoolNo
from tests.api.conftest import Caller, key_of
from tests.proves import proves
from tests.world import DEFAULT_POOL, job

Both = tuple[Caller, dict[str, str], dict[str, str]]


@pytest.fixture
async def both(keyed: Caller) -> Both:
    """The API, and the headers of an admin of each of two tenants."""
    world = keyed.world
    acme = await world.add_tenant("acme", pools=["default"])
    rival = await world.add_tenant("rival", pools=["default"])
    return keyed, await key_of(world, acme, Role.ADMIN), await key_of(world, rival, Role.ADMIN)


async def post(api: Caller, headers: dict[str, str], body: dict[str, Any], **more: str) -> dict[str, Any]:
    answer = await api.http.post("/v1/jobs", json=body, headers=headers | more)
    assert answer.status_code == 201, answer.text
    created: dict[str, Any] = answer.json()
    return created


@proves("T1", "P12", "P2")
async def test_the_same_idempotency_key_of_another_tenant_has_no_effect(both: Both) -> None:
    api, acme, rival = both
    key = {"idempotency-key": "same"}
    first = await post(api, acme, {"function": "f", "payload": {"mine": 1}}, **key)
    other = await post(api, rival, {"function": "g"}, **key)
    assert first["id"] != other["id"]
    assert (await post(api, acme, {"function": "f", "payload": {"mine": 1}}, **key))["id"] == first["id"]


@proves("T1", "P12", "S12")
async def test_the_same_key_and_unique_key_of_another_tenant_have_no_effect(both: Both) -> None:
    api, acme, rival = both
    recurring = {"function": "f", "every": "1h", "key": "nightly"}
    ours, theirs = await post(api, acme, recurring), await post(api, rival, recurring)
    assert ours["id"] != theirs["id"]
    assert (ours["version"], theirs["version"]) == (1, 1)
    for field in ("unique", "throttle", "debounce"):
        more = {"unique": "one", "throttle": {"key": "one", "per": "1h"}, "debounce": {"key": "one", "wait": "1m"}}
        body = {"function": "f", field: more[field]}
        states = [(await post(api, headers, body))["state"] for headers in (acme, rival)]
        assert states == ["ACTIVE", "ACTIVE"], field
    again = await post(api, acme, {"function": "f", "unique": "one"})
    assert again["state"] == "ENDED", "of its own tenant it has"


@proves("T1", "P12", "E13")
async def test_the_same_concurrency_key_of_another_tenant_does_not_make_its_work_wait(both: Both) -> None:
    api, acme, rival = both
    limits = {"concurrency_key": "bank", "key_concurrency": 1, "key_rate": "1/1h", "order_key": "bank"}
    limited = {"function": "f", **limits}
    for headers in (acme, acme, rival):
        await post(api, headers, limited)
    await api.world.plan()
    worker = await api.world.worker()
    started = [assignment.leased.tenant_no for _ in range(3) for assignment in await worker.lease()]
    assert len(started) == len(set(started)) == 2, "one of each tenant"


@proves("T1", "P12")
async def test_a_cursor_of_another_tenant_leads_to_nothing_of_it(both: Both) -> None:
    api, acme, rival = both
    for _ in range(3):
        await post(api, acme, {"function": "f"})
    page = (await api.http.get("/v1/jobs", params={"limit": 1}, headers=acme)).json()
    assert page["next_cursor"]
    for path in ("/v1/jobs", "/v1/executions", "/v1/audit"):
        other = await api.http.get(path, params={"cursor": page["next_cursor"]}, headers=rival)
        assert (other.status_code, other.json()["items"]) == (200, []), path


@proves("T1", "P12")
async def test_a_tenant_sees_only_pools_that_it_may_name_and_no_load_of_others(both: Both) -> None:
    api, acme, _ = both
    world = api.world
    await world.submit(job(pool="secret-project"))
    gpu = PoolNo(await world.value("SELECT pool_no FROM ondot.pool WHERE name = 'secret-project'"))
    await world.worker(pool_nos=[DEFAULT_POOL, gpu])
    await world.worker(pool_nos=[gpu])
    pools = (await api.http.get("/v1/pools", headers=acme)).json()["items"]
    assert [(pool["name"], pool["running"], pool["waiting"]) for pool in pools] == [("default", None, 0)]
    hidden = await api.http.get("/v1/pools/secret-project", headers=acme)
    unknown = await api.http.get("/v1/pools/no-such-thing0", headers=acme)
    assert (hidden.status_code, unknown.status_code) == (404, 404)
    assert hidden.json()["detail"].replace("secret-project", "no-such-thing0") == unknown.json()["detail"]
    [worker] = (await api.http.get("/v1/workers", headers=acme)).json()["items"]
    assert (worker["pools"], worker["running"]) == (["default"], None)
    nodes = await api.http.get("/v1/nodes", headers=acme)
    assert (nodes.status_code, nodes.json()["right"]) == (403, "fleet:manage")
    limits = await api.http.patch("/v1/pools/default", json={"concurrency": 1}, headers=acme)
    assert (limits.status_code, limits.json()["right"]) == (403, "pools:manage")
    owner = await key_of(world, 1, Role.OWNER)
    assert len((await api.http.get("/v1/pools", headers=owner)).json()["items"]) == 2
    assert (await api.http.get("/v1/nodes", headers=owner)).status_code == 200
