"""Signing in with a password, sessions, and how failures slow down the next try."""

import asyncio

import pytest

from ondot.model.access import Role
from ondot.model.sign_in import FREE_FAILURES, LONGEST_WAIT_S, QUIET_S, fault_of_password, local_path, wait_after
from ondot.people.sessions import COOKIE
from tests.people.signing import PASSWORD, URL, Place, add
from tests.proves import proves


@proves("T1")
async def test_a_user_signs_in_sees_the_pages_and_signs_out(place: Place) -> None:
    await add(place.database)
    browser = place.browser()
    away = await browser.get("/jobs?state=PAUSED")
    assert (away.status_code, away.headers["location"]) == (303, "/sign-in?next=%2Fjobs%3Fstate%3DPAUSED")
    assert "ondot user create" not in (await browser.get("/sign-in")).text
    entered = await browser.sign_in(next="/jobs?state=PAUSED")
    assert (entered.status_code, entered.headers["location"]) == (303, "/jobs?state=PAUSED")
    page = await browser.get("/jobs")
    assert page.status_code == 200
    assert "Sign out" in page.text
    assert (await browser.call("GET", "/v1/jobs")).status_code == 200
    kept = browser.cookie
    assert kept
    left = await browser.submit("/sign-out", {})
    assert (left.status_code, left.headers["location"]) == (303, "/sign-in")
    assert browser.cookie is None
    browser.cookies[COOKIE] = kept
    place.forget()
    assert (await browser.call("GET", "/v1/jobs")).status_code == 401


@proves("T1")
async def test_only_a_hash_of_a_session_and_of_a_password_is_stored(place: Place) -> None:
    await add(place.database)
    browser = place.browser()
    await browser.sign_in()
    assert browser.cookie
    async with place.database.connection() as connection:
        rows = [
            *await connection.fetch("SELECT * FROM ondot.session"),
            *await connection.fetch("SELECT * FROM ondot.person"),
        ]
        audit = await connection.fetch("SELECT * FROM ondot.audit")
    for row in [*rows, *audit]:
        text = repr(dict(row))
        assert browser.cookie not in text
        assert PASSWORD not in text
    assert "$argon2id$" in repr([dict(row) for row in rows])


@proves("T1")
@pytest.mark.parametrize("email", ["ada@example.com", "nobody@example.com", "not an address", ""])
async def test_a_wrong_password_and_an_unknown_address_get_the_same_answer(place: Place, email: str) -> None:
    await add(place.database)
    answer = await place.browser().sign_in(email, "wrong but long enough")
    assert answer.status_code == 401
    assert "The e-mail address or the password is wrong." in answer.text
    assert "set-cookie" not in answer.headers


@proves("T1")
@pytest.mark.parametrize("email", ["ada@example.com", "nobody@example.com"])
async def test_five_failures_slow_down_and_the_wait_ends(place: Place, email: str) -> None:
    await add(place.database)
    for number in range(FREE_FAILURES):
        answer = await place.browser(address=f"203.0.113.{number}").sign_in(email, "wrong but long enough")
        assert answer.status_code == 401
    slowed = await place.browser(address="203.0.113.99").sign_in(email)
    assert (slowed.status_code, slowed.headers["retry-after"]) == (429, "1")
    await place.world.advance(1)
    expected = 303 if email.startswith("ada") else 401
    assert (await place.browser(address="203.0.113.99").sign_in(email)).status_code == expected


@proves("T1")
async def test_a_tenant_that_is_named_and_one_that_is_left_out_share_one_count(place: Place) -> None:
    await add(place.database)
    for number in range(FREE_FAILURES):
        tenant = ("", "default")[number % 2]
        await place.browser(address=f"203.0.113.{number}").sign_in(password="wrong but long enough", tenant=tenant)
    for tenant in ("", "default"):
        answer = await place.browser(address="203.0.113.99").sign_in(tenant=tenant)
        assert answer.status_code == 429


@proves("T1")
async def test_failures_from_one_address_slow_it_down_over_all_accounts(place: Place) -> None:
    await add(place.database)
    for number in range(FREE_FAILURES):
        await place.browser().sign_in(f"nobody{number}@example.com", "wrong but long enough")
    assert (await place.browser().sign_in()).status_code == 429
    assert (await place.browser(address="198.51.100.1").sign_in()).status_code == 303


@proves("T1")
async def test_failures_of_others_do_not_lock_out_the_network_of_the_last_sign_in(place: Place) -> None:
    await add(place.database)
    assert (await place.browser(address="198.51.100.1").sign_in()).status_code == 303
    for number in range(12):
        await place.browser(address=f"203.0.113.{number}").sign_in(password="wrong but long enough")
    assert (await place.browser(address="203.0.113.77").sign_in()).status_code == 429
    assert (await place.browser(address="198.51.100.1").sign_in()).status_code == 303


@proves("T1")
async def test_parallel_tries_get_no_more_guesses(place: Place) -> None:
    await add(place.database)
    tries = [place.browser(address=f"203.0.113.{n}").sign_in(password="wrong but long enough") for n in range(20)]
    statuses = [answer.status_code for answer in await asyncio.gather(*tries)]
    assert statuses.count(401) == FREE_FAILURES
    assert statuses.count(429) == 20 - FREE_FAILURES


def test_the_wait_grows_to_a_minute_and_no_further() -> None:
    assert [wait_after(failures) for failures in range(13)] == [0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert wait_after(10**9) == LONGEST_WAIT_S < QUIET_S


@proves("T1")
async def test_a_session_ends_when_it_idles_and_at_the_latest_after_a_week(place: Place) -> None:
    settings = place.database.settings
    await add(place.database)
    idle = place.browser()
    await idle.sign_in()
    await place.world.advance(settings.session_idle_s - 1)
    assert (await idle.call("GET", "/v1/jobs")).status_code == 200
    await place.world.advance(settings.session_idle_s - 1)
    place.forget()
    assert (await idle.call("GET", "/v1/jobs")).status_code == 200
    await place.world.advance(settings.session_idle_s + 1)
    place.forget()
    assert (await idle.call("GET", "/v1/jobs")).status_code == 401
    busy = place.browser()
    await busy.sign_in()
    for _ in range(int(settings.session_s // settings.session_idle_s) - 1):
        await place.world.advance(settings.session_idle_s - 60)
        place.forget()
        last = await busy.call("GET", "/v1/jobs")
    for _ in range(2):
        await place.world.advance(settings.session_idle_s - 60)
        place.forget()
        await busy.call("GET", "/v1/jobs")
    assert (last.status_code, (await busy.call("GET", "/v1/jobs")).status_code) == (200, 401)


@proves("T1")
async def test_a_new_password_ends_all_other_sessions(place: Place) -> None:
    here, there = await place.signed_in(Role.VIEWER, "ada@example.com"), place.browser()
    await there.sign_in()
    wrong = {"old": "not the old password", "password": "four loud kettles", "again": "four loud kettles"}
    assert (await here.submit("/account/password", wrong)).status_code == 401
    differ = {"old": PASSWORD, "password": "four loud kettles", "again": "four quiet kettles"}
    assert (await here.submit("/account/password", differ)).status_code == 422
    short = {"old": PASSWORD, "password": "short", "again": "short"}
    assert (await here.submit("/account/password", short)).status_code == 422
    right = {"old": PASSWORD, "password": "four loud kettles", "again": "four loud kettles"}
    assert "The password is changed" in (await here.submit("/account/password", right)).text
    place.forget()
    assert (await here.call("GET", "/v1/jobs")).status_code == 200
    assert (await there.call("GET", "/v1/jobs")).status_code == 401
    assert (await there.sign_in()).status_code == 401
    assert (await there.sign_in(password="four loud kettles")).status_code == 303


@proves("T1")
async def test_own_sessions_are_listed_and_ended_one_by_one_or_all(place: Place) -> None:
    here, there, third = await place.signed_in(Role.VIEWER, "ada@example.com"), place.browser(), place.browser()
    stranger = await place.signed_in(Role.VIEWER, "eve@example.com")
    await there.sign_in()
    await third.sign_in()
    items = (await here.call("GET", "/v1/sessions")).json()["items"]
    assert len(items) == 3
    assert (await here.get("/account")).text.count('name="id"') == 3
    for item in items:
        assert (await stranger.call("DELETE", f"/v1/sessions/{item['id']}")).status_code == 404
        await stranger.submit("/account/sessions", {"id": item["id"]})
    assert len((await here.call("GET", "/v1/sessions")).json()["items"]) == 3
    assert (await here.submit("/account/sessions", {"id": items[0]["id"]})).status_code == 303
    assert len((await here.call("GET", "/v1/sessions")).json()["items"]) == 2
    assert (await here.submit("/account/sessions", {"id": "others"})).status_code == 303
    assert len((await here.call("GET", "/v1/sessions")).json()["items"]) == 1
    assert (await here.call("DELETE", "/v1/sessions")).json() == {"ended": 1}
    place.forget()
    assert (await here.call("GET", "/v1/sessions")).status_code == 401
    assert (await stranger.call("GET", "/v1/sessions")).status_code == 200


@pytest.mark.parametrize(
    ("password", "is_fine"),
    [
        ("nine tall mirrors", True),
        ("ünïcödé wörds", True),
        ("p" * 11, False),
        ("a" * 40, False),
        ("121212121212", False),
        ("123456789012", False),
        ("password1234", False),
        ("Password!!!!2026", False),
        ("ada.lovelace99", False),
        ("correct horse battery staple", True),
        ("x" * 257, False),
        ("passwordless kettles", True),
    ],
)
def test_passwords_that_others_try_first_are_rejected(password: str, is_fine: bool) -> None:
    assert (fault_of_password(password, "ada.lovelace@example.com") is None) is is_fine


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/jobs?state=PAUSED", "/jobs?state=PAUSED"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("/\t/evil.example", "/"),
        ("https://evil.example", "/"),
        ("javascript:alert(1)", "/"),
        ("", "/"),
        (None, "/"),
        ("/ok\r\nset-cookie: x=1", "/"),
        ("/" + "a" * 3000, "/"),
        ("/sign-in?next=/sign-in", "/"),
        ("/caf\u00e9", "/"),
    ],
)
def test_after_the_sign_in_only_a_path_of_this_server_is_opened(text: str | None, path: str) -> None:
    assert local_path(text) == path


@proves("T1")
async def test_over_plain_http_elsewhere_the_sign_in_says_what_to_do(place: Place) -> None:
    await add(place.database)
    far = place.browser("http://ondot.internal:1200")
    shown = await far.get("/sign-in")
    assert shown.status_code == 403
    assert "ONDOT_PUBLIC_URL=https://" in shown.text
    refused = await far.submit("/sign-in", {"email": "ada@example.com", "password": PASSWORD})
    assert refused.status_code == 403
    assert far.cookie is None
    assert (
        await place.browser("http://localhost:1200").submit("/sign-in", {"email": ""}, origin="http://localhost:1200")
    ).status_code == 401
    assert URL.startswith("http://127.0.0.1")
