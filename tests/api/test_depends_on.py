"""`depends_on` of `/v1/jobs`: which parents are accepted, and what a caller learns about a job that waits."""

from typing import Any
from uuid import UUID, uuid4

import pytest

from ondot.flow.workflows.depends import settle_parents
from ondot.model.access import Role
from ondot.model.ids import DEFAULT_TENANT, JobId
from tests.api.conftest import Caller, key_of
from tests.proves import proves


def job(name: str = "child", **fields: Any) -> dict[str, Any]:
    return {"name": name, "function": "hello", **fields}


@proves("W1", "E17")
async def test_a_job_that_waits_shows_its_parents_and_explains_itself(api: Caller) -> None:
    parents = [await api.create(job(f"parent-{no}", key=f"key-{no}", **{"in": "1h"})) for no in range(3)]
    child = await api.create(job(depends_on=["key-0", "key-1", parents[2]["id"]]))
    assert child["depends_on"] == [parent["id"] for parent in parents]
    assert (await api.get(f"/v1/jobs/{child['id']}"))["depends_on"] == child["depends_on"]
    assert (await api.get(f"/v1/jobs/{child['id']}/status"))["status"] == "BLOCKED"
    explanation = await api.get(f"/v1/executions/{await api.execution_of(child)}/explain")
    assert "waits for 3 of 3 jobs" in explanation["reasons"][0]["message"]
    answer = await api.http.delete(f"/v1/jobs/{parents[0]['id']}")
    assert answer.status_code == 200
    await settle_parents(api.world.database, api.world.dispatcher, [JobId(UUID(parent["id"])) for parent in parents])
    explanation = await api.get(f"/v1/executions/{await api.execution_of(child)}/explain")
    stuck, waiting = explanation["reasons"]
    assert "which was deleted" in stuck["message"]
    assert "depends_on" in stuck["what_to_do"]
    assert "waits for 2 of 3 jobs" in waiting["message"]


@proves("W2")
@pytest.mark.parametrize("parent", ["no-such-key", "0198c5a0-7d3c-7e60-b1b2-3f4a5b6c7d8e"])
async def test_an_unknown_parent_is_400_with_a_pointer(api: Caller, parent: str) -> None:
    answer = await api.http.post("/v1/jobs", json=job(depends_on=[parent]))
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:ondot:problem:invalid-graph")
    assert answer.json()["errors"][0]["pointer"] == "/depends_on/0"
    batch = await api.http.post("/v1/jobs/batch", json={"jobs": [job("a"), job(depends_on=[parent])]})
    assert (batch.status_code, batch.json()["errors"][0]["pointer"]) == (400, "/jobs/1/depends_on/0")
    assert await api.world.count("job") == 0


@proves("W2", "T1")
async def test_a_job_of_another_tenant_is_as_unknown_as_one_that_never_was(keyed: Caller) -> None:
    other = await keyed.world.add_tenant()
    mine, theirs = [await key_of(keyed.world, no, Role.EDITOR) for no in (DEFAULT_TENANT, other)]
    foreign = (await keyed.http.post("/v1/jobs", json=job("a"), headers=theirs)).json()["id"]
    details = set()
    for parent in (foreign, str(uuid4())):
        answer = await keyed.http.post("/v1/jobs", json=job(depends_on=[parent]), headers=mine)
        assert answer.status_code == 400
        details.add(answer.json()["errors"][0]["detail"].replace(parent, "X"))
    assert len(details) == 1


@proves("W1")
async def test_a_recurring_parent_is_422_that_proposes_a_workflow(api: Caller) -> None:
    parent = await api.create(job("r", every="1h"))
    answer = await api.http.post("/v1/jobs", json=job(depends_on=[parent["id"]]))
    assert answer.status_code == 422
    assert "workflow" in answer.json()["errors"][0]["detail"]


@proves("W2")
async def test_jobs_of_a_batch_that_wait_for_each_other_are_refused_with_their_cycle(api: Caller) -> None:
    jobs = [job("a", key="a", depends_on=["b"]), job("b", key="b", depends_on=["a"])]
    answer = await api.http.post("/v1/jobs/batch", json={"jobs": jobs})
    assert answer.status_code == 400
    assert "a → b → a" in answer.json()["detail"] or "b → a → b" in answer.json()["detail"]


@proves("W1", "P2")
async def test_a_repeated_request_gets_its_answer_though_the_parent_is_gone(api: Caller) -> None:
    parent = await api.create(job("a", **{"in": "1h"}))
    body = job(depends_on=[parent["id"]])
    first = await api.create(body, **{"idempotency-key": "once"})
    await api.world.fetch("DELETE FROM ondot.job_once WHERE id = $1", JobId(parent["id"]))
    assert await api.create(body, **{"idempotency-key": "once"}) == first


@proves("W1", "S8")
async def test_a_patch_that_leaves_out_a_parent_lets_the_job_run(api: Caller) -> None:
    parent = await api.create(job("a", **{"in": "1h"}))
    child = await api.create(job(depends_on=[parent["id"]]))
    answer = await api.http.patch(f"/v1/jobs/{child['id']}", json={"depends_on": []})
    assert (answer.status_code, answer.json()["depends_on"]) == (200, [])
    assert len(await api.run_all()) == 1
    assert (await api.get(f"/v1/jobs/{child['id']}/status"))["status"] == "SUCCEEDED"


@proves("W1")
async def test_a_child_learns_of_a_cancelled_parent_without_housekeeping(api: Caller) -> None:
    parent = await api.create(job("parent"))
    child = await api.create(job(depends_on=[parent["id"]]))
    answer = await api.http.post(f"/v1/executions/{await api.execution_of(parent)}/cancel")
    assert answer.status_code in {200, 202}, answer.text
    assert await api.world.count("arrival") == 0
    [reason] = (await api.get(f"/v1/executions/{await api.execution_of(child)}/explain"))["reasons"]
    assert "which ended CANCELLED" in reason["message"]
