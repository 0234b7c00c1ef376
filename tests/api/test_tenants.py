"""`/v1/tenants`, and the tenant that a request acts for."""

from typing import Any

import pytest

from ondot.model.access import Role
from ondot.model.ids import INSTALLATION
from ondot.store.audit import list_audit
from tests.api.conftest import Caller, key_of
from tests.proves import proves
from tests.world import every, job

FULL: dict[str, Any] = {
    "name": "acme",
    "weight": 2,
    "pools": ["default"],
    "quotas": {
        "jobs": 100_000,
        "payload_bytes": 1_048_576,
        "concurrent": 500,
        "reserved": 10,
        "starts": "200/1s",
        "creates": "100/1s",
        "events": "500/1s",
    },
}


async def create(api: Caller, name: str = "acme", **fields: Any) -> dict[str, Any]:
    answer = await api.http.post("/v1/tenants", json={"name": name, **fields})
    assert answer.status_code == 201, answer.text
    created: dict[str, Any] = answer.json()
    return created


@proves("T1", "T2")
async def test_a_tenant_is_created_read_changed_and_listed(owned: Caller) -> None:
    created = await create(owned, **{key: value for key, value in FULL.items() if key != "name"})
    assert created["state"] == "ACTIVE"
    assert created["quotas"]["creates"] == {"limit": 100, "per": 1.0, "burst": 100}
    assert created["quotas"]["starts"]["burst"] == 20
    read = await owned.http.get("/v1/tenants/acme")
    assert read.json() == created
    assert read.headers["etag"] == '"1"'
    changed = await owned.http.patch(
        "/v1/tenants/acme", json={"weight": 3, "quotas": {"jobs": None, "creates": "5/1m"}}, headers={"if-match": '"1"'}
    )
    assert changed.status_code == 200, changed.text
    assert (changed.json()["weight"], changed.json()["version"]) == (3, 2)
    assert "jobs" not in changed.json()["quotas"]
    assert changed.json()["quotas"]["creates"] == {"limit": 5, "per": 60.0, "burst": 5}
    assert changed.json()["quotas"]["concurrent"] == 500
    stale = await owned.http.patch("/v1/tenants/acme", json={"weight": 4}, headers={"if-match": '"1"'})
    assert (stale.status_code, stale.json()["type"]) == (412, "urn:ondot:problem:precondition-failed")
    same = await owned.http.patch("/v1/tenants/acme", json={"weight": 3})
    assert same.json()["version"] == 2
    assert [entry["name"] for entry in (await owned.get("/v1/tenants"))["items"]] == ["default", "acme"]
    page = await owned.get("/v1/tenants", limit=1)
    assert [entry["name"] for entry in page["items"]] == ["default"]
    rest = await owned.get("/v1/tenants", limit=1, cursor=page["next_cursor"])
    assert ([entry["name"] for entry in rest["items"]], rest["next_cursor"]) == (["acme"], None)


@proves("T1")
async def test_a_repeated_create_gets_the_first_response_and_another_one_of_the_name_a_conflict(owned: Caller) -> None:
    key = {"idempotency-key": "one"}
    first = await owned.http.post("/v1/tenants", json=FULL, headers=key)
    again = await owned.http.post("/v1/tenants", json=FULL, headers=key)
    assert (again.status_code, again.text) == (201, first.text)
    other = await owned.http.post("/v1/tenants", json=FULL)
    assert (other.status_code, other.json()["type"]) == (409, "urn:ondot:problem:conflict")


@pytest.mark.parametrize(
    ("fields", "pointer", "words"),
    [
        ({"name": "Acme!"}, "/name", "lower-case"),
        ({"name": ""}, "/name", "lower-case"),
        ({"weight": 0}, "/weight", "0.01"),
        ({"weight": 1001}, "/weight", "1000"),
        ({"weight": "2"}, "/weight", "number"),
        ({"pools": []}, "/pools", "pools"),
        ({"pools": ["*", "default"]}, "/pools", "alone"),
        ({"pools": ["default", "gpu"]}, "/pools", "'gpu'"),
        ({"pools": ["G P U"]}, "/pools/0", "pool's name"),
        ({"quotas": {"jobs": 0}}, "/quotas/jobs", "1"),
        ({"quotas": {"jobs": 1.5}}, "/quotas/jobs", "jobs"),
        ({"quotas": {"creates": "many"}}, "/quotas/creates", "10/1m"),
        ({"quotas": {"creates": "0/1s"}}, "/quotas/creates/limit", "1"),
        ({"quotas": {"creates": {"limit": 5, "per": "1s", "burst": 6}}}, "/quotas/creates/burst", "5"),
        ({"quotas": {"reserved": 5, "concurrent": 4}}, "/quotas/reserved", "concurrent"),
        ({"quotas": {"job": 5}}, "/quotas/job", "jobs"),
        ({"colour": "red"}, "/colour", "colour"),
    ],
)
@proves("T1")
async def test_a_fault_of_a_tenant_is_reported_with_its_pointer(
    owned: Caller, fields: dict[str, Any], pointer: str, words: str
) -> None:
    answer = await owned.http.post("/v1/tenants", json={"name": "acme", **fields})
    assert answer.status_code == 422, answer.text
    [fault] = answer.json()["errors"]
    assert fault["pointer"] == pointer
    assert words in fault["detail"]
    assert await owned.world.count("tenant") == 2


@proves("T1", "T7")
async def test_only_owners_manage_tenants_and_an_admin_reads_its_own(keyed: Caller) -> None:
    world = keyed.world
    acme = await world.add_tenant("acme")
    await world.add_tenant("other")
    owner, admin = await key_of(world, 1, Role.OWNER), await key_of(world, acme, Role.ADMIN)
    editor = await key_of(world, acme, Role.EDITOR)
    for method, path, body in (
        ("POST", "/v1/tenants", {"name": "new"}),
        ("GET", "/v1/tenants", None),
        ("PATCH", "/v1/tenants/acme", {"weight": 5}),
        ("POST", "/v1/tenants/acme/suspend", None),
        ("POST", "/v1/tenants/acme/resume", None),
        ("DELETE", "/v1/tenants/acme", None),
    ):
        answer = await keyed.http.request(method, path, json=body, headers=admin)
        assert (answer.status_code, answer.json().get("right")) == (403, "tenants:manage"), path
    assert (await keyed.http.get("/v1/tenants/acme", headers=admin)).json()["name"] == "acme"
    assert (await keyed.http.get("/v1/tenants/acme", headers=editor)).status_code == 403
    others = await keyed.http.get("/v1/tenants/other", headers=admin)
    unknown = await keyed.http.get("/v1/tenants/nobody", headers=admin)
    assert (others.status_code, unknown.status_code) == (404, 404)
    assert others.json()["detail"].replace("other", "nobody") == unknown.json()["detail"]
    assert (await keyed.http.get("/v1/tenants/other", headers=owner)).status_code == 200


@proves("T1")
async def test_an_owner_acts_for_any_tenant_by_name_and_nobody_else_does(keyed: Caller) -> None:
    world = keyed.world
    acme = await world.add_tenant("acme", pools=["default"])
    owner, admin = await key_of(world, 1, Role.OWNER), await key_of(world, acme, Role.ADMIN)
    body = {"name": "nightly", "function": "f", "cron": "0 3 * * *"}
    created = await keyed.http.post("/v1/jobs", json=body, headers={**owner, "ondot-tenant": "acme"})
    assert created.status_code == 201, created.text
    path = f"/v1/jobs/{created.json()['id']}"
    assert (await keyed.http.get(path, headers=admin)).status_code == 200
    assert (await keyed.http.get(path, headers=owner)).status_code == 404
    assert (await keyed.http.get(path, headers={**owner, "ondot-tenant": "default"})).status_code == 404
    assert (await keyed.http.get(path, headers={**owner, "ondot-tenant": "acme"})).status_code == 200
    for name in ("default", "acme", "nobody", ""):
        refused = await keyed.http.get(path, headers={**admin, "ondot-tenant": name})
        assert (refused.status_code, refused.json()["type"]) == (403, "urn:ondot:problem:forbidden")
    twice = [*owner.items(), ("ondot-tenant", "acme"), ("ondot-tenant", "default")]
    assert (await keyed.http.get(path, headers=twice)).status_code == 400, "a proxy may look at the other one"
    unknown = await keyed.http.get(path, headers={**owner, "ondot-tenant": "nobody"})
    assert (unknown.status_code, "nobody" in unknown.json()["detail"]) == (404, True)
    async with world.database.connection() as connection:
        [entry] = await list_audit(connection, acme, limit=9)
    assert (entry.action, entry.actor) == ("job.create", "owner-1")


@proves("T2")
async def test_a_suspended_tenant_can_be_read_and_every_change_says_what_to_do(keyed: Caller) -> None:
    world = keyed.world
    acme = await world.add_tenant("acme")
    owner, admin = await key_of(world, 1, Role.OWNER), await key_of(world, acme, Role.ADMIN)
    accepted = await world.submit(job("nightly", schedule=every(60, world.now)), acme)
    suspended = await keyed.http.post("/v1/tenants/acme/suspend", headers=owner, params={"reason": "unpaid"})
    assert (suspended.status_code, suspended.json()["state"]) == (200, "SUSPENDED")
    path = f"/v1/jobs/{accepted.id}"
    for method, changing, body in (
        ("POST", "/v1/jobs", {"function": "f"}),
        ("POST", "/v1/jobs/batch", {"jobs": [{"function": "f"}]}),
        ("PATCH", path, {"name": "other"}),
        ("DELETE", path, None),
        ("POST", f"{path}/pause", None),
        ("POST", f"{path}/run", None),
    ):
        answer = await keyed.http.request(method, changing, json=body, headers=admin)
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:ondot:problem:tenant-suspended"), changing
        assert "resume" in answer.json()["detail"]
    for reading in (path, "/v1/jobs", "/v1/executions", "/v1/audit", f"{path}/next", f"{path}/explain"):
        assert (await keyed.http.get(reading, headers=admin)).status_code == 200, reading
    # The owner acts for it: the tenant stays as it is for everyone.
    acting = await keyed.http.post(f"{path}/run", headers={**owner, "ondot-tenant": "acme"})
    assert acting.status_code == 409
    assert (await keyed.http.post("/v1/tenants/acme/resume", headers=owner)).json()["state"] == "ACTIVE"
    assert (await keyed.http.post(f"{path}/run", headers=admin)).status_code in {200, 201, 202}
    async with world.database.connection() as connection:
        theirs = [entry.action for entry in await list_audit(connection, acme, limit=9)]
        ours = await list_audit(connection, INSTALLATION, limit=9)
    assert "tenant.suspend" in theirs
    [suspension] = [entry for entry in ours if entry.action == "tenant.suspend"]
    assert {entry.action for entry in ours} == {"tenant.resume", "tenant.suspend"}
    assert suspension.detail["reason"] == "unpaid"


@proves("T2")
async def test_the_keys_of_a_deleted_tenant_die_at_once_and_its_name_is_free(keyed: Caller) -> None:
    world = keyed.world
    acme = await world.add_tenant("acme")
    owner, admin = await key_of(world, 1, Role.OWNER), await key_of(world, acme, Role.ADMIN)
    await world.submit_all([job(), job("nightly", schedule=every(60, world.now))], acme)
    assert (await keyed.http.get("/v1/jobs", headers=admin)).status_code == 200
    counted = await keyed.http.delete("/v1/tenants/acme", params={"dry_run": "true"}, headers=owner)
    assert counted.status_code == 200, counted.text
    assert counted.json()["counts"] == {
        "jobs": 1,
        "one_time_jobs": 1,
        "executions": 1,
        "history": 0,
        "dead_letters": 0,
        "keys": 1,
    }
    gone = await keyed.http.delete("/v1/tenants/acme", headers=owner)
    assert (gone.status_code, gone.json()["state"]) == (202, "DELETED")
    assert (await keyed.http.get("/v1/jobs", headers=admin)).status_code == 401
    assert (await keyed.http.delete("/v1/tenants/acme", headers=owner)).status_code == 404
    acting = await keyed.http.get("/v1/jobs", headers={**owner, "ondot-tenant": "acme"})
    assert acting.status_code == 404
    assert (await keyed.http.get("/v1/tenants/acme", headers=owner)).json()["removal"]["done_at"] is None
    again = await keyed.http.post("/v1/tenants", json={"name": "acme"}, headers=owner)
    assert again.status_code == 201
    assert again.json()["tenant_no"] > acme
    assert (await keyed.http.get("/v1/tenants/acme", headers=owner)).json()["state"] == "ACTIVE"
    deleted = await keyed.http.get("/v1/tenants", params={"state": "DELETED"}, headers=owner)
    assert [entry["tenant_no"] for entry in deleted.json()["items"]] == [acme]


@proves("T2")
async def test_the_first_tenant_and_ones_own_cannot_be_deleted(keyed: Caller) -> None:
    world = keyed.world
    acme = await world.add_tenant("acme")
    owner = await key_of(world, acme, Role.OWNER)
    first = await keyed.http.delete("/v1/tenants/default", headers=owner)
    assert (first.status_code, "first tenant" in first.json()["detail"]) == (409, True)
    own = await keyed.http.delete("/v1/tenants/acme", headers=owner)
    assert own.status_code == 409
    acting = await keyed.http.delete("/v1/tenants/acme", headers={**owner, "ondot-tenant": "default"})
    assert acting.status_code == 409


@proves("T1", "P12")
async def test_a_pool_that_is_not_granted_and_one_that_does_not_exist_look_the_same(keyed: Caller) -> None:
    world = keyed.world
    acme = await world.add_tenant("acme", pools=["default"])
    admin = await key_of(world, acme, Role.ADMIN)
    await world.submit(job(pool="gpu"))
    for body in ({"function": "f"}, {"function": "f", "cron": "0 3 * * *"}):
        exists = await keyed.http.post("/v1/jobs", json=body | {"pool": "gpu"}, headers=admin)
        nobody = await keyed.http.post("/v1/jobs", json=body | {"pool": "cpu"}, headers=admin)
        assert (exists.status_code, nobody.status_code) == (422, 422)
        assert exists.text.replace("gpu", "cpu") == nobody.text
        assert "Use one of: default" in exists.json()["detail"]
    assert await world.count("pool") == 2


@proves("T1", "P10")
async def test_jobs_stay_in_a_pool_that_their_tenant_may_no_longer_name_and_new_versions_leave_it(
    owned: Caller,
) -> None:
    world = owned.world
    await world.submit(job(pool="gpu"))
    await create(owned, pools=["default", "gpu"])
    acme = {"ondot-tenant": "acme"}
    created = await owned.create({"function": "f", "every": "60s", "pool": "gpu"}, **acme)
    changed = await owned.http.patch("/v1/tenants/acme", json={"pools": ["default"]})
    assert changed.status_code == 200
    await world.advance(60)
    await world.plan()
    states = await world.fetch("SELECT count(*) FROM ondot.execution e WHERE e.job_id = $1", created["id"])
    assert states[0]["count"] >= 1
    path = f"/v1/jobs/{created['id']}"
    assert (await owned.http.post(f"{path}/run", headers=acme)).status_code in {200, 201, 202}
    renamed = await owned.http.patch(path, json={"name": "other"}, headers=acme)
    assert (renamed.status_code, renamed.json()["errors"][0]["pointer"]) == (422, "/pool")
    moved = await owned.http.patch(path, json={"pool": "default"}, headers=acme)
    assert (moved.status_code, moved.json()["pool"]) == (200, "default")
