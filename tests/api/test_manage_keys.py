"""`/v1/keys`: create, list, rotate and revoke, and what nobody may grant."""

from typing import Any
from uuid import uuid4

import pytest

from ondot.api.known_keys import USE_AGAIN_S, KnownKeys
from ondot.model.access import Right, Role
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.keys import looks_like_a_key, new_key
from ondot.store.audit import list_audit
from ondot.store.keys import add_key
from tests.api.conftest import Caller
from tests.proves import proves
from tests.world import World

Json = dict[str, Any]


async def key_with(world: World, role: Role, **fields: Any) -> dict[str, str]:
    """The headers of a caller."""
    id_ = world.database.clock.new_id()
    key = new_key(id_)
    async with world.database.connection() as connection:
        await add_key(connection, id_, DEFAULT_TENANT, role.value, key, role=role, **fields)
    return bearer(key)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def create(keyed: Caller, headers: dict[str, str], status: int = 201, **body: Any) -> Json:
    answer = await keyed.http.post("/v1/keys", json={"name": "ci", "role": "viewer", **body}, headers=headers)
    assert answer.status_code == status, answer.text
    made: Json = answer.json()
    return made


async def opens(keyed: Caller, key: str) -> bool:
    return (await keyed.http.get("/v1/jobs", headers=bearer(key))).status_code == 200


@pytest.fixture
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are looked up for each request, so that no test waits for the cache."""
    monkeypatch.setattr("ondot.store.lookup.CACHED_S", 0.0)


@proves("T1")
async def test_a_key_is_created_shown_once_listed_without_its_secret_and_used(keyed: Caller) -> None:
    admin = await key_with(keyed.world, Role.ADMIN)
    made = await create(keyed, admin, role="editor", scopes=["jobs:read", "shell"], pools=["default"], expires_in="90d")
    assert looks_like_a_key(made["key"])
    assert made["key"].startswith(f"ondk_{made['id'].replace('-', '')}_")
    assert (made["state"], made["role"], made["scopes"], made["pools"]) == (
        "ACTIVE",
        "editor",
        ["jobs:read", "shell"],
        ["default"],
    )
    assert made["created_by"] == "admin"
    listed = (await keyed.http.get("/v1/keys", headers=admin)).json()["items"]
    assert listed[0]["id"] == made["id"]
    one = await keyed.http.get(f"/v1/keys/{made['id']}", headers=admin)
    assert one.json() == listed[0]
    assert made["key"][-33:] not in one.text
    dump = await keyed.world.value("SELECT string_agg(k::text, '') FROM ondot.key k")
    assert made["key"][-33:] not in dump


@proves("T1")
async def test_keys_are_listed_page_by_page_newest_first(keyed: Caller) -> None:
    admin = await key_with(keyed.world, Role.ADMIN)
    made = [(await create(keyed, admin))["id"] for _ in range(4)][::-1]
    first = (await keyed.http.get("/v1/keys", params={"limit": 2}, headers=admin)).json()
    rest = await keyed.http.get("/v1/keys", params={"limit": 9, "cursor": first["next_cursor"]}, headers=admin)
    assert [item["id"] for item in [*first["items"], *rest.json()["items"]]][:4] == made


@proves("T1", "P2")
async def test_a_repeated_request_gets_the_id_and_the_advice_to_rotate_but_not_the_key(keyed: Caller) -> None:
    admin = {**await key_with(keyed.world, Role.ADMIN), "idempotency-key": "once"}
    first, second = await create(keyed, admin), await create(keyed, admin)
    assert (second["id"], second["key"]) == (first["id"], None)
    assert "rotate" in second["warnings"][0]["detail"]
    assert first["warnings"] == []
    stored = await keyed.world.value("SELECT string_agg(i::text, '') FROM ondot.idempotency i")
    assert first["key"][-33:] not in stored
    rotated = await keyed.http.post(f"/v1/keys/{first['id']}/rotate", headers={**admin, "idempotency-key": "r"})
    again = await keyed.http.post(f"/v1/keys/{first['id']}/rotate", headers={**admin, "idempotency-key": "r"})
    assert (again.json()["id"], again.json()["key"]) == (rotated.json()["id"], None)


@proves("T1")
@pytest.mark.usefixtures("no_cache")
async def test_a_rotated_key_works_until_the_overlap_is_over_and_its_successor_has_the_same_rights(
    keyed: Caller,
) -> None:
    admin = await key_with(keyed.world, Role.ADMIN)
    old = await create(keyed, admin, role="operator", pools=["default"], expires_in="10d")
    await keyed.world.advance(24 * 3600)
    answer = await keyed.http.post(f"/v1/keys/{old['id']}/rotate", json={"overlap": "1h"}, headers=admin)
    new = answer.json()
    assert answer.status_code == 201
    assert [new[name] for name in ("name", "role", "scopes", "pools")] == [
        old[name] for name in ("name", "role", "scopes", "pools")
    ]
    assert new["expires_at"] > old["expires_at"]
    assert await opens(keyed, old["key"])
    shown = (await keyed.http.get(f"/v1/keys/{old['id']}", headers=admin)).json()
    assert (shown["state"], shown["replaced_by"]) == ("ACTIVE", new["id"])
    assert (await keyed.http.post(f"/v1/keys/{old['id']}/rotate", headers=admin)).status_code == 409
    await keyed.world.advance(3601)
    assert not await opens(keyed, old["key"])
    assert await opens(keyed, new["key"])
    assert (await keyed.http.get(f"/v1/keys/{old['id']}", headers=admin)).json()["state"] == "EXPIRED"
    await keyed.http.post(f"/v1/keys/{new['id']}/rotate", json={"overlap": 0}, headers=admin)
    assert not await opens(keyed, new["key"])


@proves("T1")
@pytest.mark.usefixtures("no_cache")
async def test_a_key_expires_at_its_instant_and_is_never_revived(keyed: Caller) -> None:
    admin = await key_with(keyed.world, Role.ADMIN)
    made = await create(keyed, admin, expires_in="1h")
    await keyed.world.advance(3599.9)
    assert await opens(keyed, made["key"])
    await keyed.world.advance(0.1)
    assert not await opens(keyed, made["key"])
    for path in (f"/v1/keys/{made['id']}/rotate",):
        assert (await keyed.http.post(path, headers=admin)).status_code == 409


@proves("T1")
@pytest.mark.usefixtures("no_cache")
async def test_a_revoked_key_is_refused_and_stays_revoked(keyed: Caller) -> None:
    admin = await key_with(keyed.world, Role.ADMIN)
    made = await create(keyed, admin)
    first = await keyed.http.delete(f"/v1/keys/{made['id']}", params={"reason": "leaked"}, headers=admin)
    await keyed.world.advance(60)
    second = await keyed.http.delete(f"/v1/keys/{made['id']}", headers=admin)
    assert (first.status_code, first.json()) == (200, second.json())
    assert first.json()["state"] == "REVOKED"
    assert not await opens(keyed, made["key"])
    assert (await keyed.http.post(f"/v1/keys/{made['id']}/rotate", headers=admin)).status_code == 409
    async with keyed.world.database.connection() as connection:
        entries = await list_audit(connection, DEFAULT_TENANT, action="key.revoke", limit=9)
    assert [(entry.actor, entry.detail["reason"]) for entry in entries] == [("admin", "leaked")]


@proves("T1")
async def test_the_last_key_of_an_owner_is_revoked_only_by_force(keyed: Caller) -> None:
    owner = await key_with(keyed.world, Role.OWNER)
    [last] = (await keyed.http.get("/v1/keys", headers=owner)).json()["items"]
    refused = await keyed.http.delete(f"/v1/keys/{last['id']}", headers=owner)
    assert (refused.status_code, "force=true" in refused.text) == (409, True)
    second = await create(keyed, owner, role="owner")
    assert (await keyed.http.delete(f"/v1/keys/{second['id']}", headers=owner)).status_code == 200
    forced = await keyed.http.delete(f"/v1/keys/{last['id']}", params={"force": True}, headers=owner)
    assert forced.status_code == 200


GRANTS: list[tuple[str, Role, Json, Json, int]] = [
    ("admin grants admin", Role.ADMIN, {}, {"role": "admin"}, 201),
    ("admin grants worker", Role.ADMIN, {}, {"role": "worker"}, 201),
    ("admin grants a special scope", Role.ADMIN, {}, {"role": "editor", "scopes": ["jobs:write", "shell"]}, 201),
    ("admin grants owner", Role.ADMIN, {}, {"role": "owner"}, 403),
    ("admin grants an owner with few scopes", Role.ADMIN, {}, {"role": "owner", "scopes": ["jobs:read"]}, 403),
    ("owner grants owner", Role.OWNER, {}, {"role": "owner"}, 201),
    ("editor grants nothing", Role.EDITOR, {}, {"role": "viewer"}, 403),
    ("worker grants nothing", Role.WORKER, {}, {"role": "worker"}, 403),
    ("narrow admin grants reading", Role.ADMIN, {"scopes": [Right.KEYS_MANAGE]}, {"role": "viewer"}, 403),
    (
        "narrow admin grants itself",
        Role.ADMIN,
        {"scopes": [Right.KEYS_MANAGE]},
        {"role": "admin", "scopes": ["keys:manage"]},
        201,
    ),
    ("narrow admin grants admin", Role.ADMIN, {"scopes": [Right.KEYS_MANAGE]}, {"role": "admin"}, 403),
    (
        "narrow admin grants shell",
        Role.ADMIN,
        {"scopes": [Right.KEYS_MANAGE, Right.JOBS_WRITE]},
        {"role": "editor", "scopes": ["jobs:write", "shell"]},
        403,
    ),
    ("admin of a pool grants all pools", Role.ADMIN, {"pools": ["batch"]}, {"role": "viewer"}, 403),
    ("admin of a pool grants another", Role.ADMIN, {"pools": ["batch"]}, {"role": "viewer", "pools": ["gpu"]}, 403),
    ("admin of a pool grants it", Role.ADMIN, {"pools": ["batch"]}, {"role": "viewer", "pools": ["batch"]}, 201),
    ("scopes beyond the role", Role.ADMIN, {}, {"role": "viewer", "scopes": ["jobs:write"]}, 422),
    ("an unknown scope", Role.ADMIN, {}, {"role": "viewer", "scopes": ["everything"]}, 422),
    ("an unknown role", Role.ADMIN, {}, {"role": "root"}, 422),
    ("no role", Role.ADMIN, {}, {"role": None}, 422),
    ("an unknown field", Role.ADMIN, {}, {"tenant": "other"}, 422),
    ("a key of one's own", Role.ADMIN, {}, {"key": "ondk_mine"}, 422),
    ("no pools", Role.ADMIN, {}, {"pools": []}, 422),
    ("a life of nothing", Role.ADMIN, {}, {"expires_in": 0}, 422),
    ("a life without end", Role.ADMIN, {}, {"expires_in": "99999d"}, 422),
    ("a name with a line break", Role.ADMIN, {}, {"name": "a\nb"}, 422),
    ("a name of NUL", Role.ADMIN, {}, {"name": "a\0"}, 422),
    ("a huge name", Role.ADMIN, {}, {"name": "a" * 201}, 422),
]


@pytest.mark.parametrize(
    ("role", "limits", "body", "status"), [case[1:] for case in GRANTS], ids=[c[0] for c in GRANTS]
)
@proves("T1", "T7")
async def test_nobody_grants_more_than_they_have(
    keyed: Caller, role: Role, limits: Json, body: Json, status: int
) -> None:
    headers = await key_with(keyed.world, role, **limits)
    before = await keyed.world.count("key")
    await create(keyed, headers, status, **body)
    assert await keyed.world.count("key") == before + (status == 201)


@proves("T1")
async def test_a_key_that_expires_makes_none_that_outlives_it(keyed: Caller, no_cache: None) -> None:
    admin = await key_with(keyed.world, Role.ADMIN)
    short = await create(keyed, admin, role="admin", expires_in="1h")
    lasting = await create(keyed, admin, role="viewer")
    await keyed.world.advance(60)
    before = await keyed.world.count("key")
    for life in ({}, {"expires_in": "2h"}):
        refusal = await create(keyed, bearer(short["key"]), 403, **life)
        assert "your own key expires at" in refusal["detail"]
    for id_ in (short["id"], lasting["id"]):
        assert (await keyed.http.post(f"/v1/keys/{id_}/rotate", headers=bearer(short["key"]))).status_code == 403
    assert await keyed.world.count("key") == before
    await create(keyed, bearer(short["key"]), expires_in="58m")
    assert (await keyed.http.delete(f"/v1/keys/{lasting['id']}", headers=bearer(short["key"]))).status_code == 200

    leaked = await create(keyed, admin, role="admin")
    await keyed.http.post(f"/v1/keys/{leaked['id']}/rotate", json={"overlap": "1h"}, headers=admin)
    await create(keyed, bearer(leaked["key"]), 403)


@proves("T1")
async def test_an_owner_that_expires_makes_no_lasting_key_for_another_tenant(keyed: Caller) -> None:
    await keyed.world.add_tenant("acme", pools=["default"])
    owner = await key_with(keyed.world, Role.OWNER, expires_in_s=3600.0) | {"ondot-tenant": "acme"}
    await create(keyed, owner, 403, role="admin")
    await create(keyed, owner, role="admin", expires_in="30m")


@pytest.mark.parametrize("action", ["rotate", "revoke"])
@proves("T1")
async def test_a_key_with_more_rights_is_neither_rotated_nor_revoked(keyed: Caller, action: str) -> None:
    owner = await key_with(keyed.world, Role.OWNER)
    await key_with(keyed.world, Role.OWNER)
    strong = await create(keyed, owner, role="owner")
    for headers in (
        await key_with(keyed.world, Role.ADMIN),
        await key_with(keyed.world, Role.OWNER, scopes=[Right.KEYS_MANAGE]),
        await key_with(keyed.world, Role.OWNER, pools=["batch"]),
    ):
        path = f"/v1/keys/{strong['id']}"
        answer = (
            await keyed.http.post(f"{path}/rotate", headers=headers)
            if action == "rotate"
            else await keyed.http.delete(path, headers=headers)
        )
        assert answer.status_code == 403, answer.text
    assert await opens(keyed, strong["key"])


@proves("T1")
async def test_a_key_that_does_not_exist_is_not_found(keyed: Caller) -> None:
    admin = await key_with(keyed.world, Role.ADMIN)
    for id_ in (uuid4(), "x", "ondk_"):
        assert (await keyed.http.get(f"/v1/keys/{id_}", headers=admin)).status_code == 404
        assert (await keyed.http.delete(f"/v1/keys/{id_}", headers=admin)).status_code == 404
        assert (await keyed.http.post(f"/v1/keys/{id_}/rotate", headers=admin)).status_code == 404


@proves("T1")
async def test_the_last_use_is_written_by_a_pass_at_most_once_a_minute(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = await key_with(world, Role.VIEWER)
    key = headers["authorization"].removeprefix("Bearer ")
    now_s = 1000.0
    for module in ("api.known_keys", "store.lookup"):
        monkeypatch.setattr(f"ondot.{module}.monotonic", lambda: now_s)
    known = KnownKeys(world.database)

    async def last_use() -> object:
        return await world.value("SELECT last_used_at FROM ondot.key")

    assert await known.find(key) is not None
    assert await last_use() is None
    await known.write_uses()
    first = await last_use()
    assert first == world.now
    await world.advance(30)
    now_s += 30
    assert await known.find(key) is not None
    await known.write_uses()
    await KnownKeys(world.database).write_uses()
    assert await last_use() == first
    await world.advance(USE_AGAIN_S)
    now_s += USE_AGAIN_S
    assert await known.find(key) is not None
    await known.write_uses()
    assert await last_use() == world.now
