"""Attacks on API keys: none gets in, none learns anything, none costs more than a request (T1).

Each sends a request with a key that is wrong in one way. The answer says that the key is wrong and not how; a right key
from the same address still works.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID, uuid4

import httpx2
import pytest

from ondot.api import wrong_keys
from ondot.model.access import Role
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.keys import checksum_of, new_key
from ondot.model.networks import network_of
from ondot.store.keys import add_key, hash_key, revoke_key
from tests.api.conftest import Caller
from tests.api.test_rights import headers_of
from tests.proves import proves
from tests.ui.serving import served
from tests.world import World, job

SOON_S: Final = 10.0
"""Far more than the promised second: the machine may be busy."""


def other_secret(key: str) -> str:
    """The same id, another secret, a right checksum."""
    return new_key(UUID(key[5:37]))


def other_id(key: str) -> str:
    """The same secret under another id, with a right checksum."""
    unchecked = f"ondk_{uuid4().hex}{key[37:-6]}"
    return unchecked + checksum_of(unchecked)


WRONG: Final[dict[str, Callable[[str], str | bytes]]] = {
    "no key": lambda _: "",
    "only the scheme": lambda _: "Bearer",
    "a blank": lambda _: "Bearer  ",
    "no scheme": lambda key: key,
    "another scheme": lambda key: f"Basic {key}",
    "the scheme twice": lambda key: f"Bearer Bearer {key}",
    "a comma": lambda key: f"Bearer {key}, Bearer {key}",
    "cut off": lambda key: f"Bearer {key[:-1]}",
    "without its checksum": lambda key: f"Bearer {key[:-6]}",
    "one more character": lambda key: f"Bearer {key}0",
    "two keys in one": lambda key: f"Bearer {key}{key}",
    "a wrong checksum": lambda key: f"Bearer {key[:-6]}000000",
    "another secret": lambda key: f"Bearer {other_secret(key)}",
    "another id": lambda key: f"Bearer {other_id(key)}",
    "upper case": lambda key: f"Bearer {key.upper()}",
    "lower case": lambda key: f"Bearer {key.lower()}",
    "case swapped": lambda key: f"Bearer {key.swapcase()}",
    "quoted": lambda key: f'Bearer "{key}"',
    "in angle brackets": lambda key: f"Bearer <{key}>",
    "percent-encoded": lambda key: f"Bearer {key.replace('_', '%5f')}",
    "dashes": lambda key: f"Bearer {key.replace('_', '-')}",
    "NUL at the end": lambda key: f"Bearer {key}\0",
    "NUL inside": lambda key: f"Bearer {key[:20]}\0{key[20:]}",
    "a tab inside": lambda key: f"Bearer {key[:20]}\t{key[20:]}",
    "a look-alike": lambda key: f"Bearer {key.replace('o', 'о', 1)}".encode(),
    "full-width letters": lambda key: f"Bearer {key.replace('k', 'ｋ', 1)}".encode(),
    "a zero-width space": lambda key: f"Bearer {key[:9]}\u200b{key[9:]}".encode(),
    "bytes that are no UTF-8": lambda key: b"Bearer " + key.encode() + b"\xff\xfe",
    "its hash": lambda key: f"Bearer {hash_key(key).hex()}",
    "its hash as a key": lambda key: f"Bearer ondot_{hash_key(key).hex()}",
    "the prefix of before": lambda key: f"Bearer {key.replace('ondk_', 'ondot_')}",
    "a pattern": lambda _: "Bearer ondk_%",
    "SQL": lambda _: "Bearer ' OR true --",
    "sixty kilobytes": lambda key: "Bearer " + key * 800,
}
"""Each makes the header of a request from a right key."""


async def key_of(world: World, **fields: Any) -> tuple[UUID, str]:
    id_ = world.database.clock.new_id()
    key = new_key(id_)
    async with world.database.connection() as connection:
        await add_key(connection, id_, DEFAULT_TENANT, "ci", key, **fields)
    return id_, key


@proves("T1")
async def test_a_key_that_is_wrong_in_any_way_gets_the_same_answer(
    keyed: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wrong_keys, "ALLOWED", 10_000)
    _, key = await key_of(keyed.world)
    right = {"authorization": f"Bearer {key}"}
    assert (await keyed.http.get("/v1/jobs", headers=right)).status_code == 200
    answers: set[str] = set()
    for name, attack in WRONG.items():
        sent = attack(key)
        value = sent if isinstance(sent, bytes) else sent.encode()
        answer = await keyed.http.get("/v1/jobs", headers=[(b"authorization", value)])
        assert answer.status_code == 401, f"{name}: {answer.status_code} {answer.text}"
        assert key[-33:] not in answer.text, name
        answers.add(answer.json()["detail"])
    assert len(answers) == 2, "no key, and a wrong key"
    assert (await keyed.http.get("/v1/jobs", headers=right)).status_code == 200


@pytest.mark.parametrize(
    "where",
    [
        lambda key: {"url": "/v1/jobs", "params": {"api_key": key}},
        lambda key: {"url": "/v1/jobs", "params": {"authorization": f"Bearer {key}"}},
        lambda key: {"url": f"/v1/jobs/{key}"},
        lambda key: {"url": f"/{key}/v1/jobs"},
        lambda key: {"url": "/v1/jobs", "params": {"q": key}, "headers": {"authorization": f"Bearer {key}"}},
    ],
)
@proves("T1")
async def test_a_key_in_a_url_is_refused(keyed: Caller, where: Callable[[str], dict[str, Any]]) -> None:
    _, key = await key_of(keyed.world)
    answer = await keyed.http.get(**where(key))
    assert (answer.status_code, "Revoke" in answer.json()["detail"]) == (400, True)


@pytest.mark.parametrize("place", ["cookie", "x-api-key", "proxy-authorization"])
@proves("T1")
async def test_a_key_elsewhere_than_in_its_header_is_not_read(keyed: Caller, place: str) -> None:
    _, key = await key_of(keyed.world)
    answer = await keyed.http.get("/v1/jobs", headers={place: f"Bearer {key}"})
    assert answer.status_code == 401


@proves("T1")
async def test_two_authorization_headers_are_refused(keyed: Caller) -> None:
    _, key = await key_of(keyed.world)
    right, wrong = (b"authorization", f"Bearer {key}".encode()), (b"authorization", b"Bearer x")
    for headers in ([right, wrong], [wrong, right], [right, right]):
        answer = await keyed.http.get("/v1/jobs", headers=headers)
        assert (answer.status_code, "several" in answer.json()["detail"]) == (400, True)


@proves("T1")
async def test_a_key_that_was_rotated_expired_or_revoked_is_refused_for_good(
    keyed: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ondot.store.lookup.CACHED_S", 0.0)
    admin = await headers_of(keyed.world, Role.ADMIN)
    rotated_id, rotated = await key_of(keyed.world)
    _, expired = await key_of(keyed.world, expires_in_s=60)
    revoked_id, revoked = await key_of(keyed.world)
    assert (
        await keyed.http.post(f"/v1/keys/{rotated_id}/rotate", json={"overlap": 0}, headers=admin)
    ).status_code == 201
    assert (await keyed.http.delete(f"/v1/keys/{revoked_id}", headers=admin)).status_code == 200
    await keyed.world.advance(61)
    for key in (rotated, expired, revoked):
        answer = await keyed.http.get("/v1/jobs", headers={"authorization": f"Bearer {key}"})
        assert answer.status_code == 401


@proves("T1", "T7")
async def test_the_rights_of_a_key_cannot_be_changed(keyed: Caller) -> None:
    admin = await headers_of(keyed.world, Role.ADMIN)
    id_, _ = await key_of(keyed.world, role=Role.VIEWER)
    for method in ("PATCH", "PUT", "POST"):
        answer = await keyed.http.request(method, f"/v1/keys/{id_}", json={"role": "admin"}, headers=admin)
        assert answer.status_code == 405
    for body in ({"role": "admin"}, {"scopes": None}, {"overlap": "24h", "pools": None}, {"expires_in": None}):
        answer = await keyed.http.post(f"/v1/keys/{id_}/rotate", json=body, headers=admin)
        assert answer.status_code == 422, answer.text
    assert (await keyed.http.get(f"/v1/keys/{id_}", headers=admin)).json()["role"] == "viewer"


@proves("T1")
async def test_only_an_owner_acts_for_another_tenant(keyed: Caller) -> None:
    for role in Role:
        headers = {**await headers_of(keyed.world, role), "ondot-tenant": "default"}
        answer = await keyed.http.get("/v1/jobs", headers=headers)
        assert answer.status_code == (200 if role is Role.OWNER else 403), role


@proves("T1")
async def test_a_guess_with_a_right_checksum_costs_one_lookup_and_runs_the_same_statements(
    keyed: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id that exists and one that does not: the answer and its cost are the same, so ids cannot be tried out."""
    looked_up: list[int] = []
    from ondot.store.keys import find_callers

    async def counting(connection: Any, presented: Any) -> Any:
        looked_up.append(len(presented))
        return await find_callers(connection, presented)

    monkeypatch.setattr("ondot.api.known_keys.find_callers", counting)
    _, key = await key_of(keyed.world)
    texts = []
    for guess in (other_secret(key), new_key(uuid4())):
        answer = await keyed.http.get("/v1/jobs", headers={"authorization": f"Bearer {guess}"})
        texts.append((answer.status_code, answer.json()["detail"]))
    assert texts[0] == texts[1]
    assert looked_up == [1, 1]


@proves("T1")
def test_addresses_are_counted_by_what_one_machine_has() -> None:
    assert network_of("192.0.2.1") == network_of("::ffff:192.0.2.1") == "192.0.2.1"
    assert network_of("::ffff:192.0.2.1") != network_of("::ffff:192.0.2.2")
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") != network_of("2001:db8:0:1::1")
    assert network_of("fe80::1%eth0") == network_of("fe80::2")
    assert network_of("no address:") == "no address:"


@proves("T1")
@pytest.mark.timeout(60)
async def test_a_request_whose_body_arrives_slowly_ends_when_its_key_is_revoked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ondot.api.request_body.CACHED_S", 0.0)
    monkeypatch.setattr("ondot.store.lookup.CACHED_S", 0.0)
    id_, key = await key_of(world)

    async def body() -> Any:
        yield b'{"name": "late", '
        async with world.database.connection() as connection:
            assert await revoke_key(connection, DEFAULT_TENANT, id_)
        yield b'"function": "f", "every": "1h"}'

    async with served(world.database, auth="on") as page:
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        answer = await page.client.post("/v1/jobs", content=body(), headers=headers)
        assert answer.status_code == 401
        assert await world.count("job") == 0


@proves("T1")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("cause", ["revoked", "deleted"])
async def test_a_stream_and_a_long_poll_end_when_the_key_is_revoked_or_its_tenant_deleted(
    world: World, cause: str
) -> None:
    id_, key = await key_of(world)
    headers = {"authorization": f"Bearer {key}"}
    accepted = await world.submit(job("slow"))
    await (await world.worker()).lease()
    [execution] = await world.executions(accepted.id)
    async with served(world.database, auth="on", by_itself=True) as page:
        path = f"/v1/executions/{execution.id}/logs?wait=30"
        polling = asyncio.create_task(page.client.get(path, headers=headers, timeout=60))
        async with page.client.stream("GET", "/ui/live", headers=headers) as response:
            lines = response.aiter_lines()
            await anext(lines)
            sql = {
                "revoked": "UPDATE ondot.key SET revoked_at = ondot.clock() WHERE id = $1",
                "deleted": "UPDATE ondot.tenant SET state = 'DELETED' WHERE tenant_no ="
                " (SELECT tenant_no FROM ondot.key WHERE id = $1)",
            }[cause]
            await world.fetch(sql, id_)
            async with asyncio.timeout(SOON_S):
                try:
                    async for _ in lines:
                        pass
                except httpx2.RemoteProtocolError:
                    pass
                assert (await polling).status_code in {401, 404}
