"""`/v1/secrets`, and jobs that refer to secrets, as a client sees them."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from ondot.api.auth import Auth
from ondot.api.dependencies import Services
from ondot.api.server import build_api
from ondot.kms import generate_key, open_kms
from ondot.model.secret import MASK
from tests.api.conftest import Caller
from tests.api.keys import make_key_with
from tests.proves import proves
from tests.world import World

VALUE = "sk_live_51Hq8canary"
BEARER = "Bearer very-long-token-9876"


def caller_with(world: World, *, secret_key: str | None, auth: str = "off") -> Caller:
    world.database.settings = world.database.settings.model_copy(update={"auth": auth})
    auth_of = Auth(world.database, world.database.settings, in_process=True)
    services = Services(world.database, world.dispatcher, auth_of, kms=open_kms(secret_key))
    transport = httpx2.ASGITransport(app=build_api(services), raise_app_exceptions=False)
    return Caller(world, httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:1200"))


@pytest.fixture
async def api(world: World) -> AsyncIterator[Caller]:
    caller = caller_with(world, secret_key=generate_key())
    async with caller.http:
        yield caller


def call(url: str = "https://a.org", headers: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"target": {"http": {"url": url, "headers": headers or {}}}, **more}


def with_headers(**headers: Any) -> dict[str, Any]:
    return {"target": {"http": {"headers": headers}}}


async def put(api: Caller, name: str = "stripe", status: int = 200, **fields: Any) -> dict[str, Any]:
    answer = await api.http.put(f"/v1/secrets/{name}", json=fields)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def dump(world: World) -> str:
    """Every row of every table, as text."""
    tables = await world.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'ondot'")
    rows = []
    for [table] in tables:
        rows += await world.fetch(f'SELECT t::text AS row FROM ondot."{table}" t')
    return "\n".join(row["row"] for row in rows)


@proves("T5")
async def test_a_secret_is_listed_without_its_value(api: Caller) -> None:
    made = await put(api, value=VALUE, hosts=["API.stripe.com"])
    assert (made["version"], made["hosts"], made["functions"], made["created_by"]) == (
        1,
        ["api.stripe.com"],
        None,
        "local",
    )
    page = await api.get("/v1/secrets")
    assert [secret["name"] for secret in page["items"]] == ["stripe"]
    assert await api.get("/v1/secrets/stripe") == page["items"][0] == made
    assert "value" not in made
    assert VALUE not in await dump(api.world)
    assert (await api.http.get("/v1/secrets/none")).status_code == 404


@proves("T5")
async def test_a_new_value_is_a_new_version_and_the_same_value_is_not(api: Caller) -> None:
    await put(api, value=VALUE, hosts=["a.org"], pools=["default"])
    assert (await put(api, value=VALUE))["version"] == 1
    await api.world.advance(1)
    changed = await put(api, value=VALUE + "2")
    assert (changed["version"], changed["hosts"], changed["pools"]) == (2, ["a.org"], ["default"])
    await api.world.advance(1)
    moved = await put(api, hosts=None, functions=["charge"])
    assert (moved["version"], moved["hosts"], moved["functions"]) == (2, None, ["charge"])
    audit = (await api.get("/v1/audit", action="secret.set"))["items"]
    assert [entry["detail"] for entry in reversed(audit)] == [
        {"name": "stripe", "version": 1, "hosts": ["a.org"], "pools": ["default"]},
        {"name": "stripe", "version": 2},
        {
            "name": "stripe",
            "version": 2,
            "hosts": {"from": ["a.org"], "to": "any"},
            "functions": {"from": "any", "to": ["charge"]},
        },
    ]


@proves("T5")
@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("stripe", {"value": "short"}, "at least 8 characters"),
        ("stripe", {"value": " " * 20}, "at least 8 characters"),
        ("stripe", {"value": MASK}, "give the value itself"),
        ("stripe", {"value": None}, "leave it out"),
        ("stripe", {"value": 1234567890123}, "must be"),
        ("stripe", {"value": "x" * 70_000}, "at most 65,536 bytes"),
        ("stripe", {"hosts": ["a.org"]}, "give a `value`"),
        ("stripe", {"value": VALUE, "hosts": []}, "hosts"),
        ("stripe", {"value": VALUE, "hosts": ["https://a.org/"]}, "without scheme"),
        ("stripe", {"value": VALUE, "pools": ["A B"]}, "pool"),
        ("stripe", {"value": VALUE, "hsots": ["a.org"]}, "hsots"),
        ("Stripe Key", {"value": VALUE}, "lower-case"),
    ],
)
async def test_bad_input_gets_a_sentence_without_the_value(
    api: Caller, name: str, fields: dict[str, Any], words: str
) -> None:
    answer = await api.http.put(f"/v1/secrets/{name}", json=fields)
    assert answer.status_code == 422, answer.text
    assert words in answer.text
    assert "sk_live" not in answer.text
    assert "1234567890123" not in answer.text
    assert await api.world.count("secret") == 0


@proves("T5")
async def test_without_a_master_key_the_answer_states_what_to_do(world: World) -> None:
    api = caller_with(world, secret_key=None)
    async with api.http:
        problem = await put(api, status=409, value=VALUE)
        assert problem["type"] == "urn:ondot:problem:no-secret-key"
        assert "ondot secret generate-key" in problem["detail"]
        assert (await api.get("/v1/secrets"))["items"] == []


@proves("T5")
async def test_another_master_key_is_named_and_nothing_is_overwritten(api: Caller) -> None:
    await put(api, value=VALUE)
    other = caller_with(api.world, secret_key=generate_key())
    async with other.http:
        problem = await put(other, status=409, value=VALUE + "2")
        assert "need the master key" in problem["detail"]
        assert (await other.get("/v1/secrets/stripe"))["version"] == 1


@proves("T5")
async def test_a_reference_to_an_unknown_secret_is_rejected_with_the_nearest_name(api: Caller) -> None:
    await put(api, value=VALUE)
    body = call(headers={"authorization": {"$secret": "strip"}})
    answer = await api.http.post("/v1/jobs", json=body)
    assert answer.status_code == 422
    assert "Did you mean 'stripe'?" in answer.text


@proves("T5")
async def test_a_reference_that_may_not_reach_the_target_is_rejected(api: Caller) -> None:
    await put(api, value=VALUE, hosts=["api.stripe.com"])
    for body in (
        call("https://evil.org", {"x": {"$secret": "stripe"}}),
        {"function": "f", "payload": {"key": {"$secret": "stripe"}}},
        {"command": ["cat"], "payload": {"key": {"$secret": "stripe"}}},
    ):
        answer = await api.http.post("/v1/jobs", json=body)
        assert answer.status_code == 422, answer.text
        assert "allowed: the host api.stripe.com" in answer.text


@proves("T5")
async def test_a_wrong_reference_is_rejected_with_its_pointer(api: Caller) -> None:
    body = {"function": "f", "payload": {"a/b": [{"$secret": "x", "more": 1}]}}
    answer = await api.http.post("/v1/jobs", json=body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/payload/a~1b/0"


@proves("T5")
async def test_references_are_shown_as_they_were_written_and_the_job_is_listed_as_a_user(api: Caller) -> None:
    await put(api, value=VALUE)
    headers = {"authorization": {"$secret": "stripe", "prefix": "Bearer "}, "x-team": "bi"}
    body = call(headers=headers, name="charge", every="1h", payload={"key": {"$secret": "stripe"}})
    made = await api.create(body)
    assert made["target"]["http"]["headers"] == headers
    assert made["payload"] == {"key": {"$secret": "stripe"}}
    assert (await api.get("/v1/secrets/stripe"))["used_by"] == [{"id": made["id"], "name": "charge"}]
    changed = await api.http.patch(f"/v1/jobs/{made['id']}", json=with_headers(authorization=None) | {"payload": None})
    assert changed.status_code == 200, changed.text
    assert (await api.get("/v1/secrets/stripe"))["used_by"] == []
    gone = await api.http.delete("/v1/secrets/stripe")
    assert gone.json() == {"name": "stripe", "deleted": True, "used_by": []}
    assert (await api.http.delete("/v1/secrets/stripe")).status_code == 404


@proves("T5")
async def test_credentials_in_headers_are_stored_encrypted_and_shown_masked(api: Caller) -> None:
    body = call(headers={"Authorization": BEARER, "x-team": "bi"}, every="1h", key="k")
    made = await api.create(body)
    assert made["target"]["http"]["headers"] == {"Authorization": MASK, "x-team": "bi"}
    once = await api.create(call(headers={"x-api-key": BEARER}), **{"idempotency-key": "i"})
    assert once["target"]["http"]["headers"] == {"x-api-key": MASK}
    read = await api.get(f"/v1/jobs/{made['id']}")
    assert read["target"]["http"]["headers"] == {"Authorization": MASK, "x-team": "bi"}
    assert "very-long-token" not in await dump(api.world)


@proves("T5")
async def test_applying_the_same_credentials_makes_no_new_version(api: Caller) -> None:
    body = call(headers={"authorization": BEARER}, every="1h", key="k")
    made = await api.create(body)
    assert (await api.create(body))["version"] == 1
    assert (await api.create(body | call(headers={"authorization": BEARER + "2"})))["version"] == 2
    masked = await api.create(body | call(headers={"authorization": MASK}))
    assert (masked["version"], masked["id"]) == (2, made["id"])


@proves("T5")
async def test_a_job_that_was_read_can_be_sent_back(api: Caller) -> None:
    body = call("https://a.org/x", {"authorization": BEARER}, every="1h")
    path = f"/v1/jobs/{(await api.create(body))['id']}"
    before = await api.world.value("SELECT spec->'target'->'headers' FROM ondot.job_version")
    read = (await api.http.get(path)).json()
    sent = await api.http.put(path, json=read | {"timeout": 30})
    assert (sent.status_code, sent.json()["version"]) == (200, 2), sent.text
    assert (await api.http.patch(path, json={"timeout": 30})).json()["version"] == 2
    patched = await api.http.patch(path, json={"url": "https://a.org/y"})
    assert (patched.status_code, patched.json()["version"]) == (200, 3)
    assert await api.world.value("SELECT spec->'target'->'headers' FROM ondot.job_version WHERE version = 3") == before
    moved = await api.http.patch(path, json={"url": "https://b.org/y"})
    assert moved.status_code == 422
    assert "give its value again" in moved.text
    again = await api.http.patch(
        path, json={"target": {"http": {"url": "https://b.org/y", "headers": {"authorization": BEARER}}}}
    )
    assert again.status_code == 200, again.text


@proves("T5")
@pytest.mark.parametrize("more", [{}, {"key": "new"}, {"every": "1h"}, {"every": "1h", "key": "new"}])
async def test_a_new_job_cannot_have_an_unchanged_header(api: Caller, more: dict[str, Any]) -> None:
    body = call(headers={"authorization": MASK}, **more)
    answer = await api.http.post("/v1/jobs", json=body)
    assert answer.status_code == 422, answer.text
    assert "no value is stored" in answer.text
    batch = await api.http.post("/v1/jobs/batch", json={"jobs": [body]})
    assert batch.status_code == 422


@proves("T5")
async def test_without_a_master_key_credentials_are_masked_and_the_answer_warns(world: World) -> None:
    api = caller_with(world, secret_key=None)
    async with api.http:
        body = call(headers={"authorization": BEARER}, every="1h", key="k")
        made = await api.create(body)
        assert made["target"]["http"]["headers"] == {"authorization": MASK}
        assert "ONDOT_SECRET_KEY" in made["warnings"][0]["detail"]
        assert (await api.create(body))["version"] == 1
        assert (await api.get(f"/v1/jobs/{made['id']}"))["warnings"] == made["warnings"]
        assert "warnings" not in await api.create({"url": "https://a.org"})
        sent = await api.http.put(f"/v1/jobs/{made['id']}", json=await api.get(f"/v1/jobs/{made['id']}"))
        assert sent.status_code == 200, sent.text


@proves("T5", "T1")
async def test_references_need_the_scope_and_so_does_every_new_version_with_them(world: World) -> None:
    api = caller_with(world, secret_key=generate_key(), auth="on")
    admin = await make_key_with(world, "admin")
    editor = await make_key_with(world, "editor")
    scoped = await make_key_with(world, "editor", ["jobs:read", "jobs:write", "secrets:use"])
    body = call(headers={"x-a": {"$secret": "stripe"}}, every="1h")
    async with api.http as http:
        assert (await http.put("/v1/secrets/stripe", json={"value": VALUE}, headers=editor)).status_code == 403
        assert (await http.put("/v1/secrets/stripe", json={"value": VALUE}, headers=admin)).status_code == 200
        for path in ("/v1/secrets", "/v1/secrets/stripe"):
            assert (await http.get(path, headers=scoped)).status_code == 403
        refused = await http.post("/v1/jobs", json=body, headers=editor)
        assert refused.status_code == 403
        assert "secrets:use" in refused.text
        in_payload = {"function": "f", "payload": [{"$secret": "stripe"}]}
        assert (await http.post("/v1/jobs", json=in_payload, headers=editor)).status_code == 403
        made = await http.post("/v1/jobs", json=body, headers=scoped)
        assert made.status_code == 201, made.text
        path = f"/v1/jobs/{made.json()['id']}"
        moved = {"url": "https://evil.org"}
        assert (await http.patch(path, json=moved, headers=editor)).status_code == 403
        assert (
            await http.put(
                path, json=made.json() | call("https://evil.org", {"x-a": {"$secret": "stripe"}}), headers=editor
            )
        ).status_code == 403
        assert (await http.patch(path, json=moved, headers=scoped)).status_code == 200
        # Without the references the right is not needed.
        assert (await http.patch(path, json=with_headers(**{"x-a": "plain"}), headers=editor)).status_code == 200


@proves("T5")
async def test_secrets_of_another_tenant_do_not_exist(world: World) -> None:
    api = caller_with(world, secret_key=generate_key(), auth="on")
    ours = await make_key_with(world, "admin")
    theirs = await make_key_with(world, "admin", tenant_no=await world.add_tenant())
    async with api.http as http:
        assert (await http.put("/v1/secrets/stripe", json={"value": VALUE}, headers=ours)).status_code == 200
        assert (await http.get("/v1/secrets/stripe", headers=theirs)).status_code == 404
        assert (await http.delete("/v1/secrets/stripe", headers=theirs)).status_code == 404
        body = {"function": "f", "payload": {"$secret": "stripe"}}
        refused = await http.post("/v1/jobs", json=body, headers=theirs)
        assert refused.status_code == 422
        assert "Did you mean" not in refused.text
        assert (await http.put("/v1/secrets/stripe", json={"value": VALUE}, headers=theirs)).json()["version"] == 1
        rows = await world.fetch("SELECT sealed, mark FROM ondot.secret")
        assert len({row["mark"] for row in rows}) == len({row["sealed"] for row in rows}) == 2


@proves("T5")
async def test_a_batch_seals_each_value_once_and_shows_none(api: Caller) -> None:
    jobs = [call(headers={"authorization": f"{BEARER}{number % 2}", "x-n": str(number)}) for number in range(300)]
    made = await api.http.post("/v1/jobs/batch", json={"jobs": jobs})
    assert made.status_code == 201, made.text
    headers = [job["target"]["http"]["headers"] for job in made.json()["items"]]
    assert headers == [{"authorization": MASK, "x-n": str(number)} for number in range(300)]
    sql = "SELECT count(DISTINCT spec #>> '{target,headers,authorization}') FROM ondot.job_once"
    assert await api.world.value(sql) == 2
    assert "very-long-token" not in await dump(api.world)


@proves("T5")
async def test_a_value_that_is_no_text_is_rejected(api: Caller) -> None:
    answer = await api.http.put("/v1/secrets/stripe", content=b'{"value": "abcdefgh\\ud800xyz"}')
    assert answer.status_code in {400, 422}, answer.text
