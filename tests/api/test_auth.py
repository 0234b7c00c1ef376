"""Authentication: with keys and without."""

import pytest

from ondot.model.ids import DEFAULT_TENANT
from ondot.model.keys import new_key
from ondot.store.keys import add_key, list_keys, revoke_key
from tests.api.conftest import Caller
from tests.proves import proves


@proves("T1")
async def test_without_a_key_only_health_is_answered(keyed: Caller) -> None:
    answer = await keyed.http.get("/v1/jobs")
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert answer.json()["type"] == "urn:ondot:problem:unauthorized"
    assert (await keyed.http.get("/livez")).status_code == 200
    assert (await keyed.http.get("/readyz")).status_code == 200


@proves("T1")
async def test_a_key_is_accepted_until_it_is_revoked(keyed: Caller) -> None:
    id_ = keyed.world.database.clock.new_id()
    key = new_key(id_)
    async with keyed.world.database.connection() as connection:
        await add_key(connection, id_, DEFAULT_TENANT, "ci", key)
        [row] = await list_keys(connection, DEFAULT_TENANT)
        assert key.encode() not in (await connection.fetchval("SELECT hash FROM ondot.key"))
    headers = {"authorization": f"Bearer {key}"}
    assert (await keyed.http.get("/v1/jobs", headers=headers)).status_code == 200
    assert (await keyed.http.get("/v1/jobs", headers={"authorization": f"Bearer {key}x"})).status_code == 401
    async with keyed.world.database.connection() as connection:
        assert await revoke_key(connection, DEFAULT_TENANT, row.id)
        assert not await connection.fetchval("SELECT true FROM ondot.key WHERE revoked_at IS NULL")


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example:1200"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"host": ""},
    ],
)
async def test_without_keys_pages_of_other_sites_are_refused(api: Caller, headers: dict[str, str]) -> None:
    answer = await api.http.post("/v1/jobs", json={"name": "x", "function": "f"}, headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:ondot:problem:forbidden")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1200", "[::1]:1200", "ondot.localhost"])
async def test_local_names_are_accepted(api: Caller, host: str) -> None:
    answer = await api.http.get("/v1/jobs", headers={"host": host, "origin": f"http://{host}"})
    assert answer.status_code == 200
