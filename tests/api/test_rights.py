"""Who may call what: every route of the OpenAPI document × every role, and keys that are limited by scopes and pools.

`NEEDED` is the matrix that people read. A route that is not in it fails the test, so that none is forgotten.
"""

from typing import Any, Final

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from ondot.api.dependencies import Needs
from ondot.api.server import PARTS
from ondot.model.access import SPECIAL, Right, Role, rights_of
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.keys import new_key
from ondot.store.keys import add_key
from tests.api.conftest import Caller
from tests.api.two_tenants import build_app
from tests.proves import proves
from tests.world import World

ID: Final = "019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a"

READ, RUN, WRITE = Right.JOBS_READ, Right.JOBS_RUN, Right.JOBS_WRITE
NEEDED: Final[dict[str, Right]] = {
    "POST /v1/jobs": WRITE,
    "GET /v1/jobs": READ,
    "POST /v1/jobs/batch": WRITE,
    "POST /v1/jobs/wait": READ,
    "GET /v1/jobs/{id}": READ,
    "PUT /v1/jobs/{id}": WRITE,
    "PATCH /v1/jobs/{id}": WRITE,
    "DELETE /v1/jobs/{id}": WRITE,
    "GET /v1/jobs/{id}/declared": READ,
    "POST /v1/jobs/{id}/reset": WRITE,
    "POST /v1/jobs/{id}/adopt": WRITE,
    "POST /v1/jobs/{id}/pause": RUN,
    "POST /v1/jobs/{id}/resume": RUN,
    "POST /v1/jobs/{id}/run": RUN,
    "GET /v1/jobs/{id}/status": READ,
    "GET /v1/jobs/{id}/executions": READ,
    "POST /v1/jobs/{id}/backfill": RUN,
    "GET /v1/jobs/{id}/backfills": READ,
    "GET /v1/jobs/{id}/backfills/{backfill_id}": READ,
    "POST /v1/jobs/{id}/backfills/{backfill_id}/cancel": RUN,
    "GET /v1/jobs/{id}/next": READ,
    "GET /v1/jobs/{id}/explain": READ,
    "POST /v1/workflows": WRITE,
    "GET /v1/workflows": READ,
    "GET /v1/workflows/{id}": READ,
    "GET /v1/runs/{id}/steps/{name}/items": READ,
    "PATCH /v1/runs/{id}/steps/{name}": RUN,
    "POST /v1/runs/{id}/steps/{name}/approve": RUN,
    "POST /v1/runs/{id}/steps/{name}/reject": RUN,
    "POST /v1/runs/{id}/steps/{name}/link": RUN,
    "GET /v1/runs/{id}/steps/{name}/explain": READ,
    "GET /v1/skipped-fires": READ,
    "POST /v1/schedules/preview": READ,
    "GET /v1/executions": READ,
    "GET /v1/executions/{id}": READ,
    "GET /v1/executions/{id}/logs": READ,
    "GET /v1/executions/{id}/result": READ,
    "GET /v1/executions/{id}/explain": READ,
    "POST /v1/executions/{id}/cancel": RUN,
    "POST /v1/executions/{id}/retry": RUN,
    "GET /v1/runs": READ,
    "GET /v1/workflows/{id}/runs": READ,
    "GET /v1/runs/{id}": READ,
    "GET /v1/runs/{id}/steps": READ,
    "GET /v1/runs/{id}/steps/{name}": READ,
    "POST /v1/runs/{id}/retry": RUN,
    "POST /v1/runs/{id}/rerun": RUN,
    "POST /v1/runs/{id}/skip": RUN,
    "POST /v1/runs/{id}/result": RUN,
    "POST /v1/events": Right.EVENTS_SEND,
    "GET /v1/events": READ,
    "GET /v1/events/{id}": READ,
    "POST /v1/runs/{id}/give-up": RUN,
    "POST /v1/runs/{id}/pause": RUN,
    "POST /v1/runs/{id}/resume": RUN,
    "POST /v1/runs/{id}/cancel": RUN,
    "GET /v1/dead-letters": READ,
    "GET /v1/dead-letters/groups": READ,
    "GET /v1/dead-letters/{execution_id}": READ,
    "POST /v1/dead-letters/replay": RUN,
    "POST /v1/dead-letters/discard": RUN,
    "GET /v1/dead-letters/operations": READ,
    "GET /v1/dead-letters/operations/{id}": READ,
    "POST /v1/dead-letters/operations/{id}/cancel": RUN,
    "GET /v1/find": READ,
    "GET /v1/report": READ,
    "POST /v1/bulk": RUN,
    "GET /v1/bulk": READ,
    "GET /v1/bulk/{id}": READ,
    "GET /v1/bulk/{id}/items": READ,
    "POST /v1/bulk/{id}/stop": RUN,
    "POST /v1/bulk/{id}/undo": RUN,
    "GET /v1/jobs/{id}/misses": READ,
    "GET /v1/pools": READ,
    "GET /v1/pools/{name}": READ,
    "GET /v1/pools/{name}/scale": READ,
    "GET /v1/forecast": READ,
    "PATCH /v1/pools/{name}": Right.POOLS_MANAGE,
    "GET /v1/nodes": READ,
    "GET /v1/workers": READ,
    "POST /v1/keys": Right.KEYS_MANAGE,
    "GET /v1/keys": Right.KEYS_MANAGE,
    "GET /v1/keys/{id}": Right.KEYS_MANAGE,
    "POST /v1/keys/{id}/rotate": Right.KEYS_MANAGE,
    "DELETE /v1/keys/{id}": Right.KEYS_MANAGE,
    "GET /v1/secrets": Right.SECRETS_MANAGE,
    "GET /v1/secrets/{name}": Right.SECRETS_MANAGE,
    "PUT /v1/secrets/{name}": Right.SECRETS_MANAGE,
    "DELETE /v1/secrets/{name}": Right.SECRETS_MANAGE,
    "GET /v1/webhooks/signing-secret": Right.WEBHOOKS_MANAGE,
    "POST /v1/webhooks/signing-secret/rotate": Right.WEBHOOKS_MANAGE,
    "POST /v1/events/try": READ,
    "POST /v1/events/{id}/replay": RUN,
    "POST /v1/hooks": WRITE,
    "GET /v1/hooks": READ,
    "GET /v1/hooks/{id}": READ,
    "POST /v1/hooks/{id}/rotate": WRITE,
    "DELETE /v1/hooks/{id}": WRITE,
    "POST /v1/alerts": WRITE,
    "GET /v1/alerts": READ,
    "GET /v1/alerts/kinds": READ,
    "POST /v1/alerts/preview": READ,
    "GET /v1/alerts/{id}": READ,
    "PATCH /v1/alerts/{id}": WRITE,
    "DELETE /v1/alerts/{id}": WRITE,
    "POST /v1/alerts/{id}/mute": WRITE,
    "GET /v1/incidents": READ,
    "GET /v1/incidents/{id}": READ,
    "POST /v1/incidents/{id}/acknowledge": RUN,
    "POST /v1/incidents/{id}/resolve": RUN,
    "GET /v1/connections": READ,
    "GET /v1/connections/{name}": READ,
    "PUT /v1/connections/{name}": WRITE,
    "DELETE /v1/connections/{name}": WRITE,
    "POST /v1/connections/{name}/test": WRITE,
    "GET /v1/sinks": READ,
    "GET /v1/sinks/{name}": READ,
    "PUT /v1/sinks/{name}": WRITE,
    "DELETE /v1/sinks/{name}": WRITE,
    "POST /v1/sinks/{name}/pause": WRITE,
    "POST /v1/sinks/{name}/resume": WRITE,
    "POST /v1/sinks/{name}/test": WRITE,
    "POST /v1/channels": WRITE,
    "GET /v1/channels": READ,
    "GET /v1/channels/{name}": READ,
    "GET /v1/channels/{name}/deliveries": READ,
    "GET /v1/channels/{name}/deliveries/{id}": READ,
    "PATCH /v1/channels/{name}": WRITE,
    "DELETE /v1/channels/{name}": WRITE,
    "POST /v1/channels/{name}/test": WRITE,
    "POST /v1/views": READ,
    "GET /v1/views": READ,
    "GET /v1/views/{id}": READ,
    "PATCH /v1/views/{id}": READ,
    "DELETE /v1/views/{id}": READ,
    "POST /v1/pings": WRITE,
    "GET /v1/pings": READ,
    "GET /v1/pings/{name}": READ,
    "POST /v1/pings/{name}/rotate": WRITE,
    "DELETE /v1/pings/{name}": WRITE,
    "GET /v1/users": Right.USERS_MANAGE,
    "POST /v1/users": Right.USERS_MANAGE,
    "GET /v1/users/{id}": Right.USERS_MANAGE,
    "PATCH /v1/users/{id}": Right.USERS_MANAGE,
    "DELETE /v1/users/{id}": Right.USERS_MANAGE,
    "POST /v1/users/{id}/reset": Right.USERS_MANAGE,
    "GET /v1/me": READ,
    "GET /v1/now": READ,
    "GET /v1/sessions": READ,
    "DELETE /v1/sessions": READ,
    "DELETE /v1/sessions/{id}": READ,
    "GET /v1/audit": Right.AUDIT_READ,
    "GET /v1/audit/export": Right.AUDIT_READ,
    "GET /v1/audit/verify": Right.AUDIT_READ,
    "GET /v1/functions": Right.JOBS_READ,
    "GET /v1/functions/{name}": Right.JOBS_READ,
    "GET /v1/history": Right.FLEET_MANAGE,
    "GET /v1/tenants": Right.TENANTS_MANAGE,
    "POST /v1/tenants": Right.TENANTS_MANAGE,
    "GET /v1/tenants/{name}": Right.TENANT_MANAGE,
    "GET /v1/tenants/{name}/usage": Right.JOBS_READ,
    "PATCH /v1/tenants/{name}": Right.TENANTS_MANAGE,
    "DELETE /v1/tenants/{name}": Right.TENANTS_MANAGE,
    "POST /v1/tenants/{name}/suspend": Right.TENANTS_MANAGE,
    "POST /v1/tenants/{name}/resume": Right.TENANTS_MANAGE,
}
BY_POOL: Final = (
    "/v1/jobs",
    "/v1/workflows",
    "/v1/executions",
    "/v1/keys",
    "/v1/schedules",
    "/v1/pools",
    "/v1/dead-letters/{",
    "/v1/bulk",
    "/v1/views",
    "/v1/find",
    "/v1/me",
)
"""Routes that answer a key that is limited to pools; the others concern the whole tenant."""
OF_THE_WHOLE: Final = {
    "PATCH /v1/pools/{name}",
    "GET /v1/workflows/{id}/runs",
    "GET /v1/bulk",
    "GET /v1/bulk/{id}/items",
}

CALLERS: Final[dict[str, tuple[Role, dict[str, Any]]]] = {
    **{role.value: (role, {}) for role in Role},
    **{
        f"owner with only {right.value}": (Role.OWNER, {"scopes": [right]})
        for right in Right
        if right is not Right.WORK
    },
    "viewer with the special scopes": (Role.VIEWER, {"scopes": [READ, *SPECIAL]}),
    "editor that may not read": (Role.EDITOR, {"scopes": [WRITE]}),
    "owner of one pool": (Role.OWNER, {"pools": ["batch"]}),
}


def names_of(app: FastAPI) -> list[str]:
    return [f"{method.upper()} {path}" for path, methods in app.openapi()["paths"].items() for method in methods]


async def headers_of(world: World, role: Role, **fields: Any) -> dict[str, str]:
    id_ = world.database.clock.new_id()
    key = new_key(id_)
    async with world.database.connection() as connection:
        await add_key(connection, id_, DEFAULT_TENANT, role.value, key, role=role, **fields)
    return {"authorization": f"Bearer {key}"}


@proves("T1", "T7")
def test_every_route_declares_a_right() -> None:
    routes = [route for part in PARTS for route in part.router.routes if isinstance(route, APIRoute)]
    without = [
        f"{sorted(route.methods or ())} {route.path}"
        for route in routes
        if sum(isinstance(found.dependency, Needs) for found in route.dependencies) != 1
    ]
    assert routes
    assert not without


@proves("T1", "T7")
async def test_the_matrix_names_every_route(world: World) -> None:
    assert sorted(names_of(build_app(world))) == sorted(NEEDED)


@pytest.mark.parametrize("caller", CALLERS)
@proves("T1", "T7")
async def test_every_route_answers_exactly_the_callers_that_have_its_right(keyed: Caller, caller: str) -> None:
    role, limits = CALLERS[caller]
    rights = rights_of(role, limits.get("scopes"))
    headers = await headers_of(keyed.world, role, **limits)
    wrong = []
    for name, right in NEEDED.items():
        method, path = name.split()
        for place in ("{id}", "{backfill_id}", "{execution_id}", "{name}"):
            path = path.replace(place, "nobody" if place == "{name}" else ID)
        answer = await keyed.http.request(method, path, headers=headers, json=None if method == "GET" else {})
        in_pool = name not in OF_THE_WHOLE and path_is_by_pool(name)
        is_allowed = right in rights and ("pools" not in limits or in_pool)
        if (answer.status_code != 403) != is_allowed:
            wrong.append(f"{name} as {caller}: {answer.status_code} {answer.text[:200]}")
        if answer.status_code == 403:
            body = answer.json()
            assert body["type"] == "urn:ondot:problem:forbidden"
            assert "pools" in limits or right.value in body["detail"], body
    assert not wrong


def path_is_by_pool(name: str) -> bool:
    return name.split()[1].startswith(BY_POOL)


SHELL: Final = {"name": "sh", "command": ["true"]}


@proves("T1", "E6")
async def test_a_job_with_a_shell_command_needs_the_scope(keyed: Caller) -> None:
    editor = await headers_of(keyed.world, Role.EDITOR)
    shell = await headers_of(keyed.world, Role.EDITOR, scopes=[READ, WRITE, Right.SHELL])
    refused = await keyed.http.post("/v1/jobs", json=SHELL, headers=editor)
    assert (refused.status_code, "'shell'" in refused.json()["detail"]) == (403, True)
    batch = await keyed.http.post("/v1/jobs/batch", json={"jobs": [{"function": "f"}, SHELL]}, headers=editor)
    assert batch.status_code == 403
    made = await keyed.http.post("/v1/jobs", json={**SHELL, "every": "1h"}, headers=shell)
    assert made.status_code == 201
    path = f"/v1/jobs/{made.json()['id']}"
    assert (await keyed.http.patch(path, json={"name": "other"}, headers=editor)).status_code == 403
    assert (await keyed.http.patch(path, json={"name": "other"}, headers=shell)).status_code == 200
    plain = await keyed.http.post("/v1/jobs", json={"function": "f", "every": "1h"}, headers=editor)
    turned = f"/v1/jobs/{plain.json()['id']}"
    patch = {"target": {"shell": {"command": ["true"]}}}
    assert (await keyed.http.patch(turned, json=patch, headers=editor)).status_code == 403
    assert (await keyed.http.put(turned, json={**SHELL, "every": "1h"}, headers=editor)).status_code == 403
    assert await keyed.world.count("job") == 2


@proves("T1")
async def test_a_key_that_is_limited_to_pools_sees_and_touches_only_these(keyed: Caller) -> None:
    admin = await headers_of(keyed.world, Role.ADMIN)
    batch = await headers_of(keyed.world, Role.ADMIN, pools=["batch"])

    async def make(headers: dict[str, str], **fields: Any) -> Any:
        return await keyed.http.post("/v1/jobs", json={"function": "f", "every": "1h", **fields}, headers=headers)

    own = (await make(batch, pool="batch", key="own")).json()["id"]
    other = (await make(admin, key="other")).json()["id"]
    refused = await make(batch)
    assert (refused.status_code, "Unknown pool" in refused.json()["detail"]) == (422, True)
    assert (await make(batch, pool="gpu")).status_code == 422
    assert (await make(batch, pool="batch", key="other")).status_code == 409
    runs = {}
    for id_ in (own, other):
        run = await keyed.http.post(f"/v1/jobs/{id_}/run", headers=admin)
        runs[id_] = run.json()["execution_id"]

    async def listed(path: str, **parameters: str) -> list[str]:
        answer = await keyed.http.get(path, headers=batch, params=parameters)
        assert answer.status_code == 200, answer.text
        return [item["id"] for item in answer.json()["items"]]

    assert await listed("/v1/jobs") == await listed("/v1/jobs", pool="batch") == [own]
    assert await listed("/v1/executions") == await listed("/v1/executions", pool="batch") == [runs[own]]
    assert await listed("/v1/jobs", pool="default") == await listed("/v1/executions", pool="default") == []
    pools = await keyed.http.get("/v1/pools", headers=batch)
    assert [pool["name"] for pool in pools.json()["items"]] == ["batch"]
    for method, path in [
        *(("GET", part) for part in ("", "/status", "/executions", "/next", "/explain", "/backfills")),
        *(("POST", part) for part in ("/pause", "/resume", "/run")),
        ("DELETE", ""),
    ]:
        unseen = await keyed.http.request(method, f"/v1/jobs/{other}{path}", headers=batch)
        assert unseen.status_code == 404, f"{method} {path}: {unseen.text}"
        seen = await keyed.http.request(method, f"/v1/jobs/{own}{path}", headers=batch)
        assert seen.is_success, f"{method} {path}: {seen.text}"
    for method, path in (("GET", ""), ("GET", "/logs"), ("GET", "/explain"), ("POST", "/cancel"), ("POST", "/retry")):
        unseen = await keyed.http.request(method, f"/v1/executions/{runs[other]}{path}", headers=batch)
        assert unseen.status_code == 404, f"{method} {path}: {unseen.text}"
    mine = (await make(batch, pool="batch")).json()["id"]
    moved = await keyed.http.patch(f"/v1/jobs/{mine}", json={"pool": "default"}, headers=batch)
    assert moved.status_code == 422
    assert (await keyed.http.patch(f"/v1/jobs/{other}", json={"pool": "batch"}, headers=batch)).status_code == 404
