"""`/v1/bulk` (O8): bodies, answers, results, stop and undo. The machinery itself: tests/flow/test_bulk.py."""

from typing import Any
from uuid import UUID

import pytest

from ondot.flow.bulk import turns
from ondot.flow.bulk.turns import bulk_pass
from tests.api.conftest import Caller
from tests.proves import proves

BULK = "/v1/bulk"
ID = "019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a"


async def post(api: Caller, path: str, body: Any, status: int) -> dict[str, Any]:
    answer = await api.http.post(path, json=body)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def work(api: Caller) -> None:
    await bulk_pass(api.world.database, api.world.dispatcher)
    await api.world.advance(1)


@proves("O8")
async def test_jobs_are_counted_paused_and_resumed_by_an_undo(api: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_WITHIN_S", 60.0)
    made = [
        await post(api, "/v1/jobs", {"name": f"j{n}", "every": "1h", "function": "f", "labels": {"n": str(n)}}, 201)
        for n in range(3)
    ]
    ids = [job["id"] for job in made]
    body = {"of": "jobs", "action": "pause", "ids": [*ids, ID], "reason": "a release"}
    counted = await post(api, BULK, body | {"dry_run": True}, 200)
    assert (counted["count"], counted["looked_at"], counted["refused"]) == (4, 4, 1)
    assert [item["name"] for item in counted["sample"]] == ["j0", "j1", "j2"]
    assert counted["refusals"] == [
        {"id": ID, "result": "refused", "detail": f"There is no job {ID}.", "execution_id": None}
    ]
    headers = {"Idempotency-Key": "once"}
    first = await api.http.post(BULK, json=body, headers=headers)
    again = await api.http.post(BULK, json=body, headers=headers)
    assert (first.status_code, again.json()) == (202, first.json())
    id_ = first.json()["id"]
    await work(api)
    done = await api.get(f"{BULK}/{id_}")
    assert (done["state"], done["done"], done["refused"], done["total"], done["ids"]) == ("DONE", 3, 1, 4, 4)
    assert (done["reason"], done["can_be_undone"]) == ("a release", True)
    page = await api.get(f"{BULK}/{id_}/items", limit=1)
    rest = await api.get(f"{BULK}/{id_}/items", limit=10, cursor=page["next_cursor"])
    assert len(page["items"]) + len(rest["items"]) == 4
    refused = await api.get(f"{BULK}/{id_}/items", result="refused")
    assert [item["id"] for item in refused["items"]] == [ID]
    undos = [
        await api.http.post(f"{BULK}/{id_}/undo", json={"reason": "over"}, headers={"Idempotency-Key": "back"})
        for _ in range(2)
    ]
    assert [answer.status_code for answer in undos] == [202, 202], undos[-1].text
    undone = undos[0].json()
    assert undos[1].json() == undone
    assert (undone["action"], undone["undo_of"], undone["total"]) == ("resume", id_, 3)
    stopped = await post(api, f"{BULK}/{undone['id']}/stop", None, 200)
    assert (stopped["state"], stopped["done"]) == ("CANCELLED", 0)
    assert (await api.get(f"{BULK}/{id_}"))["undone_by"] == undone["id"]
    assert [item["id"] for item in (await api.get(BULK, of="jobs"))["items"]] == [undone["id"], id_]
    assert (await api.get(BULK, of="runs"))["items"] == []
    await post(api, f"{BULK}/{UUID(int=1)}/stop", None, 404)
    cancelled = await post(api, BULK, {"of": "executions", "action": "cancel", "ids": [ID]}, 202)
    await work(api)
    refusal = await post(api, f"{BULK}/{cancelled['id']}/undo", None, 409)
    assert "cannot be undone" in refusal["detail"]


@proves("O8", "P9")
@pytest.mark.parametrize(
    ("body", "pointer", "message"),
    [
        ({"of": "jobs", "action": "pause"}, "", "No items are named"),
        ({"of": "jobs", "action": "cancel", "ids": [ID]}, "/action", "Use one of: pause, resume, run, update, delete"),
        ({"of": "jobs", "action": "pause", "ids": [ID], "all": True}, "/all", "exclude each other"),
        ({"of": "jobs", "action": "update", "ids": [ID]}, "/set", "`set` is missing"),
        ({"of": "jobs", "action": "update", "ids": [ID], "set": {"priority": "top"}}, "/set/priority", "priority"),
        ({"of": "jobs", "action": "pause", "ids": [ID], "set": {"priority": "low"}}, "/set", "Leave it out"),
        ({"of": "dead_letters", "action": "discard", "ids": [ID]}, "/reason", "state why"),
        ({"of": "jobs", "action": "pause", "ids": ["x"]}, "/ids/0", "an id"),
        ({"of": "jobs", "action": "pause", "ids": []}, "/ids", "ids"),
        ({"of": "jobs", "action": "pause", "ids": [ID], "per_s": 0}, "/per_s", "per_s"),
        ({"of": "pools", "action": "pause", "ids": [ID]}, "/of", "of"),
    ],
)
async def test_a_bad_request_names_the_field_and_what_to_do(
    api: Caller, body: dict[str, Any], pointer: str, message: str
) -> None:
    answer = await post(api, BULK, body, 422)
    faults = {fault["pointer"]: fault["detail"] for fault in answer["errors"]}
    assert pointer in faults
    assert message in faults[pointer]
