"""Attacks on sessions and forms: forged requests of other sites, stolen and invented cookies, sign-ins that the person
did not start. Each is one row. An attack fails if it is refused, and nothing has changed."""

from dataclasses import dataclass, field
from typing import Final

import pytest

from ondot.model.access import Role
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.keys import new_key
from ondot.people.sessions import COOKIE
from ondot.store.keys import add_key
from tests.people.signing import PASSWORD, URL, Place, add, opened_place
from tests.proves import proves
from tests.world import World

EVIL: Final = "https://evil.example"


@dataclass(frozen=True, slots=True)
class Forged:
    """A request that a page of another site makes the browser of an editor send. Empty: the header is left out."""

    what: str
    headers: dict[str, str]
    method: str = "POST"
    path: str = "/v1/jobs"
    form: dict[str, str] = field(default_factory=dict)

    @property
    def is_form(self) -> bool:
        return not self.path.startswith("/v1")


FROM_EVIL: Final = {"origin": EVIL, "sec-fetch-site": "cross-site"}
FORGED: Final = [
    Forged("a script of another site", {**FROM_EVIL, "sec-fetch-mode": "cors"}),
    Forged("a form of another site", {**FROM_EVIL, "sec-fetch-mode": "navigate"}),
    Forged("a form of another site that claims to be a link", {**FROM_EVIL, "sec-fetch-dest": "document"}),
    Forged("a page of a subdomain", {"origin": "http://a.127.0.0.1:1200", "sec-fetch-site": "same-site"}),
    Forged("another port of this machine", {"origin": "http://127.0.0.1:8000", "sec-fetch-site": "same-site"}),
    Forged("an old browser without Sec-Fetch-Site", {"origin": EVIL, "sec-fetch-site": ""}),
    Forged("a sandboxed frame", {"origin": "null", "sec-fetch-site": "cross-site"}),
    Forged("a sandboxed frame in an old browser", {"origin": "null", "sec-fetch-site": ""}),
    Forged("no word of where it comes from", {"origin": "", "sec-fetch-site": ""}),
    Forged("a referrer instead of an origin", {"origin": "", "sec-fetch-site": "", "referer": f"{URL}/jobs"}),
    Forged("an address that begins like ours", {"origin": f"{URL}.evil.example", "sec-fetch-site": ""}),
    Forged("our address with another scheme", {"origin": "https://127.0.0.1:1200", "sec-fetch-site": ""}),
    Forged("an unknown site in the header", {"sec-fetch-site": "same-origin, cross-site"}),
    Forged("a forwarded host", {**FROM_EVIL, "x-forwarded-host": "evil.example"}),
    Forged("a change by PUT", FROM_EVIL, "PUT", "/v1/jobs/00000000-0000-7000-8000-000000000000"),
    Forged("a change by PATCH", FROM_EVIL, "PATCH", "/v1/jobs/00000000-0000-7000-8000-000000000000"),
    Forged("a change by DELETE", FROM_EVIL, "DELETE", "/v1/sessions"),
    Forged("the other spelling of the API", FROM_EVIL, "POST", "/api/v1/jobs"),
    Forged("a sign-out", FROM_EVIL, path="/sign-out"),
    Forged("a sign-out by a subdomain", {"sec-fetch-site": "same-site"}, path="/sign-out"),
    Forged("a new password", FROM_EVIL, path="/account/password", form={"old": PASSWORD}),
    Forged("an end of sessions", FROM_EVIL, path="/account/sessions", form={"id": "others"}),
    Forged("a switch of tenants", FROM_EVIL, path="/act-for", form={"tenant": "default"}),
    Forged("a script that reads", {**FROM_EVIL, "sec-fetch-mode": "cors"}, "GET"),
    Forged("an image that reads", {**FROM_EVIL, "origin": "", "sec-fetch-mode": "no-cors"}, "GET"),
    Forged(
        "a frame that shows a page",
        {**FROM_EVIL, "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
        "GET",
        "/jobs",
    ),
    Forged("a prerender of a page", {**FROM_EVIL, "origin": "", "sec-fetch-mode": "no-cors"}, "GET", "/account"),
]


@proves("T1")
@pytest.mark.parametrize("forged", FORGED, ids=lambda forged: forged.what)
async def test_a_forged_request_is_refused_and_changes_nothing(place: Place, forged: Forged) -> None:
    editor = await place.signed_in(Role.EDITOR)
    if forged.method == "GET":
        answer = await editor.get(forged.path, **forged.headers)
    elif forged.is_form:
        answer = await editor.submit(forged.path, forged.form or {"x": "y"}, **forged.headers)
    else:
        body = {"name": "forged", "function": "f", "every": "1h"}
        answer = await editor.call(forged.method, forged.path, body, **forged.headers)
    assert answer.status_code == 403, answer.text
    assert "set-cookie" not in answer.headers
    assert "access-control-allow-origin" not in answer.headers
    assert (await editor.call("GET", "/v1/jobs")).json()["items"] == []
    assert len((await editor.call("GET", "/v1/sessions")).json()["items"]) == 1


async def test_what_ondots_own_pages_and_links_send_is_accepted(place: Place) -> None:
    editor = await place.signed_in(Role.EDITOR)
    body = {"name": "own", "function": "f", "every": "1h"}
    assert (await editor.call("POST", "/v1/jobs", body)).status_code == 201
    assert (await editor.call("POST", "/v1/jobs", body, sec_fetch_site="")).status_code == 201
    assert (await editor.call("POST", "/v1/jobs", body, origin="")).status_code == 201
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert (await editor.get("/jobs", **link)).status_code == 200
    assert len((await editor.call("GET", "/v1/jobs")).json()["items"]) == 3


@proves("T1")
@pytest.mark.parametrize(
    "headers", [FROM_EVIL, {"origin": EVIL, "sec-fetch-site": ""}, {"origin": "", "sec-fetch-site": ""}]
)
@pytest.mark.parametrize("path", ["/sign-in", "/invitation"])
async def test_another_site_cannot_sign_the_browser_in_as_somebody_else(
    place: Place, path: str, headers: dict[str, str]
) -> None:
    await add(place.database, "evil@example.com")
    victim = place.browser()
    answer = await victim.submit(path, {"email": "evil@example.com", "password": PASSWORD}, **headers)
    assert answer.status_code == 403
    assert victim.cookie is None


COOKIES: Final = {
    "an empty one": "",
    "an invented one": "A" * 43,
    "the hash of a session, read from a backup": "hash",
    "the id of a session, read from the list": "id",
    "one with a character more": "longer",
    "one with another case": "swapped",
    "SQL": "' OR 1=1 --",
    "a huge one": "A" * 20_000,
    "one in quotes": "quoted",
    "another name": "renamed",
}


@proves("T1")
@pytest.mark.parametrize("what", COOKIES)
async def test_a_cookie_that_is_not_a_session_opens_nothing(place: Place, what: str) -> None:
    user = await place.signed_in(Role.ADMIN)
    assert user.cookie is not None
    async with place.database.connection() as connection:
        row = await connection.fetchrow("SELECT id, hash FROM ondot.session")
    assert row is not None
    value = {
        "hash": row["hash"].hex(),
        "id": str(row["id"]),
        "longer": user.cookie + "A",
        "swapped": user.cookie.swapcase(),
        "quoted": f'"{user.cookie}"',
        "renamed": user.cookie,
    }.get(COOKIES[what], COOKIES[what])
    name = "ondot" if what == "another name" else COOKIE
    thief = place.browser()
    answer = await thief.call("GET", "/v1/jobs", cookie=f"{name}={value}")
    assert answer.status_code == 401


@proves("T1")
async def test_a_session_that_the_attacker_planted_is_not_the_one_that_is_signed_in(place: Place) -> None:
    evil = await place.signed_in(Role.VIEWER, "evil@example.com")
    await add(place.database, "ada@example.com", Role.ADMIN)
    victim = place.browser()
    assert evil.cookie is not None
    planted = victim.cookies[COOKIE] = evil.cookie
    assert (await victim.sign_in("ada@example.com")).status_code == 303
    assert victim.cookie != planted
    place.forget()
    # Not even the attacker's own session goes on: the browser left it.
    assert (await evil.call("GET", "/v1/jobs")).status_code == 401
    assert (await victim.call("GET", "/v1/users")).status_code == 200


@proves("T1")
async def test_every_sign_in_has_a_cookie_of_its_own(place: Place) -> None:
    await add(place.database)
    browser = place.browser()
    seen = set()
    for _ in range(3):
        await browser.sign_in()
        seen.add(browser.cookie)
    assert len(seen) == 3
    assert len((await browser.call("GET", "/v1/sessions")).json()["items"]) == 1


@proves("T1")
async def test_a_key_beside_a_session_counts_and_a_wrong_key_is_not_rescued_by_it(place: Place) -> None:
    admin = await place.signed_in(Role.ADMIN)
    id_ = place.database.clock.new_id()
    key = new_key(id_)
    async with place.database.connection() as connection:
        await add_key(connection, id_, DEFAULT_TENANT, "ci", key)
    assert (await admin.call("GET", "/v1/jobs", authorization="Bearer ondk_wrong")).status_code == 401
    # With a key the request is no forgery: another site cannot send one.
    body = {"name": "by-key", "function": "f", "every": "1h"}
    answer = await admin.call(
        "POST", "/v1/jobs", body, authorization=f"Bearer {key}", origin=EVIL, sec_fetch_site="cross-site"
    )
    assert answer.status_code == 201


@pytest.mark.parametrize(
    "next_path", ["//evil.example", "https://evil.example", "/\\evil.example", "/%0d%0aset-cookie:x", "javascript:1"]
)
async def test_the_sign_in_never_leads_to_another_site(place: Place, next_path: str) -> None:
    await add(place.database)
    browser = place.browser()
    location = (await browser.sign_in(next=next_path)).headers["location"]
    assert location == "/" or location.startswith("/%0d")
    assert (await browser.get(f"/sign-in?next={next_path}")).headers["location"][:2] in {"/", "/%"}


async def test_signing_out_needs_a_post(place: Place) -> None:
    user = await place.signed_in(Role.VIEWER)
    assert (await user.get("/sign-out")).status_code == 405
    assert (await user.call("GET", "/v1/jobs")).status_code == 200


async def test_the_pages_of_people_cannot_be_framed_stored_or_scripted(place: Place) -> None:
    user = await place.signed_in(Role.ADMIN)
    for browser, path in ((place.browser(), "/sign-in"), (user, "/account"), (user, "/users"), (user, "/")):
        headers = (await browser.get(path)).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "form-action 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert (headers["x-frame-options"], headers["cache-control"]) == ("DENY", "no-store")


HOSTILE_FORMS: Final = [
    (b"email=a&email=b&password=c", "application/x-www-form-urlencoded", 422),
    (b"email=%00&password=c", "application/x-www-form-urlencoded", 422),
    (b"email=%ff&password=c", "application/x-www-form-urlencoded", 422),
    (b"&".join(b"f%d=1" % n for n in range(100)), "application/x-www-form-urlencoded", 422),
    (b"email=" + b"a" * 100_000, "application/x-www-form-urlencoded", 422),
    (b'{"email": "a"}', "application/json", 422),
    (b"email=a", "multipart/form-data; boundary=x", 422),
    (b"", "application/x-www-form-urlencoded", 401),
]


@pytest.mark.parametrize(("body", "kind", "status"), HOSTILE_FORMS)
async def test_a_form_that_no_page_sends_is_rejected(place: Place, body: bytes, kind: str, status: int) -> None:
    headers = {"origin": URL, "sec-fetch-site": "same-origin", "content-type": kind}
    answer = await place.browser().http.post("/sign-in", content=body, headers=headers)
    assert answer.status_code == status, answer.text


@proves("T1", "T7")
async def test_keyless_ends_with_the_first_user_and_says_how_to_sign_in(world: World) -> None:
    async with opened_place(world, auth="off") as place:
        laptop = place.browser()
        assert (await laptop.get("/jobs")).status_code == 200
        assert "Sign out" not in (await laptop.get("/jobs")).text
        await add(place.database, role=Role.OWNER)
        place.forget()
        refused = await laptop.call("GET", "/v1/jobs")
        assert refused.status_code == 401
        assert "it has users now" in refused.json()["detail"]
        assert "/sign-in" in refused.json()["detail"]
        assert (await laptop.get("/jobs")).headers["location"] == "/sign-in?next=%2Fjobs"
        assert (await laptop.sign_in()).status_code == 303
        assert (await laptop.get("/jobs")).status_code == 200


@proves("T1", "T7")
async def test_keyless_ends_with_the_second_tenant_and_returns_when_it_is_deleted(world: World) -> None:
    async with opened_place(world, auth="off") as place:
        laptop = place.browser()
        assert (await laptop.call("GET", "/v1/jobs")).status_code == 200
        async with place.database.connection() as connection:
            await connection.execute("INSERT INTO ondot.tenant (name) VALUES ('acme')")
        place.forget()
        refused = await laptop.call("GET", "/v1/jobs")
        assert (refused.status_code, "it has several tenants" in refused.text) == (401, True)


@proves("T1")
async def test_behind_a_proxy_the_public_url_is_the_only_origin(world: World) -> None:
    async with opened_place(world, public_url="https://ondot.example.com") as place:
        await add(place.database)
        browser = place.browser("http://10.0.0.5:1200")
        fields = {"email": "ada@example.com", "password": PASSWORD}
        for origin in ("http://10.0.0.5:1200", "http://ondot.example.com", "https://ondot.example.com.evil.example"):
            answer = await browser.submit("/sign-in", fields, origin=origin, sec_fetch_site="")
            assert (answer.status_code, browser.cookie) == (403, None)
        answer = await browser.submit("/sign-in", fields, origin="https://ondot.example.com")
        assert answer.status_code == 303
