"""API keys: cached, invalid within a second of a revoke; clients with wrong keys are slowed down."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest

from ondot.api import wrong_keys
from ondot.api.known_keys import KnownKeys
from ondot.api.wrong_keys import WrongKeys
from ondot.model.access import Role
from ondot.model.errors import TooManyWrongKeys
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.keys import new_key
from ondot.store.keys import add_key, find_callers, hash_key, revoke_key
from tests.api.conftest import Caller
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import World, job

SOON_S = 10.0
"""Far more than the promised second: the machine may be busy."""


async def make_key(world: World, name: str = "ci") -> tuple[UUID, dict[str, str]]:
    id_ = world.database.clock.new_id()
    key = new_key(id_)
    async with world.database.connection() as connection:
        await add_key(connection, id_, DEFAULT_TENANT, name, key)
    return id_, {"authorization": f"Bearer {key}"}


async def revoke(world: World, id_: UUID) -> None:
    async with world.database.connection() as connection:
        assert await revoke_key(connection, DEFAULT_TENANT, id_)


@asynccontextmanager
async def keys_looked_up(world: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[int]]:
    """How many keys each statement looked up."""
    batches: list[int] = []

    async def counting(connection: Any, presented: Any) -> Any:
        batches.append(len(presented))
        return await find_callers(connection, presented)

    monkeypatch.setattr("ondot.api.known_keys.find_callers", counting)
    yield batches


@proves("T1")
async def test_a_key_is_cached_for_half_a_second_and_then_looked_up_again(
    keyed: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_, headers = await make_key(keyed.world)
    now_s = 1000.0
    monkeypatch.setattr("ondot.store.lookup.monotonic", lambda: now_s)
    async with keys_looked_up(keyed.world, monkeypatch) as batches:
        for _ in range(5):
            assert (await keyed.http.get("/v1/jobs", headers=headers)).status_code == 200
        assert batches == [1]
        await revoke(keyed.world, id_)
        now_s += 0.49
        assert (await keyed.http.get("/v1/jobs", headers=headers)).status_code == 200
        now_s += 0.02
        assert (await keyed.http.get("/v1/jobs", headers=headers)).status_code == 401


@proves("T1")
async def test_text_that_does_not_look_like_a_key_costs_no_statement(
    keyed: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with keys_looked_up(keyed.world, monkeypatch) as batches:
        for wrong in ("x", "ondot_", "ondot_" + "a" * 500, "ondot_ä" * 8, "ondot_" + "a" * 19 + "'", "a b"):
            answer = await keyed.http.get("/v1/jobs", headers=[(b"authorization", f"Bearer {wrong}".encode())])
            assert answer.status_code == 401
    assert batches == []


@proves("T1")
async def test_a_flood_of_keys_needs_few_statements_and_a_right_key_among_them_is_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, headers = await make_key(world, "right")
    right = headers["authorization"].removeprefix("Bearer ")
    keys = KnownKeys(world.database)
    async with keys_looked_up(world, monkeypatch) as batches:
        found = await asyncio.gather(*(keys.find(key) for key in [*(new_key(uuid4()) for _ in range(500)), right]))
    assert [owner.name for owner in found if owner] == ["right"]
    assert len(batches) <= 3


@proves("T1")
async def test_after_twenty_wrong_keys_an_address_gets_429_and_its_right_key_still_works(keyed: Caller) -> None:
    _, headers = await make_key(keyed.world)
    answers = [
        await keyed.http.get("/v1/jobs", headers={"authorization": f"Bearer {new_key(uuid4())}"})
        for _ in range(wrong_keys.ALLOWED + 5)
    ]
    assert [answer.status_code for answer in answers] == [401] * wrong_keys.ALLOWED + [429] * 5
    last = answers[-1]
    assert last.json()["type"] == "urn:ondot:problem:too-many-wrong-keys"
    assert 0 < int(last.headers["retry-after"]) <= 60
    assert (await keyed.http.get("/v1/jobs", headers=headers)).status_code == 200
    assert (await keyed.http.get("/v1/jobs")).status_code == 401


@proves("T1")
def test_wrong_keys_are_counted_by_address_for_a_minute_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr("ondot.api.wrong_keys.monotonic", lambda: now_s)
    wrong = WrongKeys()
    for _ in range(wrong_keys.ALLOWED):
        wrong.count("10.0.0.1")
        wrong.count("2001:db8::1")
    for address in ("10.0.0.1", "2001:db8::ffff"):
        with pytest.raises(TooManyWrongKeys):
            wrong.count(address)
    wrong.count("10.0.0.2")
    wrong.count("2001:db8:0:1::1")
    now_s += wrong_keys.WINDOW_S
    wrong.count("10.0.0.1")
    for number in range(wrong_keys.ADDRESSES_KEPT + 100):
        wrong.count(f"a{number}")
    assert len(wrong._seen) == wrong_keys.ADDRESSES_KEPT


@proves("T1")
@pytest.mark.timeout(60)
async def test_a_live_stream_ends_when_its_key_is_revoked(world: World) -> None:
    id_, headers = await make_key(world)
    async with served(world.database, auth="on", by_itself=True) as page, _stream(page, headers) as lines:
        await anext(lines)
        await revoke(world, id_)
        async with asyncio.timeout(SOON_S):
            async for _ in lines:
                pass


@proves("T1")
@pytest.mark.timeout(60)
async def test_a_long_poll_ends_when_its_key_is_revoked(world: World) -> None:
    id_, headers = await make_key(world)
    accepted = await world.submit(job("slow"))
    await (await world.worker()).lease()
    [execution] = await world.executions(accepted.id)
    async with served(world.database, auth="on") as page:
        polling = asyncio.create_task(
            page.client.get(f"/v1/executions/{execution.id}/logs", params={"wait": 30}, headers=headers, timeout=60)
        )
        began_s = time.monotonic()
        await revoke(world, id_)
        assert (await polling).status_code == 401
        assert time.monotonic() - began_s < SOON_S


@asynccontextmanager
async def _stream(page: Served, headers: dict[str, str]) -> AsyncIterator[AsyncIterator[str]]:
    async with page.client.stream("GET", "/ui/live", headers=headers) as response:
        assert response.status_code == 200
        with suppress(httpx2.RemoteProtocolError):
            yield response.aiter_lines()


@proves("C11", "T1")
async def test_a_key_of_the_release_before_works_as_one_of_an_admin(keyed: Caller) -> None:
    key = "ondot_" + "aB3_-" * 5
    await keyed.world.database.pool.execute(
        "INSERT INTO ondot.key (id, tenant_no, name, hash) VALUES ($1, 1, 'old', $2)", uuid4(), plain_hash(key)
    )
    headers = {"authorization": f"Bearer {key}"}
    made = await keyed.http.post("/v1/jobs", json={"name": "a", "function": "f"}, headers=headers)
    assert made.status_code == 201, made.text
    [listed] = (await keyed.http.get("/v1/keys", headers=headers)).json()["items"]
    assert (listed["name"], listed["role"], listed["scopes"], listed["expires_at"]) == ("old", "admin", None, None)


@proves("C11", "T1")
async def test_the_release_before_does_not_find_keys_of_this_one_because_it_knows_no_roles(world: World) -> None:
    _, headers = await make_key(world)
    key = headers["authorization"].removeprefix("Bearer ")
    found = "SELECT count(*) FROM ondot.key WHERE hash = $1 AND revoked_at IS NULL"
    assert await world.value(found, plain_hash(key)) == 0
    assert await world.value(found, hash_key(key)) == 1


def plain_hash(key: str) -> bytes:
    """By which the release before looks up each key."""
    return hashlib.sha256(key.encode()).digest()


@proves("T1", "P12")
async def test_a_key_counts_where_none_is_required(api: Caller) -> None:
    """So the first request of a second tenant, before a process knows that there is one, is not the first tenant's."""
    id_ = api.world.database.clock.new_id()
    key = new_key(id_)
    async with api.world.database.connection() as connection:
        await add_key(connection, id_, DEFAULT_TENANT, "dashboard", key, role=Role.VIEWER)
    statuses = [
        (await api.http.post("/v1/jobs", json={"function": "f"}, headers=headers)).status_code
        for headers in ({}, {"authorization": f"Bearer {key}"}, {"authorization": "Bearer unknown"})
    ]
    assert statuses == [201, 403, 201]
