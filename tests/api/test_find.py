"""`GET /v1/find`: what people type, to what may be meant."""

from typing import Any

import pytest

from ondot.flow.find import MOST
from ondot.model.access import Right, Role
from ondot.model.ids import DEFAULT_TENANT
from tests.api.conftest import Caller, key_of
from tests.proves import proves

HOURLY = {"url": "https://example.com/x", "every": "1h"}


async def found(api: Caller, q: str, **parameters: Any) -> list[tuple[str, str, str]]:
    """Kind, name and match of each candidate."""
    answer = await api.get("/v1/find", q=q, **parameters)
    return [(each["kind"], each["name"], each["match"]) for each in answer["items"]]


@proves("D5")
async def test_whole_names_and_keys_come_first_then_beginnings_then_parts(api: Caller) -> None:
    await api.create({**HOURLY, "name": "old_export", "key": "exports/old"})
    await api.create({**HOURLY, "name": "Export everything"})
    await api.create({**HOURLY, "name": "export"})
    await api.create({**HOURLY, "name": "other", "key": "export"})
    assert await found(api, "export") == [
        ("job", "other", "key"),
        ("job", "export", "name"),
        ("job", "Export everything", "prefix"),
        ("job", "old_export", "prefix"),
    ]
    assert await found(api, "everything") == [("job", "Export everything", "part")]
    assert await found(api, "export", exact=True) == [("job", "other", "key"), ("job", "export", "name")]
    assert (await api.get("/v1/find", q="export", limit=1))["more"] is True


@proves("D5")
async def test_definitions_come_before_one_time_jobs_of_the_same_name_and_deleted_ones_last(api: Caller) -> None:
    at_once = {"url": "https://example.com/x"}
    for _ in range(3):
        await api.create({**at_once, "name": "crawl"})
    once = await api.get("/v1/find", q="crawl", exact=True)
    assert [(each["once"], each["match"]) for each in once["items"]] == [(True, "name")] * 3
    assert [each["id"] for each in once["items"]] == sorted((each["id"] for each in once["items"]), reverse=True)
    gone = await api.create({**HOURLY, "name": "crawl"})
    assert (await api.http.delete(f"/v1/jobs/{gone['id']}")).status_code == 200
    kept = await api.create({**HOURLY, "name": "crawl"})
    answer = await api.get("/v1/find", q="crawl", exact=True)
    assert [(each["id"], each["state"]) for each in answer["items"]] == [
        (kept["id"], "ACTIVE"),
        (gone["id"], "DELETED"),
    ]
    first = answer["items"][0]
    assert (first["about"], first["next_fire_at"], first["page"]) == (
        kept["schedule_in_words"],
        kept["next_fire_at"],
        f"/jobs/{kept['id']}",
    )


@proves("D5")
async def test_the_beginning_of_an_id_finds_jobs_executions_and_runs(api: Caller) -> None:
    one = await api.create({"url": "https://example.com/x", "name": "once"})
    hourly = await api.create({**HOURLY, "name": "hourly"})
    flow = await api.create({"name": "flow", "steps": {"a": {"function": "f"}}, "every": "1h"})
    run = (await api.http.post(f"/v1/jobs/{flow['id']}/run")).json()["execution_id"]
    execution = await api.execution_of(one)
    for id_, kind in ((one["id"], "job"), (hourly["id"], "job"), (flow["id"], "workflow"), (execution, "execution")):
        assert [(each["kind"], each["match"]) for each in (await api.get("/v1/find", q=id_))["items"]] == [(kind, "id")]
        for text in (id_[:30], id_.replace("-", "")[:25].upper()):
            items = (await api.get("/v1/find", q=text))["items"]
            assert [(each["id"], each["match"]) for each in items if each["kind"] == kind] == [(id_, "id-prefix")], text
    everything = await api.get("/v1/find", q=one["id"][:4])
    kinds = {each["kind"] for each in everything["items"]}
    assert kinds >= {"job", "workflow", "execution"}
    assert run in {each["id"] for each in everything["items"]}
    assert (await api.get("/v1/find", q=one["id"][:3]))["items"] == []
    ended = await api.run_all()
    assert await found(api, str(ended[0]), kinds="execution") == [("execution", "once", "id")]


@proves("D5")
async def test_a_misspelt_name_gets_the_nearest_ones(api: Caller) -> None:
    await api.create({**HOURLY, "name": "nightly_export"})
    await api.create({**HOURLY, "name": "weekly_report"})
    for text in ("nigthly_export", "nightly_exprot", "nightly-export", "Nightly_Export"):
        answer = await api.get("/v1/find", q=text, kinds="job", exact=True)
        assert (answer["items"], answer["near"]) == ([], ["nightly_export"]), text
    answer = await api.get("/v1/find", q="defualt", kinds="pool", exact=True)
    assert answer["near"] == ["default"]


NAMED = """
INSERT INTO ondot.secret (tenant_no, name, version, key_no, sealed, mark, created_by, updated_by)
VALUES (1, 'zebra-secret', 1, 1, '', '', 'me', 'me');
INSERT INTO ondot.known_function
VALUES (1, 'zebra_function', 'app', '1', '', NULL, '{}', '{}', NULL, '{}', ondot.clock(), ondot.clock());
INSERT INTO ondot.channel (id, tenant_no, name, job_id, spec, created_by)
VALUES (ondot.new_id(), 1, 'zebra-channel', ondot.new_id(), '{}', 'me');
INSERT INTO ondot.alert (id, created_at, updated_at, for_s, tenant_no, name, "when", scope, notify, created_by)
VALUES (ondot.new_id(), ondot.clock(), ondot.clock(), 0, 1, 'zebra-alert', '{}', '{}', '{zebra-channel}', 'me');
INSERT INTO ondot.incident (id, alert_id, since, opened_at, tenant_no, kind, reason, alert, title)
VALUES (ondot.new_id(), ondot.new_id(), ondot.clock(), ondot.clock(), 1, 'failed', 'failed', 'zebra-alert', 'A zebra');
INSERT INTO ondot.ping (id, tenant_no, name, hash, grace_s, created_by)
VALUES (ondot.new_id(), 1, 'zebra-ping', '1', 60, 'me');
INSERT INTO ondot.hook (id, tenant_no, name, type, source, signature, header, hash, created_by)
VALUES (ondot.new_id(), 1, 'zebra-hook', 't', 's', 'none', '', '1', 'me');
INSERT INTO ondot.person (id, tenant_no, email, name, role)
VALUES (ondot.new_id(), 1, 'zebra@example.com', 'Z', 'viewer');
"""


@proves("D5")
async def test_every_kind_of_thing_is_found_by_its_name(owned: Caller) -> None:
    http, world = owned.http, owned.world
    async with world.database.connection() as connection:
        await connection.execute(NAMED.replace("ondot.new_id()", "gen_random_uuid()"))
    await key_of(world, DEFAULT_TENANT, Role.VIEWER)
    await world.fetch("UPDATE ondot.key SET name = 'zebra-key' WHERE role = 'viewer'")
    assert (
        await http.post("/v1/views", json={"name": "zebra-view", "of": "dead_letters", "q": "error:x y"})
    ).status_code == 201
    await owned.create({**HOURLY, "name": "zebra", "pool": "zebra-pool"})
    await world.add_tenant("zebra-tenant")
    items = (await owned.get("/v1/find", q="zebra", limit=MOST))["items"]
    assert {each["kind"] for each in items} == {
        *(
            "job",
            "function",
            "pool",
            "alert",
            "incident",
            "channel",
            "ping",
            "hook",
            "view",
            "secret",
            "key",
            "user",
            "tenant",
        )
    }
    pages = {each["kind"]: each["page"] for each in items}
    assert pages["view"] == "/dead-letters?q=error%3Ax%20y"
    viewer = await key_of(world, DEFAULT_TENANT, Role.VIEWER)
    answer = await http.get("/v1/find", params={"q": "zebra", "limit": MOST}, headers=viewer)
    seen = {each["kind"] for each in answer.json()["items"]}
    assert seen == {"job", "function", "pool", "alert", "incident", "channel", "ping", "hook"}, (
        "views of others, and what admins manage"
    )
    for kind, right in (("key", Right.KEYS_MANAGE), ("secret", Right.SECRETS_MANAGE), ("user", Right.USERS_MANAGE)):
        refused = await http.get("/v1/find", params={"q": "zebra", "kinds": kind}, headers=viewer)
        assert (refused.status_code, refused.json()["right"]) == (403, right)
    of_pool = await key_of(world, DEFAULT_TENANT, Role.VIEWER, pools=["default"])
    answer = await http.get("/v1/find", params={"q": "zebra"}, headers=of_pool)
    assert answer.json()["items"] == []
    other = await world.add_tenant("stranger")
    answer = await http.get(
        "/v1/find", params={"q": "zebra", "limit": MOST}, headers=await key_of(world, other, Role.ADMIN)
    )
    assert {each["kind"] for each in answer.json()["items"]} == {"pool"}, "it may name all pools"


@proves("D5")
@pytest.mark.parametrize(
    "text", ["", "%", "_", "\\", "'; --", "a\tb", "ß", "İ" * 70, "-", "0000", "ffff", "🦓", "x" * 200]
)
async def test_strange_texts_are_looked_for_as_they_are(api: Caller, text: str) -> None:
    await api.create({**HOURLY, "name": "100%_\\-'; --ß🦓"})
    found_ = [name for _, name, _ in await found(api, text, kinds="job")]
    expected = text in "100%_\\-'; --ß🦓"
    assert (found_ != []) == expected


@proves("D5")
async def test_an_empty_text_lists_names_in_order_and_the_newest_ids(api: Caller) -> None:
    for name in ("b", "a", "c"):
        await api.create({**HOURLY, "name": name})
    assert [name for _, name, _ in await found(api, "", kinds="job")] == ["a", "b", "c"]
    await api.create({"url": "https://example.com/x", "name": "once"})
    assert await found(api, "", kinds="execution") == [("execution", "once", "prefix")]
    unknown = await api.http.get("/v1/find", params={"kinds": "jobs"})
    assert (unknown.status_code, "Use one of: job, workflow" in unknown.json()["detail"]) == (422, True)
