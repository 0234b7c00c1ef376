"""Saved views: who sees them, who changes them, and what they cannot be."""

from typing import Any

from ondot.flow import saved_views
from ondot.model.access import Role
from tests.api.conftest import Caller
from tests.api.test_rights import headers_of
from tests.proves import proves

FAILED = {"name": "failed tonight", "of": "executions", "q": "state:failed since:12h"}


@proves("O1", "T1")
async def test_own_views_are_private_and_shared_ones_are_changed_by_writers(keyed: Caller) -> None:
    viewer, other, editor = [await headers_of(keyed.world, role) for role in (Role.VIEWER, Role.VIEWER, Role.EDITOR)]
    limited = await headers_of(keyed.world, Role.EDITOR, pools=["gpu"])

    async def send(method: str, path: str, who: dict[str, str], body: Any = None) -> tuple[int, Any]:
        answer = await keyed.http.request(method, f"/v1/views{path}", headers=who, json=body)
        return answer.status_code, answer.json()

    async def names(who: dict[str, str], **parameters: str) -> list[str]:
        answer = await keyed.http.get("/v1/views", headers=who, params=parameters)
        return [view["name"] for view in answer.json()["items"]]

    status, own = await send("POST", "", viewer, FAILED)
    assert (status, own["shared"], own["q"]) == (201, False, FAILED["q"])
    assert (await send("POST", "", viewer, FAILED))[0] == 409
    assert (await send("POST", "", viewer, FAILED | {"of": "runs", "q": "state:failed"}))[0] == 201
    assert (await send("POST", "", other, FAILED))[0] == 201, "names are of each owner"
    assert (await send("POST", "", viewer, FAILED | {"shared": True}))[0] == 403
    status, shared = await send("POST", "", editor, FAILED | {"name": "all", "shared": True})
    assert status == 201

    assert await names(viewer) == ["failed tonight", "failed tonight", "all"]
    assert await names(viewer, of="executions", name="failed tonight") == ["failed tonight"]
    assert await names(editor) == ["all"]
    assert await names(limited) == [], "a shared query may name pools that this key must not see"
    assert (await send("POST", "", limited, FAILED))[0] == 201
    assert await names(limited) == ["failed tonight"]
    assert (await send("POST", "", limited, FAILED | {"shared": True}))[0] == 403

    mine, ours = f"/{own['id']}", f"/{shared['id']}"
    for method, body in (("GET", None), ("PATCH", {"q": "state:failed"}), ("DELETE", None)):
        assert (await send(method, mine, editor, body))[0] == 404, "another user's view does not exist"
        assert (await send(method, ours, limited, body))[0] == 404
    for method, body in (("PATCH", {"q": "state:failed"}), ("DELETE", None)):
        assert (await send(method, ours, viewer, body))[0] == 403
    assert (await send("PATCH", mine, viewer, {"shared": True}))[0] == 403
    assert (await send("PATCH", mine, viewer, {"name": "mine", "q": "took>1h"}))[1]["q"] == "took>1h"
    assert (await send("PATCH", ours, editor, {"shared": False, "name": "mine"}))[1]["shared"] is False
    assert await names(viewer) == ["mine", "failed tonight"], "an unshared view is the writer's own"
    assert (await send("DELETE", mine, viewer))[0] == 200
    assert (await send("GET", mine, viewer))[0] == 404


@proves("O1")
async def test_a_view_that_could_not_list_anything_is_rejected(api: Caller, monkeypatch: Any) -> None:
    async def post(**changes: Any) -> tuple[int, dict[str, Any]]:
        answer = await api.http.post("/v1/views", json=FAILED | changes)
        return answer.status_code, answer.json()

    status, problem = await post(q="stat:failed")
    assert (status, problem["type"], problem["near"]) == (422, "urn:ondot:problem:invalid-query", "state")
    assert (await post(of="jobs"))[0] == 422, "a query is checked for what it lists"
    for wrong in ({"q": ""}, {"q": "x" * 2_001}, {"name": ""}, {"name": "a\nb"}, {"of": "workers"}, {"color": "red"}):
        assert (await post(**wrong))[0] == 422, wrong
    status, made = await post()
    assert status == 201
    for wrong in ({}, {"q": "stat:failed"}, {"of": "jobs"}):
        assert (await api.http.patch(f"/v1/views/{made['id']}", json=wrong)).status_code == 422, wrong
    assert (await post(name="other"))[0] == 201
    renamed = await api.http.patch(f"/v1/views/{made['id']}", json={"name": "other"})
    assert renamed.status_code == 409
    key = {"Idempotency-Key": "once"}
    first, again = [await api.http.post("/v1/views", json=FAILED | {"name": "once"}, headers=key) for _ in range(2)]
    assert (first.status_code, first.content) == (201, again.content)
    monkeypatch.setattr(saved_views, "MOST", 3)
    status, problem = await post(name="one more")
    assert (status, "delete some" in problem["detail"]) == (409, True)
    listed = (await api.http.get("/v1/views", params={"format": "csv"})).text
    assert listed.splitlines()[0].startswith("id,name,of,q")
