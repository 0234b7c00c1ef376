"""The audit log with its filters, as a file, and verified over the API; and the id of each request (T6)."""

import asyncio
import csv
import io
import json
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from ondot.api.routes.audit import EXPORTED_AT_ONCE
from ondot.flow.audit_seal import Sealer
from ondot.model.ids import DEFAULT_TENANT, INSTALLATION, TenantNo
from ondot.store.audit import By, record, record_all
from tests.api.conftest import Caller
from tests.api.test_audit import key_of, list_audit
from tests.proves import proves

RECURS = {"name": "report", "function": "f", "cron": "0 9 * * *"}


@proves("T6")
async def test_an_entry_names_the_key_the_address_and_the_request(keyed: Caller) -> None:
    ann = await key_of(keyed, "ann")
    answer = await keyed.http.post("/v1/jobs", json=RECURS, headers=ann | {"x-request-id": "req-7"})
    assert answer.headers["x-request-id"] == "req-7"
    [entry] = (await list_audit(keyed, ann))["items"]
    [key_id] = [row["id"] for row in await keyed.world.fetch("SELECT id FROM ondot.key")]
    assert (entry["actor"], entry["key_id"], entry["user_id"]) == ("ann", str(key_id), None)
    assert (entry["address"], entry["request_id"]) == ("127.0.0.1", "req-7")
    assert entry["home_tenant"] is None


@proves("T6")
async def test_an_owner_who_acts_for_a_tenant_is_recorded_with_the_name_of_its_own(owned: Caller) -> None:
    await owned.world.add_tenant("acme")
    for_acme = {"ondot-tenant": "acme"}
    await owned.create(RECURS, **for_acme)
    [entry] = (await list_audit(owned, for_acme))["items"]
    home = (await owned.world.database.tenants.snapshot())[DEFAULT_TENANT].name
    assert entry["home_tenant"] == home
    file = await owned.http.get("/v1/audit/export", headers=for_acme)
    assert json.loads(file.text)["home_tenant"] == home


@pytest.mark.parametrize("sent", ["", "a b", 'a"b', "x" * 129, "\u00e9", "-x", "a\tb", "{}"])
@proves("T6")
async def test_an_odd_request_id_is_replaced(api: Caller, sent: str) -> None:
    answer = await api.http.get("/v1/audit", headers={b"x-request-id": sent.encode("latin-1")})
    made = answer.headers["x-request-id"]
    assert made != sent
    assert made.replace("-", "").isalnum()
    again = await api.http.get("/v1/nothing")
    assert (again.status_code, again.headers["x-request-id"] != made) == (404, True)


@proves("T6")
async def test_filters_find_entries_by_actor_key_user_request_and_time(api: Caller) -> None:
    one, two = UUID(int=1), UUID(int=2)
    begin = api.world.now
    for by in (By("ann", key_id=one, request_id="r1"), By("bob", user_id=two, request_id="r2")):
        async with api.world.database.connection() as connection:
            await record(connection, DEFAULT_TENANT, by, "execution.cancel", None)
        await api.world.advance(60)
    later = api.world.after(-60).isoformat()
    cases: list[tuple[str, dict[str, Any]]] = [
        ("ann", {"actor": "ann"}),
        ("ann", {"key_id": str(one)}),
        ("bob", {"user_id": str(two)}),
        ("bob", {"request_id": "r2"}),
        ("ann", {"to_at": later}),
        ("bob", {"from_at": later}),
        ("ann", {"from_at": begin.isoformat(), "to_at": later}),
    ]
    for found, where in cases:
        assert [entry["actor"] for entry in (await list_audit(api, **where))["items"]] == [found], where
    assert (await list_audit(api, from_at=later, to_at=begin.isoformat()))["items"] == []
    for bad in ({"key_id": "x"}, {"from_at": "2026-01-01"}, {"user_id": "1"}, {"key": str(one)}):
        assert (await api.http.get("/v1/audit", params=bad)).status_code == 422


@proves("T6")
async def test_an_export_has_every_entry_in_both_formats(api: Caller) -> None:
    count = EXPORTED_AT_ONCE * 2 + 3
    by = By("=cmd()", 'it\'s, "quoted"\nand long')
    async with api.world.database.connection() as connection:
        await record_all(
            connection, DEFAULT_TENANT, by, "execution.cancel", [(UUID(int=n), {"n": n}) for n in range(count)]
        )
        await record(connection, TenantNo(2), by, "execution.cancel", None)
    answer = await api.http.get("/v1/audit/export")
    assert answer.headers["content-type"] == "application/x-ndjson"
    entries = [json.loads(line) for line in answer.text.splitlines()]
    assert {entry["detail"]["n"] for entry in entries} == set(range(count))
    assert len(entries) == count
    listed = (await list_audit(api, limit=1000))["items"]
    assert entries[:1000] == listed
    answer = await api.http.get("/v1/audit/export", params={"format": "csv"})
    rows = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    assert [row["id"] for row in rows] == [entry["id"] for entry in entries]
    assert rows[0]["reason"] == by.reason
    assert rows[0]["actor"] == "'=cmd()", "a spreadsheet would run it"
    only = await api.http.get("/v1/audit/export", params={"subject": str(UUID(int=5))})
    assert len(only.text.splitlines()) == 1
    assert (await api.http.get("/v1/audit/export", params={"format": "xml"})).status_code == 422
    assert (await api.http.get("/v1/audit/export", params={"action": "none"})).text == ""


@proves("T6")
async def test_the_api_verifies_the_log_of_the_caller(api: Caller) -> None:
    await api.create(RECURS)
    with capture_logs() as logs:
        await Sealer(api.world.database, None).one_pass()
    [head] = [entry["head"] for entry in logs if entry["event"] == "audit.sealed"]
    found = await api.get("/v1/audit/verify", head=head)
    assert (found["intact"], found["entries"], found["head"], found["signed"]) == (True, 1, head, 0)
    async with api.world.database.connection() as connection:
        await connection.execute("UPDATE ondot.audit SET actor = 'eve'")
    found = await api.get("/v1/audit/verify")
    [entry] = (await list_audit(api))["items"]
    assert (found["intact"], found["faults"][0]["entry"]) == (False, entry["id"])
    for bad in ({"head": "x"}, {"head": "ab"}, {"from_at": "yesterday"}):
        assert (await api.http.get("/v1/audit/verify", params=bad)).status_code == 422


@proves("T6", "T1")
async def test_only_an_owner_sees_the_log_of_the_installation(keyed: Caller) -> None:
    async with keyed.world.database.connection() as connection:
        await record(connection, INSTALLATION, "ann", "database.accept", None)
    ann = await key_of(keyed, "ann")

    async def status_of(path: str, headers: dict[str, Any]) -> int:
        return (await keyed.http.get(path, params={"installation": "true"}, headers=headers)).status_code

    for path in ("/v1/audit", "/v1/audit/export", "/v1/audit/verify"):
        assert await status_of(path, ann) == 403
    owner = await key_of(keyed, "boss")
    async with keyed.world.database.connection() as connection:
        await connection.execute("UPDATE ondot.key SET role = 'owner'")
    answer = await keyed.http.get("/v1/audit", params={"installation": "true"}, headers=owner)
    assert [entry["action"] for entry in answer.json()["items"]] == ["database.accept"]
    assert (await list_audit(keyed, owner))["items"] == []


@proves("T6")
async def test_a_one_time_job_records_the_key_that_created_it_instead_of_an_entry(keyed: Caller) -> None:
    ann, bob = await key_of(keyed, "ann"), await key_of(keyed, "bob")
    bodies: list[dict[str, Any]] = [
        {"name": "now", "function": "f"},
        {"name": "unique", "function": "f", "unique": {"key": "k"}},
        {"name": "later", "function": "f", "in": "10m"},
    ]
    made = []
    for headers in (ann, bob):
        answers = await asyncio.gather(
            *(keyed.http.post("/v1/jobs", json=body, headers=headers) for body in bodies),
            keyed.http.post("/v1/jobs/batch", json={"jobs": bodies[:1] * 3}, headers=headers),
        )
        assert all(answer.status_code == 201 for answer in answers), [answer.text for answer in answers]
        made.append(
            [answers[0].json()["id"], answers[2].json()["id"], *(job["id"] for job in answers[3].json()["items"])]
        )
    keys = {row["name"]: str(row["id"]) for row in await keyed.world.fetch("SELECT id, name FROM ondot.key")}
    for name, headers, ids in zip(("ann", "bob"), (ann, bob), made, strict=True):
        for id_ in ids:
            status = (await keyed.http.get(f"/v1/jobs/{id_}/status", headers=headers)).json()
            assert status["created_by"] == keys[name]
    assert await keyed.world.count("audit") == 0
