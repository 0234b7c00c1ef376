"""`/v1/hooks`: a token is shown once and stored as a hash; a signing secret is encrypted and never shown."""

from collections.abc import AsyncIterator

import pytest

from ondot.kms import generate_key
from ondot.model.hook import hash_token, is_token, new_token
from tests.api.conftest import Caller
from tests.api.test_secrets import caller_with
from tests.proves import proves
from tests.world import World

GITHUB = {"name": "github", "type": "com.github.push", "signature": "github", "secret": "a-long-signing-secret"}


@pytest.fixture
async def api(world: World) -> AsyncIterator[Caller]:
    """Without API keys, and with a master key for signing secrets."""
    caller = caller_with(world, secret_key=generate_key())
    async with caller.http:
        yield caller


async def make(api: Caller, **fields: object) -> dict[str, object]:
    answer = await api.http.post("/v1/hooks", json=GITHUB | fields)
    assert answer.status_code == 201, answer.text
    made: dict[str, object] = answer.json()
    return made


@proves("S11", "T5")
async def test_a_token_is_shown_once_and_stored_as_a_hash(api: Caller) -> None:
    made = await make(api)
    token = str(made["token"])
    assert is_token(token)
    assert str(made["url"]).endswith(f"/v1/hooks/{token}")
    assert made["source"] == "/hooks/github"
    assert made["secret"] is None
    found = await api.http.get(f"/v1/hooks/{made['id']}")
    listed = await api.http.get("/v1/hooks")
    for text in (found.text, listed.text):
        assert token not in text
        assert "a-long-signing-secret" not in text
    [row] = await api.world.fetch("SELECT * FROM ondot.hook")
    assert row["hash"] == hash_token(token)
    assert b"a-long-signing-secret" not in row["sealed"]
    assert token not in str(await api.world.fetch("SELECT * FROM ondot.audit"))


@proves("S11")
async def test_ondot_makes_the_signing_secret_where_the_sender_does_not(api: Caller) -> None:
    for signature in ("github", "hmac", "standard"):
        made = await make(api, name=signature, signature=signature, secret=None)
        assert len(str(made["secret"])) > 30
    for signature in ("stripe", "slack"):
        answer = await api.http.post("/v1/hooks", json=GITHUB | {"signature": signature, "secret": None})
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["pointer"] == "/secret"


@proves("S11")
async def test_a_repeated_create_gets_the_hook_and_not_the_token(api: Caller) -> None:
    key = {"idempotency-key": "once"}
    first = (await api.http.post("/v1/hooks", json=GITHUB, headers=key)).json()
    again = (await api.http.post("/v1/hooks", json=GITHUB, headers=key)).json()
    assert again["id"] == first["id"]
    assert again["token"] is None
    assert again["warnings"][0]["code"] == "token-not-kept"
    assert first["token"] not in str(await api.world.fetch("SELECT * FROM ondot.idempotency"))


@proves("S11")
@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"name": ""}, "/name"),
        ({"type": "with blanks"}, "/type"),
        ({"type": "ondot.execution.failed"}, "/type"),
        ({"source": "with blanks"}, "/source"),
        ({"signature": "gitlab"}, "/signature"),
        ({"secret": "short"}, "/secret"),
        ({"signature": "standard"}, "/secret"),
        ({"signature": "none"}, "/secret"),
        ({"header": "x y"}, "/header"),
    ],
)
async def test_a_hook_that_is_not_right_gets_a_pointer(api: Caller, change: dict[str, str], pointer: str) -> None:
    answer = await api.http.post("/v1/hooks", json=GITHUB | change)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["pointer"] == pointer
    assert "a-long-signing-secret" not in answer.text


@proves("S11")
async def test_each_hook_has_its_own_name(api: Caller) -> None:
    await make(api)
    assert (await api.http.post("/v1/hooks", json=GITHUB)).status_code == 409


@proves("S11", "T5")
async def test_a_token_in_the_place_of_an_id_is_in_no_answer(api: Caller) -> None:
    made = await make(api)
    token = str(made["token"])
    for method, path in (
        ("GET", f"/v1/hooks/{token}"),
        ("DELETE", f"/v1/hooks/{token}"),
        ("PUT", f"/v1/hooks/{token}"),
        ("POST", f"/v1/hooks/{token}/rotate"),
        ("POST", f"/v1/hooks/{token}/nothing"),
        ("POST", f"/v1/hooks/{new_token()}"),
        ("POST", f"/v1/jobs/{token}/pause"),
        ("POST", f"/other/{token}"),
    ):
        answer = await api.http.request(method, path)
        assert answer.status_code in {403, 404, 405}, (method, path, answer.text)
        assert token[5:] not in answer.text, (method, path, answer.text)


@proves("S11")
async def test_a_deleted_hook_is_gone(api: Caller) -> None:
    made = await make(api)
    assert (await api.http.delete(f"/v1/hooks/{made['id']}")).status_code == 200
    assert (await api.http.get(f"/v1/hooks/{made['id']}")).status_code == 404
    assert (await api.http.delete(f"/v1/hooks/{made['id']}")).status_code == 404


@proves("S11")
async def test_a_signature_needs_a_master_key_and_a_token_does_not(world: World) -> None:
    caller = caller_with(world, secret_key=None)
    async with caller.http as http:
        assert (await http.post("/v1/hooks", json=GITHUB)).status_code == 409
        plain = {"name": "plain", "type": "a.b"}
        assert (await http.post("/v1/hooks", json=plain)).status_code == 201
