"""Webhooks that are sent to hooks: events once, with the right signature, and nothing revealed otherwise (S11)."""

import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from ondot.kms import generate_key
from ondot.model.hook import new_token
from tests.api.conftest import Caller
from tests.api.test_secrets import caller_with
from tests.proves import proves
from tests.world import World

SECRET = "a-long-signing-secret"
TYPE = "com.example.hooked"


@pytest.fixture
async def api(world: World) -> AsyncIterator[Caller]:
    caller = caller_with(world, secret_key=generate_key())
    async with caller.http:
        await caller.create({"name": "hooked", "function": "f", "schedule": {"event": {"type": TYPE}}})
        yield caller


async def hook(api: Caller, signature: str = "none", **fields: Any) -> dict[str, Any]:
    body = {"name": signature, "type": TYPE, "signature": signature, **fields}
    if signature != "none":
        body.setdefault("secret", SECRET)
    answer = await api.http.post("/v1/hooks", json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def call(api: Caller, made: dict[str, Any], body: bytes, **headers: str) -> httpx2.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await api.http.post(
        f"/v1/hooks/{made['token']}", content=body, headers={"content-type": "application/json"} | named
    )


def sign(body: bytes, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def at(api: Caller, seconds: float = 0) -> int:
    return int(api.world.after(seconds).timestamp())


async def data_of_events(api: Caller) -> list[Any]:
    return [
        json.loads(row["body"])["data"] for row in await api.world.fetch("SELECT body FROM ondot.event ORDER BY id")
    ]


@proves("S11")
@pytest.mark.parametrize(
    ("content_type", "body", "data"),
    [
        ("application/json", b'{"a": [1, null]}', {"a": [1, None]}),
        ("application/vnd.acme+json; charset=utf-8", b'"x"', "x"),
        ("application/x-www-form-urlencoded", b"a=1&b=%C3%A9&a=2&c=", {"a": ["1", "2"], "b": "é", "c": ""}),
        ("application/x-www-form-urlencoded", b"payload=%7B%22ref%22%3A1%7D", {"ref": 1}),
        ("text/plain", "grüß".encode(), "grüß"),
        ("application/xml", b"<a/>", "<a/>"),
        ("", b'{"guessed": true}', {"guessed": True}),
        ("", b"just text", "just text"),
    ],
)
async def test_a_webhook_becomes_an_event_and_starts_a_job(
    api: Caller, content_type: str, body: bytes, data: object
) -> None:
    made = await hook(api)
    answer = await call(api, made, body, content_type=content_type)
    assert answer.status_code == 202, answer.text
    assert answer.json()["matched"] == 1
    assert await data_of_events(api) == [data]
    [row] = await api.world.fetch("SELECT payload FROM ondot.execution")
    event = json.loads(row["payload"])
    assert (event["type"], event["source"], event["data"]) == (TYPE, "/hooks/none", data)
    assert (await api.get(f"/v1/hooks/{made['id']}"))["last_used_at"] is not None


@proves("S11")
@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b"{"),
        ("application/json", b"\xff"),
        ("application/json", b"[" * 100_000),
        ("text/plain", b"\xff\xfe"),
        ("text/plain", b"a\0b"),
        ("application/x-www-form-urlencoded", b"a=%00"),
        ("application/x-www-form-urlencoded", b"&".join(b"a=1" for _ in range(2_000))),
        ("multipart/form-data; boundary=x", b"--x--"),
        ("application/octet-stream", b"\x00"),
        ("application/json", b'"' + b"x" * 300_000 + b'"'),
    ],
)
async def test_a_body_that_cannot_be_read_is_rejected_in_words(api: Caller, content_type: str, body: bytes) -> None:
    made = await hook(api)
    answer = await call(api, made, body, content_type=content_type)
    assert answer.status_code in {400, 413, 422}, answer.text
    assert answer.json()["detail"]
    assert made["token"] not in answer.text
    assert await data_of_events(api) == []


@proves("S11")
async def test_githubs_signature_is_required_and_a_copy_starts_nothing(api: Caller) -> None:
    made = await hook(api, "github")
    body = b'{"ref": "main"}'
    for headers in ({}, {"x_hub_signature_256": "sha256=" + sign(body, "another secret")}):
        refused = await call(api, made, body, **headers)
        assert refused.status_code == 401
        assert SECRET not in refused.text
    right = {"x_hub_signature_256": f"sha256={sign(body)}", "x_github_event": "push", "x_github_delivery": "1"}
    first = await call(api, made, body, **right)
    assert first.status_code == 202, first.text
    copy = await call(api, made, body, **(right | {"x_github_delivery": "2"}))
    assert copy.json() == first.json()
    assert await api.world.count("execution") == 1
    [row] = await api.world.fetch("SELECT body FROM ondot.event")
    assert json.loads(row["body"])["githubevent"] == "push"


@proves("S11")
async def test_stripe_may_try_again_with_a_new_timestamp_and_not_with_an_old_one(api: Caller) -> None:
    made = await hook(api, "stripe")
    body = b'{"id": "evt_1"}'

    def header(seconds: float) -> str:
        moment = at(api, seconds)
        return f"t={moment},v1={sign(f'{moment}.'.encode() + body)}"

    first = await call(api, made, body, stripe_signature=header(0))
    again = await call(api, made, body, stripe_signature=header(60))
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["id"] == again.json()["id"]
    for seconds in (-301, 301):
        assert (await call(api, made, body, stripe_signature=header(seconds))).status_code == 401
    assert await api.world.count("execution") == 1


@proves("S11")
async def test_slacks_challenge_is_answered_and_its_events_get_an_empty_200(api: Caller) -> None:
    made = await hook(api, "slack")

    async def slack(body: bytes) -> httpx2.Response:
        moment = at(api)
        signature = sign(f"v0:{moment}:".encode() + body)
        return await call(api, made, body, x_slack_signature=f"v0={signature}", x_slack_request_timestamp=str(moment))

    challenge = b'{"type": "url_verification", "challenge": "3eZbrw", "token": "x"}'
    answered = await slack(challenge)
    assert (answered.status_code, answered.json()) == (200, {"challenge": "3eZbrw"})
    assert await data_of_events(api) == []
    assert (await call(api, made, challenge)).status_code == 401
    event = await slack(b'{"type": "event_callback", "event_id": "Ev1"}')
    assert (event.status_code, event.content) == (200, b"")
    assert await api.world.count("execution") == 1


@proves("S11", "T1")
async def test_unknown_deleted_and_malformed_tokens_get_the_same_answer(api: Caller) -> None:
    made = await hook(api)
    assert (await api.http.delete(f"/v1/hooks/{made['id']}")).status_code == 200
    answers = [
        await api.http.post(f"/v1/hooks/{token}", json={})
        for token in (made["token"], new_token(), "ondh_short", made["id"], "x" * 300)
    ]
    assert {(answer.status_code, answer.json()["detail"]) for answer in answers} == {(404, "There is no such hook.")}


@proves("S11", "T1")
async def test_wrong_tokens_are_slowed_by_address_and_a_right_one_still_works(api: Caller) -> None:
    made = await hook(api)
    codes = [(await api.http.post(f"/v1/hooks/{new_token()}", json={})).status_code for _ in range(22)]
    assert codes == [404] * 20 + [429] * 2
    assert (await call(api, made, b"{}")).status_code == 202


@proves("S11")
async def test_the_token_and_the_secret_before_work_until_the_overlap_is_over(
    api: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ondot.store.lookup.CACHED_S", 0.0)  # it is not of the clock that is moved here
    made = await hook(api, "github")
    rotated = (await api.http.post(f"/v1/hooks/{made['id']}/rotate", json={"overlap": "1h"})).json()
    assert rotated["token"] != made["token"]
    secret = await api.http.post(f"/v1/hooks/{made['id']}/rotate", json={"overlap": "2h", "secret": "another-secret"})
    assert (secret.status_code, secret.json()["token"]) == (201, None)

    async def works(which: dict[str, Any], key: str, number: int) -> bool:
        body = json.dumps(number).encode()
        answer = await call(api, which, body, x_hub_signature_256=f"sha256={sign(body, key)}")
        return answer.status_code == 202

    assert [await works(made, SECRET, 1), await works(rotated, "another-secret", 2)] == [True, True]
    await api.world.advance(3_700)
    assert [await works(made, SECRET, 3), await works(rotated, SECRET, 4)] == [False, True]
    await api.world.advance(3_700)
    assert [await works(rotated, SECRET, 5), await works(rotated, "another-secret", 6)] == [False, True]


@proves("S11")
async def test_without_a_signature_the_senders_own_id_names_the_event(api: Caller) -> None:
    made = await hook(api)
    first = await call(api, made, b"{}", webhook_id="msg_1")
    again = await call(api, made, b"{}", webhook_id="msg_1")
    other = await call(api, made, b"{}", webhook_id="msg_2")
    plain = [await call(api, made, b"{}") for _ in range(2)]
    assert first.json()["id"] == again.json()["id"]
    assert len({answer.json()["id"] for answer in (first, other, *plain)}) == 4


@proves("S11", "T1")
async def test_a_hook_needs_no_key_where_keys_are_required_and_takes_a_webhook_through_a_proxy(world: World) -> None:
    keyless = caller_with(world, secret_key=None)
    async with keyless.http as http:
        token = (await http.post("/v1/hooks", json={"name": "open", "type": TYPE})).json()["token"]
        forwarded = {"x-forwarded-for": "198.51.100.7", "host": "tunnel.example.com"}
        assert (await http.post(f"/v1/hooks/{token}", json={}, headers=forwarded)).status_code == 202
        assert (await http.post("/v1/jobs", json={}, headers=forwarded)).status_code == 403
    keyed = caller_with(world, secret_key=None, auth="on")
    async with keyed.http as http:
        assert (await http.post(f"/v1/hooks/{token}", json={})).status_code == 202
        assert (await http.get("/v1/hooks")).status_code == 401
