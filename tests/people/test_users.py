"""Users over the API: who may create, change, reset and delete a user, and how soon it holds."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from ondot.model.access import LOCAL, Role
from ondot.model.errors import Conflict
from ondot.people import users
from ondot.people.users import Changes
from ondot.store.audit import By
from ondot.store.users import UserState
from tests.people.signing import PASSWORD, Browser, Place, add, hashed
from tests.proves import proves

NEW = "four loud kettles"


async def invite(browser: Browser, email: str, role: str = "viewer") -> dict[str, Any]:
    answer = await browser.call("POST", "/v1/users", {"email": email, "name": "Someone", "role": role})
    assert answer.status_code == 201, answer.text
    created: dict[str, Any] = answer.json()
    return created


def path_of(created: dict[str, Any]) -> tuple[str, str]:
    url: str = created["invitation"]["url"]
    return url.removeprefix("http://127.0.0.1:1200"), url.partition("token=")[2]


@proves("T1", "T7")
async def test_an_invited_user_sets_a_password_once_and_is_signed_in(place: Place) -> None:
    admin = await place.signed_in(Role.ADMIN)
    created = await invite(admin, "Grace@Example.com", "operator")
    assert (created["email"], created["role"], created["has_password"]) == ("grace@example.com", "operator", False)
    path, token = path_of(created)
    grace = place.browser()
    assert "Set your password, Someone" in (await grace.get(path)).text
    weak = {"token": token, "password": "grace@example.com", "again": "grace@example.com"}
    assert (await grace.submit("/invitation", weak)).status_code == 422
    fields = {"token": token, "password": NEW, "again": NEW}
    assert (await grace.submit("/invitation", fields)).status_code == 303
    assert (await grace.call("GET", "/v1/jobs")).status_code == 200
    assert (await place.browser().submit("/invitation", fields)).status_code == 404
    assert (await place.browser().get(path)).status_code == 404
    assert (await place.browser().sign_in("grace@example.com", NEW)).status_code == 303


@proves("T1")
async def test_of_two_who_use_an_invitation_at_once_one_gets_in(place: Place) -> None:
    admin = await place.signed_in(Role.ADMIN)
    _, token = path_of(await invite(admin, "grace@example.com"))
    fields = {"token": token, "password": NEW, "again": NEW}
    answers = await asyncio.gather(*(place.browser().submit("/invitation", fields) for _ in range(4)))
    assert sorted(answer.status_code for answer in answers) == [303, 404, 404, 404]


@proves("T1")
async def test_a_reset_ends_the_password_and_the_sessions(place: Place) -> None:
    admin, ada = await place.signed_in(Role.ADMIN), await place.signed_in(Role.EDITOR, "ada@example.com")
    items = (await admin.call("GET", "/v1/users")).json()["items"]
    [id_] = [item["id"] for item in items if item["email"] == "ada@example.com"]
    answer = await admin.call("POST", f"/v1/users/{id_}/reset")
    place.forget()
    assert (await ada.call("GET", "/v1/jobs")).status_code == 401
    assert (await place.browser().sign_in()).status_code == 401
    _, token = path_of(answer.json())
    assert (await ada.submit("/invitation", {"token": token, "password": NEW, "again": NEW})).status_code == 303


GRANTS = [
    (Role.ADMIN, "viewer", 201),
    (Role.ADMIN, "admin", 201),
    (Role.ADMIN, "owner", 403),
    (Role.OWNER, "owner", 201),
    (Role.EDITOR, "viewer", 403),
    (Role.OPERATOR, "viewer", 403),
    (Role.VIEWER, "viewer", 403),
    (Role.ADMIN, "worker", 422),
    (Role.ADMIN, "root", 422),
]


@proves("T1", "T7")
@pytest.mark.parametrize(("role", "wanted", "status"), GRANTS)
async def test_nobody_grants_more_than_they_have(place: Place, role: Role, wanted: str, status: int) -> None:
    browser = await place.signed_in(role)
    answer = await browser.call("POST", "/v1/users", {"email": "new@example.com", "role": wanted})
    assert answer.status_code == status, answer.text


@proves("T1", "T7")
async def test_an_admin_changes_no_owner(place: Place) -> None:
    admin, owner = await place.signed_in(Role.ADMIN), await place.signed_in(Role.OWNER)
    items = (await owner.call("GET", "/v1/users")).json()["items"]
    [id_] = [item["id"] for item in items if item["role"] == "owner"]
    [own_id] = [item["id"] for item in items if item["role"] == "admin"]
    for method, path, body in (
        ("PATCH", f"/v1/users/{id_}", {"role": "viewer"}),
        ("PATCH", f"/v1/users/{id_}", {"state": "DISABLED"}),
        ("POST", f"/v1/users/{id_}/reset", None),
        ("DELETE", f"/v1/users/{id_}", None),
        ("PATCH", f"/v1/users/{own_id}", {"role": "owner"}),
    ):
        assert (await admin.call(method, path, body)).status_code == 403
    assert (await owner.call("GET", "/v1/jobs")).status_code == 200


@proves("T7")
@pytest.mark.parametrize("change", [{"role": "admin"}, {"state": "DISABLED"}, None])
async def test_the_last_owner_stays(place: Place, change: dict[str, str] | None) -> None:
    owner = await place.signed_in(Role.OWNER)
    [item] = (await owner.call("GET", "/v1/users")).json()["items"]
    method = "DELETE" if change is None else "PATCH"
    answer = await owner.call(method, f"/v1/users/{item['id']}", change)
    assert (answer.status_code, "last owner" in answer.text) == (409, True)
    await invite(owner, "second@example.com", "owner")
    assert (await owner.call(method, f"/v1/users/{item['id']}", change)).status_code == 200


@proves("T7")
async def test_two_owners_who_remove_each_other_at_once_leave_one(place: Place) -> None:
    rows = [await add(place.database, f"{name}@example.com", Role.OWNER) for name in ("ada", "grace")]
    by = By("test")
    done = await asyncio.gather(
        users.delete(place.database, LOCAL, by, rows[0].id),
        users.change(place.database, LOCAL, by, rows[1].id, Changes(role=Role.VIEWER)),
        users.change(place.database, LOCAL, by, rows[0].id, Changes(state=UserState.DISABLED)),
        return_exceptions=True,
    )
    assert any(isinstance(each, Conflict) for each in done)
    async with place.database.connection() as connection:
        left = "SELECT count(*) FROM ondot.person WHERE role = 'owner' AND state = 'ACTIVE'"
        assert await connection.fetchval(left) == 1


CHANGES = [({"role": "viewer"}, 403), ({"state": "DISABLED"}, 401), (None, 401)]


@proves("T1", "T7")
@pytest.mark.parametrize(("change", "status"), CHANGES)
async def test_a_change_of_a_user_holds_when_its_session_is_read_again(
    place: Place, change: dict[str, str] | None, status: int
) -> None:
    admin, ada = await place.signed_in(Role.ADMIN), await place.signed_in(Role.OPERATOR, "ada@example.com")
    items = (await admin.call("GET", "/v1/users")).json()["items"]
    [id_] = [item["id"] for item in items if item["email"] == "ada@example.com"]
    run = f"/v1/jobs/{uuid4()}/run"
    assert (await ada.call("POST", run)).status_code == 404
    answer = await admin.call("DELETE" if change is None else "PATCH", f"/v1/users/{id_}", change)
    assert answer.status_code == 200
    place.forget()
    assert (await ada.call("POST", run)).status_code == status


@proves("T1", "P12")
async def test_the_same_address_may_be_a_user_of_two_tenants_and_neither_learns_of_the_other(place: Place) -> None:
    async with place.database.connection() as connection:
        tenant_no = await connection.fetchval("INSERT INTO ondot.tenant (name) VALUES ('acme') RETURNING tenant_no")
    place.forget()
    ours = await place.signed_in(Role.ADMIN)
    theirs = await place.signed_in(Role.ADMIN, tenant_no=tenant_no)
    first, second = await invite(ours, "ada@example.com"), await invite(theirs, "ada@example.com")
    assert first["id"] != second["id"]
    for path in (f"/v1/users/{first['id']}", f"/v1/users/{uuid4()}"):
        assert (await theirs.call("GET", path)).status_code == 404
        assert (await theirs.call("DELETE", path)).status_code == 404
    emails = {item["email"] for item in (await theirs.call("GET", "/v1/users")).json()["items"]}
    assert emails == {"admin@example.com", "ada@example.com"}
    # The password of one tenant does not open the other.
    _, token = path_of(second)
    await place.browser().submit("/invitation", {"token": token, "password": NEW, "again": NEW})
    assert (await place.browser().sign_in("ada@example.com", NEW, tenant="")).status_code == 401
    assert (await place.browser().sign_in("ada@example.com", NEW, tenant="nobody")).status_code == 401
    assert (await place.browser().sign_in("ada@example.com", NEW, tenant="acme")).status_code == 303
    assert (await theirs.call("POST", "/v1/users", {"email": "o@example.com", "role": "owner"})).status_code == 422


@proves("T1", "T7")
async def test_an_owner_switches_tenants_and_others_do_not(place: Place) -> None:
    async with place.database.connection() as connection:
        await connection.execute("INSERT INTO ondot.tenant (name) VALUES ('acme')")
    place.forget()
    owner, admin = await place.signed_in(Role.OWNER), await place.signed_in(Role.ADMIN)
    assert 'action="/act-for"' in (await owner.get("/jobs")).text
    assert 'action="/act-for"' not in (await admin.get("/jobs")).text
    assert (await admin.submit("/act-for", {"tenant": "acme"})).status_code == 403
    created = await owner.call("POST", "/v1/jobs", {"name": "ours", "every": "1h", "function": "f"})
    assert created.status_code == 201, created.text
    assert (await owner.submit("/act-for", {"tenant": "acme"})).status_code == 303
    assert (await owner.call("GET", "/v1/jobs")).json()["items"] == []
    assert (await owner.submit("/act-for", {"tenant": "nobody"})).status_code == 404
    async with place.database.connection() as connection:
        await connection.execute("UPDATE ondot.tenant SET state = 'DELETED' WHERE name = 'acme'")
    place.forget()
    assert len((await owner.call("GET", "/v1/jobs")).json()["items"]) == 1


@proves("T1")
async def test_users_are_listed_in_pages_and_rejected_if_they_are_no_addresses(place: Place) -> None:
    admin = await place.signed_in(Role.ADMIN)
    for number in range(3):
        await invite(admin, f"user{number}@example.com")
    page = (await admin.call("GET", "/v1/users?limit=2")).json()
    rest = (await admin.call("GET", f"/v1/users?limit=2&cursor={page['next_cursor']}")).json()
    assert [len(page["items"]), len(rest["items"]), rest["next_cursor"]] == [2, 2, None]
    assert (await admin.call("POST", "/v1/users", {"email": "user0@example.com"})).status_code == 409
    for email in ("", "nobody", "a@b@c", "a b@c.de", "a@b.c\r\nbcc: x@y.z", "x" * 250 + "@example.com", "@example.com"):
        assert (await admin.call("POST", "/v1/users", {"email": email})).status_code == 422, email
    assert PASSWORD not in (await admin.call("GET", "/v1/users")).text
    assert await hashed() not in (await admin.call("GET", "/v1/users")).text
