"""Steps of runs through the API (W7, W8): approvals, signed links, items and limits of maps."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import Raw

from ondot.kms import generate_key
from ondot.model.access import Role
from ondot.model.ids import ExecutionId
from ondot.model.workflow.spec import Approve, MapSpec
from tests.api.conftest import Caller, caller_of
from tests.api.test_rights import headers_of
from tests.flow.workflows import advance, run_state, start, step, step_states
from tests.proves import proves
from tests.world import World, failed

STEPS = {"ok": step(target=Approve(by="editor")), "go": step("ok")}


@pytest.fixture
async def api(world: World) -> AsyncIterator[Caller]:
    """An editor; with a master key, from which the key of links is derived."""
    caller = caller_of(world, secret_key=generate_key(), public_url="https://ondot.example.com")
    async with caller.http:
        caller.http.headers.update(await headers_of(world, Role.EDITOR))
        yield caller


async def begin(api: Caller, steps: dict[str, Any]) -> ExecutionId:
    return await start(api.world, await api.world.worker(), steps)


async def make_link(api: Caller, run: ExecutionId, **body: Any) -> str:
    made = await api.http.post(f"/v1/runs/{run}/steps/ok/link", json=body)
    assert made.status_code == 201, made.text
    url: str = made.json()["url"]
    assert url.startswith("https://ondot.example.com/approvals/")
    return url.removeprefix("https://ondot.example.com")


@proves("W8")
async def test_a_person_approves_a_step_and_the_run_goes_on(api: Caller) -> None:
    run = await begin(api, STEPS)
    answer = await api.http.post(f"/v1/runs/{run}/steps/ok/approve", json={"reason": "checked"})
    assert answer.json() == {"run_id": str(run), "step": "ok", "approved": True}
    assert await step_states(api.world, run) == {"ok": "SUCCEEDED", "go": "RELEASED"}
    result = await api.world.value("SELECT result->>'reason' FROM ondot.step WHERE step_no = 0")
    assert result == "checked"
    again = await api.http.post(f"/v1/runs/{run}/steps/ok/reject")
    assert again.status_code == 409
    assert "is decided" in again.json()["detail"]
    [entry] = await api.world.fetch(
        "SELECT action, detail->>'step' AS step FROM ondot.audit WHERE action = 'step.approve'"
    )
    assert entry["step"] == "ok"


@proves("W8")
async def test_a_rejected_step_fails_with_who_and_why(api: Caller) -> None:
    run = await begin(api, STEPS)
    await api.http.post(f"/v1/runs/{run}/steps/ok/reject", json={"reason": "too early"})
    assert await step_states(api.world, run) == {"ok": "FAILED", "go": "BLOCKED"}
    assert await run_state(api.world, run) == "BLOCKED"
    message = await api.world.value("SELECT error->>'message' FROM ondot.dead_letter")
    assert "rejected by" in message
    assert "too early" in message


@proves("W8", "T7")
async def test_only_a_caller_of_the_role_may_decide(api: Caller) -> None:
    run = await begin(api, STEPS)
    operator = await headers_of(api.world, Role.OPERATOR)
    for verb in ("approve", "reject", "link"):
        answer = await api.http.post(f"/v1/runs/{run}/steps/ok/{verb}", headers=operator)
        assert answer.status_code == 403, answer.text
        assert "the role editor or above; you have operator" in answer.json()["detail"]
    editor = await headers_of(api.world, Role.EDITOR)
    assert (await api.http.post(f"/v1/runs/{run}/steps/ok/approve", headers=editor)).status_code == 200


@proves("W8")
async def test_a_step_that_does_not_wait_for_approval_is_a_conflict(api: Caller) -> None:
    run = await begin(api, {"a": step(), "ok": step("a", target=Approve())})
    for name, words in (("ok", "does not wait for approval yet"), ("a", "has no `approve`")):
        answer = await api.http.post(f"/v1/runs/{run}/steps/{name}/approve")
        assert answer.status_code == 409
        assert words in answer.json()["detail"]
    assert (await api.http.post(f"/v1/runs/{run}/steps/nobody/approve")).status_code == 404


@proves("W8")
async def test_a_link_asks_first_and_decides_once(api: Caller) -> None:
    run = await begin(api, STEPS)
    path = await make_link(api, run)
    for _ in range(3):
        asked = await api.http.get(path)
        assert asked.status_code == 200
        assert "waits for approval" in asked.text
    assert (await step_states(api.world, run))["ok"] == "RELEASED", "a program that follows links decides nothing"
    form = {"content-type": "application/x-www-form-urlencoded", "origin": "https://ondot.example.com"}
    decided = await api.http.post(path, content="decision=approve&reason=fine", headers=form)
    assert decided.status_code == 200, decided.text
    assert (await step_states(api.world, run))["ok"] == "SUCCEEDED"
    assert (await api.http.post(path, content="decision=reject", headers=form)).status_code == 409
    assert (await api.http.get(path)).status_code == 409


@proves("W8", "T5")
async def test_a_link_that_was_changed_or_has_expired_is_none(api: Caller) -> None:
    run = await begin(api, STEPS)
    path = await make_link(api, run, expires_in="1h")
    content, _, signature = path.removeprefix("/approvals/").partition(".")
    other = ("A" if content[10] != "A" else "B").join((content[:10], content[11:]))
    for wrong in (f"{other}.{signature}", f"{content}.{signature[:-2]}", content, "x.y", f"{content}."):
        assert (await api.http.get(f"/approvals/{wrong}")).status_code == 404
    await api.world.advance(3600)
    assert (await api.http.get(path)).status_code == 404
    assert "expired" in (await api.http.get(path)).text


@proves("W7")
async def test_limits_of_a_map_are_changed_while_it_runs(api: Caller) -> None:
    world = api.world
    worker = await world.worker()
    run = await start(world, worker, {"process": step(map=MapSpec(over=Raw(b"[1,2,3,4,5,6]"), concurrency=1))})
    path = f"/v1/runs/{run}/steps/process"
    assert (await api.http.patch(path, json={})).status_code == 422
    answer = await api.http.patch(path, json={"concurrency": 3, "tolerate": {"count": 1}})
    assert answer.status_code == 200, answer.text
    first, *others = await worker.lease()
    assert len(others) == 2
    await worker.complete(first, failed(retryable=False))
    await worker.complete_all(others)
    await advance(world, run)
    items = (await api.get(f"{path}/items"))["items"]
    assert [item["state"] for item in items] == ["FAILED", "SUCCEEDED", "SUCCEEDED", *["RELEASED"] * 3]
    page = await api.get(f"{path}/items", limit=2, state="RELEASED")
    assert [item["item"] for item in page["items"]] == [3, 4]
    assert [item["item"] for item in (await api.get(f"{path}/items", cursor=page["next_cursor"]))["items"]] == [5]
    await worker.complete_all(await worker.lease())
    await advance(world, run)
    assert await run_state(world, run) == "SUCCEEDED"
    assert (await api.http.patch(path, json={"concurrency": 3})).status_code == 409
