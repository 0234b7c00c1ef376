"""Signing in through an OpenID provider: with a real one, and with one that lies."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey
from started import free_port

from ondot.model.access import Role
from ondot.people.attempts import MAX_ATTEMPTS, PREFIX, Attempt
from ondot.people.sessions import COOKIE
from ondot.store.database import open_database
from tests.people.openid import SECRET, Liar, hmac_with_the_public_key, lying_provider, real_provider, write_part
from tests.people.signing import Browser, Place, add, opened_place
from tests.proves import proves
from tests.servers import settings_for
from tests.ui.browsing import needs_chromium, open_browser, visit
from tests.ui.serving import served
from tests.world import World

CLIENT: Final = {"oidc_client_id": "ondot", "oidc_client_secret": SECRET}


@pytest.fixture
async def liar() -> AsyncIterator[Liar]:
    async with lying_provider() as liar:
        yield liar


@pytest.fixture
async def here(world: World, liar: Liar) -> AsyncIterator[Place]:
    liar.now_s = lambda: world.database.clock.now().timestamp()
    async with opened_place(world, oidc_issuer=liar.issuer, **CLIENT) as place:
        await add(place.database)
        yield place


async def start(browser: Browser, liar: Liar, path: str = "/sign-in/oidc?next=/jobs") -> dict[str, str]:
    """Leave for the provider; returns what the browser brings along."""
    answer = await browser.get(path)
    assert answer.status_code == 303, answer.text
    sent = dict(parse_qsl(urlsplit(answer.headers["location"]).query))
    liar.nonce, liar.challenge = sent["nonce"], sent["code_challenge"]
    return sent


async def come_back(browser: Browser, sent: dict[str, str], **more: str) -> httpx2.Response:
    query = {"code": "a-code", "state": sent["state"]} | more
    written = "&".join(f"{name}={value}" for name, value in query.items() if value)
    return await browser.get(
        f"/sign-in/oidc/callback?{written}",
        sec_fetch_site="cross-site",
        sec_fetch_mode="navigate",
        sec_fetch_dest="document",
    )


@proves("T1", "T7")
async def test_a_known_person_signs_in_with_pkce_state_and_nonce(here: Place, liar: Liar) -> None:
    browser = here.browser()
    assert "Sign in with 127.0.0.1" in (await browser.get("/sign-in")).text
    sent = await start(browser, liar)
    assert (sent["response_type"], sent["code_challenge_method"], sent["scope"]) == (
        "code",
        "S256",
        "openid email profile",
    )
    answer = await come_back(browser, sent)
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs"), answer.text
    assert [name for name in browser.cookies if name.startswith(PREFIX)] == []
    assert (await browser.get("/jobs")).status_code == 200
    [form] = liar.forms
    assert Attempt("", "", form["code_verifier"], "", "", 0).challenge == liar.challenge
    # The code and the state are used up.
    assert (await come_back(browser, sent)).status_code == 403


@proves("T1")
async def test_several_tabs_sign_in_at_the_same_time(here: Place, liar: Liar) -> None:
    browser = here.browser()
    first = await start(browser, liar, "/sign-in/oidc?next=/jobs")
    nonce = liar.nonce
    second = await start(browser, liar, "/sign-in/oidc?next=/fleet")
    assert (await come_back(browser, second)).headers["location"] == "/fleet"
    liar.nonce = nonce
    assert (await come_back(browser, first)).headers["location"] == "/jobs"
    for _ in range(3 * MAX_ATTEMPTS):
        await start(browser, liar)
    assert sum(name.startswith(PREFIX) for name in browser.cookies) == MAX_ATTEMPTS


def unsigned(_: Liar) -> Callable[[dict[str, Any], dict[str, Any]], str]:
    return lambda header, claims: f"{write_part({**header, 'alg': 'none'})}.{write_part(claims)}."


def by_another_key(liar: Liar) -> Callable[[dict[str, Any], dict[str, Any]], str]:
    other = RSAKey.generate_key(2048, {"kid": "one"})
    return lambda header, claims: jwt.encode(header, claims, other)


LIES: Final[dict[str, Callable[[Liar], Any]]] = {
    "no signature": lambda liar: setattr(liar, "sign", unsigned(liar)),
    "an HMAC with the public key": lambda liar: setattr(liar, "sign", hmac_with_the_public_key(liar)),
    "another key under the same name": lambda liar: setattr(liar, "sign", by_another_key(liar)),
    "an unknown key": lambda liar: liar.header.update(kid="two"),
    "a key that is not published any more": lambda liar: setattr(liar, "published", []),
    "another client": lambda liar: liar.claims.update(aud="shop"),
    "another client beside us": lambda liar: liar.claims.update(aud=["ondot", "shop"], azp="shop"),
    "no client": lambda liar: liar.claims.update(aud=None),
    "another issuer": lambda liar: liar.claims.update(iss="https://evil.example"),
    "no issuer": lambda liar: liar.claims.update(iss=None),
    "another attempt's nonce": lambda liar: liar.claims.update(nonce="another"),
    "no nonce": lambda liar: liar.claims.update(nonce=None),
    "expired": lambda liar: liar.claims.update(exp=int(liar.now_s()) - 120),
    "without an end": lambda liar: liar.claims.update(exp=None),
    "an end that is no number": lambda liar: liar.claims.update(exp="soon"),
    "from the future": lambda liar: liar.claims.update(iat=int(liar.now_s()) + 3600),
    "no person": lambda liar: liar.claims.update(sub=None),
    "a person that is no text": lambda liar: liar.claims.update(sub=7),
    "an unverified address": lambda liar: liar.claims.update(email_verified=False),
    "an address without a word on it": lambda liar: liar.claims.update(email_verified=None),
    "an unknown address": lambda liar: liar.claims.update(email="eve@example.com"),
    "no address, and another person's": lambda liar: (
        liar.claims.update(email=None),
        liar.userinfo.update(sub="person-2", email="ada@example.com", email_verified=True),
    ),
    "no ID token": lambda liar: liar.answer.update(id_token=None),
    "rubbish for an ID token": lambda liar: liar.answer.update(id_token="a.b.c"),
    "a code that was used": lambda liar: setattr(liar, "status", 400),
    "a sign-in page in plain http elsewhere": lambda liar: liar.metadata.update(
        token_endpoint="http://evil.example/token"
    ),
    "metadata of another issuer": lambda liar: liar.metadata.update(issuer="https://evil.example"),
    "keys at a metadata address": lambda liar: liar.metadata.update(jwks_uri="https://169.254.169.254/jwks"),
    "an endpoint in a file": lambda liar: liar.metadata.update(token_endpoint="file:///etc/passwd"),
}


@proves("T1")
@pytest.mark.parametrize("lie", LIES)
async def test_a_lie_of_the_provider_signs_nobody_in(here: Place, liar: Liar, lie: str) -> None:
    LIES[lie](liar)
    browser = here.browser()
    if liar.metadata and (await here.browser().get("/sign-in/oidc")).status_code == 503:
        return
    answer = await come_back(browser, await start(browser, liar))
    assert answer.status_code in {403, 503}, answer.text
    assert browser.cookie is None
    assert [name for name in browser.cookies if name.startswith(PREFIX)] == []
    async with here.database.connection() as connection:
        assert await connection.fetchval("SELECT count(*) FROM ondot.session") == 0


BAD_RETURNS: Final = {
    "an invented state": {"state": "invented"},
    "no state": {"state": ""},
    "no code": {"code": ""},
    "a huge code": {"code": "x" * 5000},
    "another provider": {"iss": "https://evil.example"},
    "an error": {"error": "access_denied", "code": ""},
    "the state twice": {"state": "invented&state=again"},
}


@proves("T1")
@pytest.mark.parametrize("what", BAD_RETURNS)
async def test_a_return_that_does_not_fit_the_attempt_is_refused(here: Place, liar: Liar, what: str) -> None:
    browser = here.browser()
    answer = await come_back(browser, await start(browser, liar), **BAD_RETURNS[what])
    assert (answer.status_code, browser.cookie) == (403, None)
    assert liar.calls.count("token") == 0


@proves("T1")
async def test_the_return_of_another_browser_is_refused(here: Place, liar: Liar) -> None:
    """Login CSRF: the attacker starts, and makes the victim's browser finish."""
    attacker, victim = here.browser(), here.browser()
    sent = await start(attacker, liar)
    assert (await come_back(victim, sent)).status_code == 403
    mine = await start(victim, liar)
    # Nor does the victim's own attempt accept the attacker's state.
    assert (await come_back(victim, mine, state=sent["state"])).status_code == 403
    assert victim.cookie is None


@proves("T1")
async def test_an_attempt_ends_after_ten_minutes(here: Place, liar: Liar) -> None:
    browser = here.browser()
    sent = await start(browser, liar)
    await here.world.advance(601)
    assert (await come_back(browser, sent)).status_code == 403


@proves("T1")
async def test_another_site_cannot_start_an_attempt(here: Place) -> None:
    browser = here.browser()
    answer = await browser.get(
        "/sign-in/oidc", sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="document"
    )
    assert (answer.status_code, browser.cookies) == (200, {})
    assert "Sign in with" in answer.text


@proves("T1")
async def test_an_address_that_passes_to_another_person_does_not_inherit_the_user(here: Place, liar: Liar) -> None:
    browser = here.browser()
    assert (await come_back(browser, await start(browser, liar))).status_code == 303
    liar.claims["sub"] = "person-2"
    heir = here.browser()
    answer = await come_back(heir, await start(heir, liar))
    assert (answer.status_code, "another person" in answer.text) == (403, True)


@proves("T1")
async def test_a_new_key_of_the_provider_is_read_and_an_invented_one_does_not_make_ondot_call_it(
    here: Place, liar: Liar, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = here.browser()
    assert (await come_back(browser, await start(browser, liar))).status_code == 303
    assert liar.calls.count("jwks") == 1
    liar.header["kid"] = "invented"
    for _ in range(3):
        assert (await come_back(browser, await start(browser, liar))).status_code == 403
    assert liar.calls.count("jwks") == 1
    monkeypatch.setattr("ondot.people.oidc.AGAIN_S", 0.0)
    liar.header.clear()
    liar.key = RSAKey.generate_key(2048, {"kid": "two", "use": "sig"})
    assert (await come_back(browser, await start(browser, liar))).status_code == 303


@proves("T1", "T7")
async def test_a_domain_creates_viewers_of_the_first_tenant_and_no_more(world: World, liar: Liar) -> None:
    liar.now_s = lambda: world.database.clock.now().timestamp()
    async with opened_place(world, oidc_issuer=liar.issuer, oidc_domain="example.com", **CLIENT) as place:
        for email, status in (
            ("new@example.com", 303),
            ("new@example.com.evil.example", 403),
            ("x@sub.example.com", 403),
        ):
            liar.claims.update(email=email, sub=email)
            browser = place.browser()
            assert (await come_back(browser, await start(browser, liar))).status_code == status
        liar.claims.update(email="new@example.com", sub="new@example.com")
        browser = place.browser()
        assert (await come_back(browser, await start(browser, liar))).status_code == 303
        async with place.database.connection() as connection:
            rows = await connection.fetch("SELECT email, role, tenant_no FROM ondot.person")
        assert [tuple(row) for row in rows] == [("new@example.com", "viewer", 1)]


@asynccontextmanager
async def real_place(database_url: str) -> AsyncIterator[str]:
    """ondot and a real provider, both served on this machine; the URL of ondot."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with real_provider(f"{url}/sign-in/oidc/callback") as issuer:
        settings = settings_for(database_url).model_copy(update={"oidc_issuer": issuer, **CLIENT})
        database = await open_database(settings)
        try:
            await database.read_clock()
            await add(database, role=Role.OPERATOR)
            async with served(database, auth="on", port=port):
                yield url
        finally:
            await database.close()


@proves("T1", "T7")
async def test_a_real_provider_signs_in_a_known_person_and_no_other(database_url: str) -> None:
    async with real_place(database_url) as url:
        for login, status in (("ada", 200), ("eve", 403), ("unverified", 403)):
            async with httpx2.AsyncClient(follow_redirects=True, timeout=30) as client:
                page = await client.get(f"{url}/sign-in/oidc?next=/jobs", headers={"accept": "text/html"})
                for fields in ({"prompt": "login", "login": login, "password": "any"}, {"prompt": "consent"}):
                    action = re.search(r'action="([^"]+)"', page.text)
                    assert action, page.text
                    # httpx sends no Secure cookies over http, as a browser does on this machine: they are sent by hand.
                    page = await client.post(action[1], data=fields, follow_redirects=False)
                    while page.is_redirect and not page.headers["location"].startswith(f"{url}/"):
                        page = await client.get(page.url.join(page.headers["location"]), follow_redirects=False)
                written = "; ".join(f"{cookie.name}={cookie.value}" for cookie in client.cookies.jar)
                final = await client.get(page.headers["location"], headers={"cookie": written}, follow_redirects=False)
                assert final.status_code == (303 if status == 200 else status), final.text
                assert (f"{COOKIE}=" in final.headers.get("set-cookie", "")) == (status == 200)


@needs_chromium
@proves("T1", "T7")
async def test_a_person_signs_in_through_a_real_provider_in_a_browser(database_url: str) -> None:
    async with real_place(database_url) as url, open_browser() as browser:
        seen = await visit(browser, f"{url}/jobs")
        page = seen.page
        assert page.url == f"{url}/sign-in?next=%2Fjobs"
        await page.click("#oidc")
        await page.fill("input[name=login]", "ada")
        await page.fill("input[name=password]", "any")
        await page.click("button[type=submit]")
        await page.wait_for_selector("text=Continue")
        await page.click("button[type=submit]")
        await page.wait_for_url(f"{url}/jobs")
        assert await page.locator(".me a").inner_text() == "ada"
        cookies = {cookie["name"]: cookie for cookie in await page.context.cookies()}
        assert [name for name in cookies if name.startswith(PREFIX)] == []
        assert (cookies[COOKIE]["httpOnly"], cookies[COOKIE]["secure"], cookies[COOKIE]["sameSite"]) == (
            True,
            True,
            "Lax",
        )
        await page.click("text=Sign out")
        await page.wait_for_url(f"{url}/sign-in")
        await page.goto(f"{url}/jobs")
        assert page.url.startswith(f"{url}/sign-in")
        # The provider's own pages ask for a font from elsewhere, and have no icon.
        theirs = ("ERR_NAME_NOT_RESOLVED", "404 (Not Found)")
        assert [trouble for trouble in seen.trouble if not any(words in trouble for words in theirs)] == []
