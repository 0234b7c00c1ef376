"""Checks of a request's headers for its sender, for every path, with keys and without."""

import string
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ondot.api.sender import check_host, refuse_foreign
from ondot.model.errors import Forbidden, InvalidRequest
from tests.api.conftest import Caller
from tests.proves import proves

EVERYWHERE = ("/v1/jobs", "/v1/jobs/", "/metrics", "/openapi.json", "/livez", "/readyz", "/nothing", "/v1/pools/%00")
A_JOB = {"name": "x", "function": "f"}


@proves("T1")
@pytest.mark.parametrize("path", EVERYWHERE)
async def test_without_keys_no_path_answers_a_foreign_host(api: Caller, path: str) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example:1200", "evil.localhost.example", "0.0.0.0:1200", ""):
        answer = await api.http.get(path, headers={"host": host})
        assert answer.status_code == 403, host
        assert "location" not in answer.headers


@proves("T1")
@pytest.mark.parametrize(
    "header",
    ["X-Forwarded-For", "Forwarded", "Via", "X-Real-IP", "X-Forwarded-Host", "X-Forwarded-Anything", "True-Client-IP"],
)
async def test_without_keys_a_request_through_a_proxy_is_refused_with_what_to_do(api: Caller, header: str) -> None:
    for path in ("/v1/jobs", "/metrics", "/"):
        answer = await api.http.get(path, headers={header: "127.0.0.1"})
        assert answer.status_code == 403
        assert "ONDOT_AUTH=on" in answer.json()["detail"]


@proves("T1")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://127.0.0.1:1200"}, 201),
        ({"origin": "http://127.0.0.1:1200", "sec-fetch-site": "same-origin"}, 201),
        ({"origin": "HTTP://LOCALHOST", "host": "localhost:80"}, 201),
        ({"origin": "http://127.0.0.1:3000"}, 403),
        ({"origin": "http://localhost:1200"}, 403),
        ({"origin": "https://127.0.0.1:1200"}, 403),
        ({"origin": "http://127.0.0.1:1200.evil.example"}, 403),
        ({"origin": "http://["}, 403),
        ({"origin": ""}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, 403),
        ({"origin": "http://127.0.0.1:1200", "content-type": "text/plain"}, 403),
        ({"sec-fetch-site": "same-origin", "content-type": "multipart/form-data; boundary=x"}, 403),
        ({"content-type": "application/x-www-form-urlencoded"}, 201),
    ],
)
async def test_without_keys_only_pages_of_this_server_send_anything_and_only_json(
    api: Caller, headers: dict[str, str], status: int
) -> None:
    sent = {"content-type": "application/json"} | headers
    answer = await api.http.post("/v1/jobs", content='{"name": "x", "function": "f"}', headers=sent)
    assert answer.status_code == status, answer.text


@proves("T1")
async def test_a_person_may_follow_a_link_from_another_site_and_its_scripts_may_not_read(api: Caller) -> None:
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert (await api.http.get("/v1/jobs", headers=link)).status_code == 200
    for change in ({"sec-fetch-dest": "iframe"}, {"sec-fetch-mode": "no-cors"}):
        assert (await api.http.get("/v1/jobs", headers=link | change)).status_code == 403


@proves("T1")
@pytest.mark.parametrize("path", EVERYWHERE)
@pytest.mark.parametrize("host", ["[", "]", "[::1", "a b", "host:port", "x:99999", "a/b", "u@h", "ä", "a" * 300])
async def test_an_invalid_host_is_400_with_and_without_keys(api: Caller, keyed: Caller, host: str, path: str) -> None:
    for caller in (api, keyed):
        answer = await caller.http.get(path, headers=[(b"host", host.encode())])
        assert (answer.status_code, answer.json()["type"]) == (400, "urn:ondot:problem:invalid-request")


@proves("T1")
def test_two_hosts_are_rejected() -> None:
    with pytest.raises(InvalidRequest):
        check_host([(b"host", b"localhost"), (b"host", b"evil.example")])


@proves("T1")
async def test_with_keys_proxies_and_any_host_are_accepted(keyed: Caller) -> None:
    headers = {"host": "jobs.example.com", "x-forwarded-for": "10.0.0.1", "origin": "https://app.example.com"}
    assert (await keyed.http.get("/v1/jobs", headers=headers)).status_code == 401
    assert (await keyed.http.get("/metrics", headers=headers)).status_code == 200


@proves("T1")
@pytest.mark.parametrize("path", ["/v1/jobs/", "/metrics/", "//evil.example/", "/v1//jobs/"])
async def test_no_path_redirects_a_client(api: Caller, keyed: Caller, path: str) -> None:
    for caller in (api, keyed):
        answer = await caller.http.get(path)
        assert answer.status_code == 404
        assert "location" not in answer.headers


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"content-type", b"x"]),
            st.one_of(
                st.binary(max_size=40),
                st.text(string.printable, max_size=40).map(str.encode),
                st.sampled_from([b"localhost", b"[::1]:1200", b"http://localhost", b"same-origin", b"null"]),
            ),
        ),
        max_size=6,
    ),
    st.sampled_from(["GET", "POST", "M-SEARCH"]),
)
def test_all_headers_are_accepted_or_refused(headers: list[tuple[bytes, bytes]], method: str) -> None:
    with suppress(Forbidden, InvalidRequest):
        check_host(headers)
    with suppress(Forbidden):
        refuse_foreign(method, headers)


@proves("T1")
async def test_every_response_forbids_the_browser_to_guess_its_type_to_store_it_or_to_frame_it(
    api: Caller, keyed: Caller
) -> None:
    answers: list[Any] = [
        await api.http.post("/v1/jobs", json=A_JOB),
        await api.http.post("/v1/jobs", content="{"),
        await api.http.get("/v1/jobs", headers={"host": "evil"}),
        await api.http.delete("/v1/jobs"),
        *[await api.http.get(path) for path in EVERYWHERE],
        await keyed.http.get("/v1/jobs"),
    ]
    await api.world.database.close()
    answers.append(await api.http.get("/v1/jobs"))
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff", answer
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["referrer-policy"] == "same-origin"
