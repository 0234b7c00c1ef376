"""`/v1/audit` as a client sees it: who did what, and when."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.model.keys import new_key
from ondot.store.audit import Action, record
from ondot.store.keys import add_key
from tests.api.conftest import Caller
from tests.proves import proves
from tests.world import failed


async def key_of(api: Caller, name: str, tenant_no: TenantNo = DEFAULT_TENANT) -> dict[str, str]:
    id_ = api.world.database.clock.new_id()
    key = new_key(id_)
    async with api.world.database.connection() as connection:
        await add_key(connection, id_, tenant_no, name, key)
    return {"authorization": f"Bearer {key}"}


async def list_audit(api: Caller, headers: dict[str, str] | None = None, **parameters: Any) -> dict[str, Any]:
    answer = await api.http.get("/v1/audit", params=parameters, headers=headers or {})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


@proves("T6")
async def test_the_name_of_the_key_goes_into_the_audit_log(keyed: Caller) -> None:
    ann, other = await key_of(keyed, "ann"), await key_of(keyed, "eve", await keyed.world.add_tenant())
    body = {"name": "broken", "function": "f", "max_retries": 0}
    assert (await keyed.http.post("/v1/jobs", json=body, headers=ann)).status_code == 201
    worker = await keyed.world.worker()
    id_ = str((await worker.run_one(failed())).leased.id)
    for headers, status in (({}, 401), (other, 404), (ann, 201)):
        assert (await keyed.http.post(f"/v1/executions/{id_}/retry", headers=headers)).status_code == status
    [entry] = (await list_audit(keyed, ann))["items"]
    assert (entry["actor"], entry["action"], entry["subject"]) == ("ann", "execution.retry", id_)
    assert entry["detail"].keys() == {"replay_id"}
    assert (await list_audit(keyed, other))["items"] == []
    letter = (await keyed.http.get(f"/v1/dead-letters/{id_}", headers=ann)).json()
    assert letter["resolved_by"] == "ann"
    assert (await keyed.http.get(f"/v1/dead-letters/{id_}", headers=other)).status_code == 404


@proves("T6")
async def test_actions_are_listed_newest_first_by_subject_and_action(api: Caller) -> None:
    one, two = uuid4(), uuid4()
    done: list[tuple[UUID, Action]] = [(one, "execution.retry"), (two, "execution.cancel"), (one, "execution.cancel")]
    for subject, action in done:
        async with api.world.database.connection() as connection:
            await record(connection, DEFAULT_TENANT, "ann", action, subject, {"reason": "why", "nothing": None})
        await api.world.advance(0.001)
    listed = (await list_audit(api))["items"]
    assert [(entry["subject"], entry["action"]) for entry in listed] == [
        (str(one), "execution.cancel"),
        (str(two), "execution.cancel"),
        (str(one), "execution.retry"),
    ]
    assert listed[0]["detail"] == {"reason": "why"}
    instants = [datetime.fromisoformat(entry["at"]) for entry in listed]
    assert instants[0] > instants[1] > instants[2]
    assert len((await list_audit(api, subject=str(one)))["items"]) == 2
    assert len((await list_audit(api, subject=str(one), action="execution.retry"))["items"]) == 1
    first = await list_audit(api, limit=2)
    rest = await list_audit(api, limit=2, cursor=first["next_cursor"])
    assert [*first["items"], *rest["items"]] == listed
    assert rest["next_cursor"] is None
    for bad in ({"subject": "x"}, {"cursor": "x"}, {"actors": "ann"}):
        assert (await api.http.get("/v1/audit", params=bad)).status_code == 422


@proves("T6")
async def test_an_entry_has_the_instant_of_the_database_in_an_id_of_version_7(api: Caller) -> None:
    await api.world.advance(0.123456)
    async with api.world.database.connection() as connection:
        await record(connection, DEFAULT_TENANT, "ann", "execution.cancel", None)
    [entry] = (await list_audit(api))["items"]
    assert (UUID(entry["id"]).version, entry["subject"], entry["detail"]) == (7, None, None)
    late = api.world.now - datetime.fromisoformat(entry["at"])
    assert timedelta(0) <= late < timedelta(milliseconds=1)
