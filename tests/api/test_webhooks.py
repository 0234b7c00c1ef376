"""`/v1/webhooks/signing-secret`: shown to those with the right, by host, rotated with an overlap."""

from collections.abc import AsyncIterator

import pytest

from ondot.kms import generate_key
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.signature import parse_secret
from tests.api.conftest import Caller
from tests.api.keys import make_key_with
from tests.api.test_secrets import caller_with
from tests.proves import proves
from tests.world import World

SECRET = "/v1/webhooks/signing-secret"


@pytest.fixture
async def api(world: World) -> AsyncIterator[Caller]:
    caller = caller_with(world, secret_key=generate_key(), auth="on")
    async with caller.http:
        yield caller


@proves("T3")
async def test_each_host_has_its_own_secret_in_every_spelling(api: Caller, world: World) -> None:
    admin = await make_key_with(world, "admin")

    async def secret(host: str) -> str:
        answer = await api.http.get(SECRET, params={"host": host}, headers=admin)
        assert answer.status_code == 200, answer.text
        assert answer.headers["cache-control"] == "no-store"
        parse_secret(answer.json()["secret"])
        return str(answer.json()["secret"])

    first = await secret("api.example.com")
    assert await secret("https://API.example.com:8443/hook") == first
    assert await secret("other.example.com") != first
    assert await world.value("SELECT count(*) FROM ondot.audit WHERE action = 'webhook.read_secret'") == 3


@proves("T3", "T1")
async def test_tenants_have_different_secrets_for_the_same_host(api: Caller, world: World) -> None:
    acme = await world.add_tenant("acme")
    answers = [
        await api.http.get(
            SECRET, params={"host": "api.example.com"}, headers=await make_key_with(world, "admin", tenant_no=tenant_no)
        )
        for tenant_no in (DEFAULT_TENANT, acme)
    ]
    assert len({answer.json()["secret"] for answer in answers}) == 2


@proves("T3", "T7")
@pytest.mark.parametrize(
    ("role", "scopes", "status"),
    [
        ("viewer", None, 403),
        ("operator", None, 403),
        ("editor", None, 403),
        ("editor", ["webhooks:manage"], 403),
        ("worker", None, 403),
        ("admin", ["jobs:read", "secrets:manage"], 403),
        ("admin", ["webhooks:manage"], 200),
        ("owner", None, 200),
    ],
)
async def test_a_secret_is_shown_with_its_own_right_alone(
    api: Caller, world: World, role: str, scopes: list[str] | None, status: int
) -> None:
    key = await make_key_with(world, role, scopes)
    read = await api.http.get(SECRET, params={"host": "api.example.com"}, headers=key)
    rotated = await api.http.post(f"{SECRET}/rotate", headers=key)
    assert (read.status_code, rotated.status_code) == (status, status)
    assert status == 200 or "whsec_" not in read.text


@proves("T3")
@pytest.mark.parametrize("query", ["", "?host=", "?host=a%20b", "?host=http://[", "?host=a.org&hosts=b"])
async def test_a_query_that_names_no_host_is_rejected(api: Caller, world: World, query: str) -> None:
    answer = await api.http.get(SECRET + query, headers=await make_key_with(world, "admin"))
    assert answer.status_code == 422, answer.text


@proves("T3")
async def test_a_rotation_takes_an_overlap(api: Caller, world: World) -> None:
    admin = await make_key_with(world, "admin")
    rotated = await api.http.post(f"{SECRET}/rotate", json={"overlap": "1h"}, headers=admin)
    new, old = rotated.json()["versions"]
    assert (new["version"], new["ends_at"], old["version"]) == (2, None, 1)
    assert "whsec_" not in rotated.text
    bodies: list[object] = [{"overlap": "31d"}, {"overlap": -1}, {"overlap": None}, {"overlaps": "1h"}, []]
    for body in bodies:
        assert (await api.http.post(f"{SECRET}/rotate", json=body, headers=admin)).status_code == 422, body
    [current] = (await api.http.post(f"{SECRET}/rotate", json={"overlap": 0}, headers=admin)).json()["versions"]
    assert current["version"] == 3


@proves("T3")
async def test_without_a_master_key_there_is_no_secret_and_the_answer_says_what_to_do(world: World) -> None:
    caller = caller_with(world, secret_key=None)
    async with caller.http as http:
        for answer in (await http.get(SECRET, params={"host": "a.org"}), await http.post(f"{SECRET}/rotate")):
            assert answer.status_code == 409
            assert answer.json()["type"] == "urn:ondot:problem:no-secret-key"
            assert "ONDOT_SECRET_KEY" in answer.json()["detail"]
