"""The API over a world: real routes on a real database, whose clock tests move by hand."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from ondot.api.auth import Auth
from ondot.api.dependencies import Services
from ondot.api.server import build_api
from ondot.model.access import Role
from ondot.model.ids import DEFAULT_TENANT, ExecutionId, JobId, TenantNo
from ondot.model.keys import new_key
from ondot.store.keys import add_key
from tests.world import World


@dataclass(slots=True)
class Caller:
    """A client of the API, and the world behind it."""

    world: World
    http: httpx2.AsyncClient

    @property
    def services(self) -> Services:
        transport = self.http._transport
        assert isinstance(transport, httpx2.ASGITransport)
        services: Services = transport.app.state.services  # type: ignore[attr-defined]
        return services

    async def create(self, body: dict[str, Any], **headers: str) -> dict[str, Any]:
        answer = await self.http.post("/v1/jobs", json=body, headers=headers)
        assert answer.status_code == 201, answer.text
        created: dict[str, Any] = answer.json()
        return created

    async def get(self, path: str, **parameters: Any) -> dict[str, Any]:
        answer = await self.http.get(path, params=parameters)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def run_all(self) -> list[ExecutionId]:
        """Let a worker run everything that is due, successfully."""
        worker = await self.world.worker()
        assignments = await worker.lease()
        if assignments:
            await worker.complete_all(assignments)
        return [assignment.leased.id for assignment in assignments]

    async def execution_of(self, job: dict[str, Any]) -> str:
        rows = await self.world.executions(JobId(job["id"]))
        return str(rows[-1].id)


def caller_of(world: World, **settings: Any) -> Caller:
    world.database.settings = world.database.settings.model_copy(update=settings)
    services = Services(
        world.database, world.dispatcher, Auth(world.database, world.database.settings, in_process=True)
    )
    transport = httpx2.ASGITransport(app=build_api(services), raise_app_exceptions=False)
    return Caller(world, httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:1200"))


@pytest.fixture
async def api(world: World) -> AsyncIterator[Caller]:
    """As on a developer's own machine: no key is required."""
    caller = caller_of(world, auth="off")
    async with caller.http:
        yield caller


@pytest.fixture
async def keyed(world: World) -> AsyncIterator[Caller]:
    """As in production: a key is required."""
    caller = caller_of(world, auth="on")
    async with caller.http:
        yield caller


async def key_of(world: World, tenant_no: int, role: Role, **fields: Any) -> dict[str, str]:
    """The header of a new key of a tenant."""
    id_ = world.database.clock.new_id()
    key = new_key(id_)
    async with world.database.connection() as connection:
        await add_key(connection, id_, TenantNo(tenant_no), f"{role}-{tenant_no}", key, role=role, **fields)
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
async def owned(keyed: Caller) -> Caller:
    """With the key of an owner of the installation."""
    keyed.http.headers.update(await key_of(keyed.world, DEFAULT_TENANT, Role.OWNER))
    return keyed
