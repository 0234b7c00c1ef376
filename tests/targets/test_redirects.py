"""Redirects: followed only if the job says so, each hop checked, and nothing of the job goes to another host."""

import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from ondot.model.addresses import EVERYWHERE, Reach, parse_networks
from ondot.model.target import HttpTarget
from ondot.targets.http.redirects import MAX_REDIRECTS
from ondot.targets.http.target import HttpCaller
from tests.conformance.calls import Recorder, a_call, failure_of, result_of
from tests.proves import proves
from tests.receiver import Receiver, open_receiver

SECRETS = {"Authorization": "Bearer s3cr3t", "X-Api-Key": "s3cr3t", "Cookie": "s3cr3t"}


async def keys_for(*_: Any) -> list[bytes]:
    return [b"k" * 32]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with open_receiver() as receiver:
        yield receiver


@pytest.fixture
async def other() -> AsyncIterator[Receiver]:
    async with open_receiver() as receiver:
        yield receiver


@pytest.fixture
async def http() -> AsyncIterator[HttpCaller]:
    caller = HttpCaller(reach=EVERYWHERE, keys_for=keys_for)
    yield caller
    await caller.close()


def redirect(receiver: Receiver, location: str, status: int = 302) -> None:
    """From /start to the location; all other paths answer 200."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/start":
            return web.Response(status=status, headers={"Location": location})
        return web.json_response({"path": request.path})

    receiver.answering = answer


def following(receiver: Receiver, **fields: Any) -> HttpTarget:
    return HttpTarget(url=f"{receiver.url}/start", follow_redirects=True, **fields)


@proves("T3")
@pytest.mark.parametrize(
    ("status", "method", "then"),
    [(301, "POST", "GET"), (302, "PUT", "GET"), (303, "DELETE", "GET"), (302, "HEAD", "HEAD"), (307, "POST", "POST")],
)
async def test_a_redirect_on_the_same_host_keeps_what_its_status_says(
    http: HttpCaller, receiver: Receiver, status: int, method: str, then: str
) -> None:
    redirect(receiver, "/end", status)
    recorder = Recorder()
    target = following(receiver, method=method, headers=SECRETS)
    assert result_of(await http.call(target, a_call(recorder, {"n": 1})))["status"] == 200
    first, second = receiver.received
    assert (second.method, second.path) == (then, "/end")
    assert second.body == (first.body if status == 307 else b"")
    assert second.headers["authorization"] == SECRETS["Authorization"]
    assert second.headers["webhook-id"] == first.headers["webhook-id"]
    assert second.headers["webhook-signature"].startswith("v1,")
    assert recorder.of("log") == [f"{status}: redirected to {receiver.url}/end"]


@proves("T3", "P12")
async def test_another_host_gets_no_headers_signature_or_payload_of_the_job(
    http: HttpCaller, receiver: Receiver, other: Receiver
) -> None:
    redirect(receiver, f"{other.url}/end")
    assert result_of(await http.call(following(receiver, headers=SECRETS), a_call(payload={"n": 1})))["status"] == 204
    [request] = other.received
    assert request.method == "GET"
    assert request.body == b""
    assert "s3cr3t" not in str(request.headers)
    assert "webhook-signature" not in request.headers


@proves("T3", "P12")
async def test_a_host_that_leads_back_does_not_get_the_headers_either(
    http: HttpCaller, receiver: Receiver, other: Receiver
) -> None:
    redirect(receiver, f"{other.url}/start")
    redirect(other, f"{receiver.url}/end")
    result_of(await http.call(following(receiver, headers=SECRETS), a_call()))
    assert "s3cr3t" not in str(receiver.received[-1].headers)


@proves("T3", "P12")
@pytest.mark.parametrize("status", [307, 308])
async def test_a_payload_is_not_sent_on_to_another_host(
    http: HttpCaller, receiver: Receiver, other: Receiver, status: int
) -> None:
    redirect(receiver, f"{other.url}/end", status)
    failed = failure_of(await http.call(following(receiver), a_call()), "http_status")
    assert "payload to another host" in failed.error.message
    assert not failed.retryable
    assert other.received == []


@proves("T3")
@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://[::ffff:a9fe:a9fe]/",
        "http://0xa9fea9fe/",
        "http://10.9.9.9/",
        "http://3232235777/",
        "http://[fd00::1]/",
        "//10.9.9.9/",
    ],
)
async def test_a_redirect_to_an_address_out_of_reach_is_refused(receiver: Receiver, location: str) -> None:
    caller = HttpCaller(reach=Reach(networks=parse_networks(["127.0.0.0/8"])))
    redirect(receiver, location)
    try:
        failed = failure_of(await caller.call(following(receiver), a_call()), "private_address")
    finally:
        await caller.close()
    assert not failed.retryable


@proves("T3")
async def test_a_redirect_to_a_name_that_resolves_to_metadata_is_refused(
    http: HttpCaller, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def metadata(_: str, port: int, *__: Any, **___: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", port))]

    monkeypatch.setattr(socket, "getaddrinfo", metadata)
    redirect(receiver, "http://innocent.example/")
    failed = failure_of(await http.call(following(receiver), a_call()), "private_address")
    assert "innocent.example (169.254.169.254)" in failed.error.message


@proves("T3")
@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("", "names no address"),
        ("ftp://127.0.0.1/", "not http"),
        ("file:///etc/passwd", "not http"),
        ("http://[::1", "cannot be called"),
        ("http://user:pass@127.0.0.1/", "user name"),
    ],
)
async def test_a_redirect_that_leads_nowhere_is_reported(
    http: HttpCaller, receiver: Receiver, location: str, words: str
) -> None:
    redirect(receiver, location)
    failed = failure_of(await http.call(following(receiver), a_call()), "http_status")
    assert words in failed.error.message
    assert len(receiver.received) == 1


@proves("T3", "E7")
async def test_a_loop_of_redirects_ends(http: HttpCaller, receiver: Receiver) -> None:
    redirect(receiver, "/start")
    failed = failure_of(await http.call(following(receiver), a_call()), "http_status")
    assert f"More than {MAX_REDIRECTS} redirects" in failed.error.message
    assert len(receiver.received) == MAX_REDIRECTS + 1
