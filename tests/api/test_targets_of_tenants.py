"""Where a tenant's calls may go, as owners write it; and jobs written without the scope `private-targets`."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from ondot.api.auth import Auth
from ondot.api.dependencies import Services
from ondot.api.server import build_api
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.job import decode_spec
from ondot.model.target import HttpTarget
from ondot.store.workers import set_worker_tenants
from tests.api.conftest import Caller
from tests.api.keys import make_key_with
from tests.proves import proves
from tests.world import World

TARGETS = {"private_networks": ["10.1.0.0/16"], "allow": ["*.example.com"], "deny": ["198.51.100.0/24"]}
CALL: dict[str, Any] = {"target": {"http": {"url": "https://example.com/"}}, "every": "1h"}


@pytest.fixture
async def with_keys(world: World) -> AsyncIterator[httpx2.AsyncClient]:
    """The API as it is where keys are required."""
    settings = world.database.settings.model_copy(update={"auth": "on"})
    services = Services(world.database, world.dispatcher, Auth(world.database, settings, in_process=True))
    transport = httpx2.ASGITransport(app=build_api(services), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:1200") as client:
        yield client


@proves("T3", "T1")
async def test_an_owner_sets_where_a_tenant_may_call(api: Caller, world: World) -> None:
    created = (await api.http.post("/v1/tenants", json={"name": "acme", "targets": TARGETS})).json()
    assert created["targets"] == TARGETS
    patched = await api.http.patch("/v1/tenants/acme", json={"targets": {"allow": [], "deny": ["Bad.example."]}})
    assert patched.json()["targets"] == {"private_networks": ["10.1.0.0/16"], "allow": [], "deny": ["bad.example"]}
    tenant = await world.database.tenants.by_name("acme")
    assert tenant is not None
    assert tenant.targets.deny == ("bad.example",)
    assert (await api.http.post("/v1/tenants", json={"name": "other"})).json()["targets"]["private_networks"] == []


@proves("T3")
@pytest.mark.parametrize(
    ("targets", "words"),
    [
        ({"private_networks": ["10.1.0.0/8"]}, "10.1.0.0/8"),
        ({"private_networks": ["169.254.0.0/16"]}, "never called"),
        ({"private_networks": ["intranet"]}, "intranet"),
        ({"allow": ["https://example.com"]}, "hosts such as"),
        ({"deny": ["*"]}, "hosts such as"),
        ({"deny": [7]}, "text"),
        ({"private": []}, "private"),
    ],
)
async def test_a_list_that_cannot_be_read_is_rejected(api: Caller, targets: dict[str, Any], words: str) -> None:
    answer = await api.http.post("/v1/tenants", json={"name": "acme", "targets": targets})
    assert answer.status_code == 422
    assert words in answer.text


@proves("T3")
async def test_the_reach_of_the_first_tenant_is_the_workers_setting(api: Caller) -> None:
    answer = await api.http.patch("/v1/tenants/default", json={"targets": TARGETS})
    assert answer.status_code == 422
    assert "ONDOT_ALLOW_PRIVATE_TARGETS" in answer.json()["detail"]


@proves("T3", "T7")
async def test_a_job_written_without_the_scope_is_marked_and_a_patch_cannot_borrow_the_right(
    with_keys: httpx2.AsyncClient, world: World
) -> None:
    admin, editor = await make_key_with(world, "admin"), await make_key_with(world, "editor")
    trusted = await make_key_with(world, "editor", ["jobs:write", "jobs:read", "private-targets"])

    async def is_limited(id_: str) -> bool:
        [row] = await world.fetch(
            "SELECT v.spec::text FROM ondot.job j JOIN ondot.job_version v ON v.job_id = j.id AND v.version = j.version"
            " WHERE j.id = $1",
            id_,
        )
        target = decode_spec(row["spec"]).target
        assert isinstance(target, HttpTarget)
        return target.only_public

    async def create(headers: dict[str, str]) -> str:
        return str((await with_keys.post("/v1/jobs", json=CALL, headers=headers)).json()["id"])

    assert not await is_limited(await create(admin))
    assert not await is_limited(await create(trusted))
    assert await is_limited(await create(editor))
    batch = await with_keys.post("/v1/jobs/batch", json={"jobs": [CALL, CALL]}, headers=editor)
    assert all([await is_limited(job["id"]) for job in batch.json()["items"]])
    id_ = await create(admin)
    await with_keys.patch(f"/v1/jobs/{id_}", json={"labels": {"a": "b"}}, headers=editor)
    assert await is_limited(id_)
    await with_keys.put(f"/v1/jobs/{id_}", json=CALL, headers=admin)
    assert not await is_limited(id_)
    shown = (await with_keys.get(f"/v1/jobs/{id_}", headers=admin)).json()
    assert "only_public" not in shown["target"]["http"]


@proves("T4", "P12")
async def test_the_fleet_shows_which_tenants_a_worker_serves_to_an_owner_alone(
    with_keys: httpx2.AsyncClient, world: World
) -> None:
    owner = await make_key_with(world, "owner")
    worker = await world.worker()

    async def tenants(headers: dict[str, str]) -> Any:
        return [each["tenants"] for each in (await with_keys.get("/v1/workers", headers=headers)).json()["items"]]

    async with world.database.connection() as connection:
        await set_worker_tenants(connection, worker.id, [DEFAULT_TENANT])
    assert await tenants(owner) == [None], "with one tenant there is nothing to show"
    acme = await world.add_tenant("acme")
    world.database.tenants._read_s = None
    async with world.database.connection() as connection:
        await set_worker_tenants(connection, worker.id, [DEFAULT_TENANT, acme])
    assert await tenants(owner) == [["acme", "default"]]
    assert "default" not in str(await tenants(await make_key_with(world, "admin", tenant_no=acme)))
    async with world.database.connection() as connection:
        await connection.execute("UPDATE ondot.worker SET tenant_nos = NULL")
    assert await tenants(owner) == [None]
