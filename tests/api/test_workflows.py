"""`/v1/workflows`: create, list and get; and no way around rights, pools and secrets by putting a call into a step."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from ondot.kms import generate_key
from ondot.model.access import Right, Role
from ondot.model.ids import DEFAULT_TENANT, JobId
from ondot.model.job import list_remote_targets
from ondot.model.keys import new_key
from ondot.store.keys import add_key
from ondot.store.secrets import count_plain_credentials
from tests.api.conftest import Caller, key_of
from tests.api.keys import make_key_with
from tests.api.test_secrets import VALUE, caller_with, dump, put
from tests.proves import proves
from tests.world import World

STEPS: dict[str, Any] = {"list": {"function": "list_files"}, "report": {"depends_on": ["list"], "function": "report"}}
NIGHTLY: dict[str, Any] = {"name": "nightly", "cron": "0 2 * * *", "key": "nightly", "steps": STEPS}


def of(step: dict[str, Any], **others: Any) -> dict[str, Any]:
    """A workflow whose second step is this one."""
    return {"name": "flow", "every": "1h", "steps": {"first": {"function": "f"}, "step": step}, **others}


async def create(
    api: Caller, body: dict[str, Any], status: int = 201, headers: dict[str, str] | None = None
) -> dict[str, Any]:
    answer = await api.http.post("/v1/workflows", json=body, headers=headers)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture
async def sealing(world: World) -> AsyncIterator[Caller]:
    """With a master key for secrets, and keys required."""
    caller = caller_with(world, secret_key=generate_key(), auth="on")
    async with caller.http:
        yield caller


@proves("W1")
async def test_a_workflow_is_a_job_with_steps(api: Caller) -> None:
    created = await create(api, NIGHTLY)
    assert created["schedule_in_words"]
    assert created["target"]["workflow"]["steps"]["report"] == {
        "depends_on": ["list"],
        "target": {"function": "report"},
    }
    assert (created["target"]["workflow"]["on_failure"], created["target"]["workflow"]["blocked_for"]) == (
        "block",
        604_800,
    )
    found = await api.get(f"/v1/workflows/{created['id']}")
    assert found["target"] == created["target"]
    assert (await api.get(f"/v1/jobs/{created['id']}"))["target"] == created["target"]
    again = await create(api, NIGHTLY)
    assert (again["id"], again["version"]) == (created["id"], 1), "the same definition makes no new version"


@proves("W1")
async def test_workflows_are_listed_newest_first_and_other_jobs_are_not(api: Caller) -> None:
    first = await create(api, NIGHTLY)
    await api.create({"name": "plain", "function": "f", "every": "1h", "payload": {"kind": "workflow"}})
    await api.create({"name": "plain", "function": "f", "payload": {"target": '"kind":"workflow"'}})
    once = await create(api, {"name": "once", "steps": STEPS})
    page = await api.get("/v1/workflows", limit=1)
    assert [(item["id"], item["steps"], item["name"]) for item in page["items"]] == [(once["id"], 2, "once")]
    rest = await api.get("/v1/workflows", cursor=page["next_cursor"])
    assert [item["id"] for item in rest["items"]] == [first["id"]]
    assert rest["items"][0]["key"] == "nightly"
    assert [item["id"] for item in (await api.get("/v1/workflows", q="NIGHT"))["items"]] == [first["id"]]
    assert (await api.get("/v1/workflows", state="PAUSED"))["items"] == []


async def test_a_job_without_steps_is_no_workflow(api: Caller) -> None:
    refusal = await create(api, {"name": "n", "function": "f"}, 422)
    assert refusal["errors"][0]["pointer"] == "/steps"
    job = await api.create({"name": "plain", "function": "f"})
    answer = await api.http.get(f"/v1/workflows/{job['id']}")
    assert answer.status_code == 404
    assert "is no workflow" in answer.json()["detail"]


@proves("W2")
async def test_a_cycle_is_a_400_that_names_it(api: Caller) -> None:
    body = {"name": "n", "steps": {"a": {"depends_on": ["b"]}, "b": {"depends_on": ["a"]}}}
    for path in ("/v1/workflows", "/v1/jobs"):
        answer = await api.http.post(path, json=body)
        assert answer.status_code == 400
        assert answer.json()["type"] == "urn:ondot:problem:invalid-graph"
        assert "a → b → a" in answer.json()["detail"]
        assert answer.json()["errors"][0]["pointer"] == "/steps/a/depends_on/0"


@proves("W1")
async def test_a_patch_of_one_step_makes_a_new_version(api: Caller) -> None:
    created = await create(api, NIGHTLY)
    changes = {"steps": {"report": {"timeout": "5m"}}}
    answer = await api.http.patch(f"/v1/jobs/{created['id']}", json=changes)
    assert answer.status_code == 200, answer.text
    steps = answer.json()["target"]["workflow"]["steps"]
    assert (answer.json()["version"], steps["report"]["timeout"], steps["list"]) == (
        2,
        300,
        created["target"]["workflow"]["steps"]["list"],
    )
    assert (await api.http.patch(f"/v1/jobs/{created['id']}", json=changes)).json()["version"] == 2
    sent_back = await api.http.put(f"/v1/jobs/{created['id']}", json=answer.json())
    assert sent_back.json()["target"] == answer.json()["target"]


@proves("W5")
async def test_a_workflow_of_the_largest_size_is_created_and_read(api: Caller) -> None:
    steps = {
        f"s{i}": {"function": "f", "depends_on": [f"s{j}" for j in range(max(0, i - 10), i)]} for i in range(9_999)
    }
    created = await create(api, {"name": "large", "every": "1h", "steps": steps})
    assert len((await api.get(f"/v1/workflows/{created['id']}"))["target"]["workflow"]["steps"]) == 9_999


@proves("T1", "E6")
async def test_a_step_with_a_shell_command_needs_the_scope(keyed: Caller) -> None:
    world = keyed.world
    with_shell = await make_key_with(world, "editor", ["jobs:read", "jobs:write", "shell"])
    without = await make_key_with(world, "editor", ["jobs:read", "jobs:write"])
    shell = of({"command": ["true"]})
    refusal = await create(keyed, shell, 403, headers=without)
    assert Right.SHELL.value in refusal["detail"]
    created = await create(keyed, shell, headers=with_shell)
    for method, body in (("PATCH", {"labels": {"a": "b"}}), ("PUT", shell)):
        answer = await keyed.http.request(method, f"/v1/jobs/{created['id']}", json=body, headers=without)
        assert answer.status_code == 403
    plain = await create(keyed, of({"function": "f"}), headers=without)
    patch = {"steps": {"step": {"command": ["true"]}}}
    assert (await keyed.http.patch(f"/v1/jobs/{plain['id']}", json=patch, headers=without)).status_code == 403
    batch = await keyed.http.post("/v1/jobs/batch", json={"jobs": [shell]}, headers=without)
    assert batch.status_code == 403


@proves("T3", "T7")
async def test_calls_of_steps_are_kept_from_private_addresses_without_the_scope(keyed: Caller) -> None:
    world = keyed.world
    without = await make_key_with(world, "editor", ["jobs:read", "jobs:write"])
    trusted = await make_key_with(world, "editor", ["jobs:read", "jobs:write", "private-targets"])

    async def are_limited(job: dict[str, Any]) -> list[bool]:
        return [target.only_public for target in list_remote_targets((await world.job(JobId(UUID(job["id"])))).spec)]

    call = of({"url": "http://10.0.0.1/"})
    assert await are_limited(await create(keyed, call, headers=without)) == [True]
    created = await create(keyed, call, headers=trusted)
    assert await are_limited(created) == [False]
    await keyed.http.patch(f"/v1/jobs/{created['id']}", json={"labels": {"a": "b"}}, headers=without)
    assert await are_limited(created) == [True], "a patch cannot borrow the right of another"


@proves("T1")
async def test_steps_keep_to_the_pools_of_the_key(keyed: Caller) -> None:
    world = keyed.world
    id_ = world.database.clock.new_id()
    key = new_key(id_)
    async with world.database.connection() as connection:
        await add_key(connection, id_, DEFAULT_TENANT, "limited", key, role=Role.EDITOR, pools=["default"])
    headers = {"authorization": f"Bearer {key}"}
    refusal = await create(keyed, of({"function": "f", "pool": "gpu"}), 422, headers=headers)
    assert "Unknown pool 'gpu'" in refusal["detail"]
    assert refusal["errors"][0]["pointer"] == "/target/workflow/steps/step/pool"
    created = await create(keyed, of({"function": "f"}), headers=headers)
    patch = {"steps": {"step": {"pool": "gpu"}}}
    assert (await keyed.http.patch(f"/v1/jobs/{created['id']}", json=patch, headers=headers)).status_code == 422


@proves("T1")
async def test_steps_keep_to_the_pools_of_the_tenant(keyed: Caller) -> None:
    acme = await keyed.world.add_tenant("acme", pools=["default"])
    headers = await key_of(keyed.world, acme, Role.ADMIN)
    refusal = await create(keyed, of({"function": "f", "pool": "gpu"}), 422, headers=headers)
    assert "Unknown pool 'gpu'" in refusal["detail"]
    created = await create(keyed, of({"function": "f", "pool": "default"}), headers=headers)
    patch = {"steps": {"step": {"pool": "gpu"}}}
    assert (await keyed.http.patch(f"/v1/jobs/{created['id']}", json=patch, headers=headers)).status_code == 422


@proves("T5")
async def test_secrets_of_steps_go_only_where_they_may(sealing: Caller) -> None:
    world = sealing.world
    sealing.http.headers.update(await make_key_with(world, "admin"))
    await put(sealing, value=VALUE, hosts=["api.stripe.com"])

    def call(url: str) -> dict[str, Any]:
        return of({"target": {"http": {"url": url, "headers": {"authorization": {"$secret": "stripe"}}}}})

    refusal = await create(sealing, call("https://evil.example"), 422)
    assert "Step step: The secret 'stripe' may not be sent to evil.example" in refusal["detail"]
    inside = of({"function": "f", "payload": {"key": {"$secret": "stripe"}}})
    assert "may not be passed to the function 'f'" in (await create(sealing, inside, 422))["detail"]
    inherited = {**of({"function": "f", "payload": 1}), "payload": {"key": {"$secret": "stripe"}}}
    assert "may not be passed to the function" in (await create(sealing, inherited, 422))["detail"]
    assert (
        "Unknown secret 'strpe'"
        in (await create(sealing, of({"url": "http://x", "payload": {"$secret": "strpe"}}), 422))["detail"]
    )
    created = await create(sealing, call("https://api.stripe.com"))
    patch = {"steps": {"step": {"target": {"http": {"url": "https://evil.example"}}}}}
    assert (await sealing.http.patch(f"/v1/jobs/{created['id']}", json=patch)).status_code == 422
    without = await make_key_with(world, "editor", ["jobs:read", "jobs:write"])
    assert (await create(sealing, call("https://api.stripe.com"), 403, headers=without))["type"].endswith("forbidden")


@proves("T5")
async def test_credentials_of_steps_are_sealed_masked_and_kept(sealing: Caller) -> None:
    sealing.http.headers.update(await make_key_with(sealing.world, "admin"))
    token = "Bearer very-long-token-2468"
    http = {"url": "https://a.org", "headers": {"authorization": token, "x-team": "bi"}}
    created = await create(sealing, of({"target": {"http": http}}))
    shown = created["target"]["workflow"]["steps"]["step"]["target"]["http"]["headers"]
    assert shown == {"authorization": "•••", "x-team": "bi"}
    assert token not in await dump(sealing.world)
    answer = await sealing.http.patch(f"/v1/jobs/{created['id']}", json={"steps": {"step": {"timeout": "1m"}}})
    assert answer.status_code == 200, answer.text
    [kept] = list_remote_targets((await sealing.world.job(JobId(UUID(created["id"])))).spec)
    assert not isinstance(kept.headers["authorization"], str)
    assert kept.headers["authorization"].sealed is not None
    elsewhere = {"steps": {"step": {"target": {"http": {"url": "https://b.org"}}}}}
    assert (await sealing.http.patch(f"/v1/jobs/{created['id']}", json=elsewhere)).status_code == 422


@proves("T2")
async def test_a_quota_on_payloads_holds_for_payloads_of_steps(owned: Caller) -> None:
    await owned.http.post("/v1/tenants", json={"name": "acme", "quotas": {"payload_bytes": 1024}})
    acme = await owned.world.database.tenants.by_name("acme")
    assert acme is not None
    headers = await key_of(owned.world, acme.tenant_no, Role.ADMIN)
    body = of({"function": "f", "payload": "x" * 2000})
    answer = await owned.http.post("/v1/workflows", json=body, headers=headers)
    assert answer.status_code != 201, answer.text
    assert "payload" in answer.text


@proves("T5")
async def test_doctor_counts_a_workflow_whose_credentials_are_stored_in_plain_once(api: Caller) -> None:
    http = {"target": {"http": {"url": "https://a.org", "headers": {"authorization": "Bearer abcdefgh", "x-a": "b"}}}}
    created = await create(api, {"name": "n", "every": "1h", "steps": {"a": http, "b": http, "c": {"function": "f"}}})
    assert "stored in plain" in created["warnings"][0]["detail"]
    await create(api, of({"function": "f"}))
    async with api.world.database.connection() as connection:
        assert await count_plain_credentials(connection, 100) == 1
