"""HTTP calls, against real servers on this machine: what is sent, what counts as success, what is refused."""

import asyncio
import gzip
import re
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from ondot import __version__
from ondot.model.addresses import EVERYWHERE, PUBLIC, Reach, endpoint, is_public, parse_networks
from ondot.model.execution import Outcome
from ondot.model.target import HttpTarget
from ondot.targets.addresses import Allowed, PrivateAddress
from ondot.targets.http.answer import MAX_BODY
from ondot.targets.http.target import HttpCaller
from tests.conformance.calls import EXECUTION, Recorder, a_call, failure_of, result_of
from tests.proves import proves
from tests.receiver import Receiver, open_receiver

DATABASE_NOW = datetime(2031, 3, 3, 12, tzinfo=UTC)
"""The database's clock: receivers get it, and not the worker's own."""


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with open_receiver() as receiver:
        yield receiver


@pytest.fixture
async def http() -> AsyncIterator[HttpCaller]:
    caller = HttpCaller(reach=EVERYWHERE, now=lambda: DATABASE_NOW)
    yield caller
    await caller.close()


@pytest.fixture
async def guarded() -> AsyncIterator[HttpCaller]:
    caller = HttpCaller()
    yield caller
    await caller.close()


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def raw_server(talk: Talk) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that says what no framework would."""
    requests: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            requests.append(await reader.readuntil(b"\r\n\r\n"))
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"http://{host}:{port}", requests
    finally:
        server.close()


@proves("E3", "E11", "O3")
async def test_a_request_carries_the_headers_of_the_contract(http: HttpCaller, receiver: Receiver) -> None:
    await http.call(HttpTarget(url=f"{receiver.url}/hook?a=1"), a_call(payload={"n": 1}))
    [received] = receiver.received
    assert (received.method, received.path, received.body) == ("POST", "/hook?a=1", b'{"n":1}')
    assert received.headers["content-type"] == "application/json"
    assert received.headers["user-agent"] == f"ondot/{__version__}"
    assert received.headers["accept-encoding"] == "identity"
    assert received.headers["webhook-id"] == str(EXECUTION)
    assert int(received.headers["webhook-timestamp"]) == DATABASE_NOW.timestamp()
    assert received.headers["ondot-attempt"] == "3"
    assert re.fullmatch(rf"00-{EXECUTION.hex}-[0-9a-f]{{16}}-01", received.headers["traceparent"])
    assert "webhook-signature" not in received.headers


@proves("E11")
async def test_a_jobs_own_headers_are_sent_but_cannot_forge_the_facts(http: HttpCaller, receiver: Receiver) -> None:
    forged = dict.fromkeys(("Webhook-Id", "webhook_id", "ondot_fencing_token", "Ondot.Attempt"), "forged")
    own: Any = {"Content-Type": "text/plain", "X-Team": "bi", "User-Agent": "mine", **forged}
    await http.call(HttpTarget(url=receiver.url, headers=own), a_call())
    headers = receiver.received[0].headers
    assert (headers["content-type"], headers["x-team"], headers["user-agent"]) == ("text/plain", "bi", "mine")
    assert headers["webhook-id"] == str(EXECUTION)
    assert "forged" not in headers.values()


@proves("T3")
async def test_headers_of_the_connection_are_not_sent_although_an_older_release_stored_them(
    http: HttpCaller, receiver: Receiver
) -> None:
    names = ("te", "upgrade", "expect", "proxy-authorization", "Proxy_Connection", "Keep-Alive", "Trailer", "Host")
    await http.call(HttpTarget(url=receiver.url, headers=dict.fromkeys(names, "smuggled")), a_call())
    sent = receiver.received[0].headers
    assert "smuggled" not in sent.values()


@proves("E3")
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_request_that_takes_no_body_has_none(http: HttpCaller, receiver: Receiver, method: str) -> None:
    result = result_of(await http.call(HttpTarget(url=receiver.url, method=method), a_call(payload={"n": 1})))
    assert receiver.received[0].method == method
    assert receiver.received[0].body == b""
    assert "content-type" not in receiver.received[0].headers
    assert result == {"status": 204, "body": None}


@proves("E14")
async def test_a_json_answer_stays_json_and_any_other_becomes_text(http: HttpCaller, receiver: Receiver) -> None:
    target = HttpTarget(url=receiver.url)
    receiver.answer(lambda: web.json_response({"id": 2**70}, status=201, content_type="application/hal+json"))
    assert result_of(await http.call(target, a_call())) == {"status": 201, "body": {"id": 2**70}}
    receiver.answer(lambda: web.Response(text="{not json", content_type="application/json"))
    assert result_of(await http.call(target, a_call())) == {"status": 200, "body": "{not json"}
    receiver.answer(lambda: web.Response(text='{"a": 1}', content_type="text/plain"))
    assert result_of(await http.call(target, a_call())) == {"status": 200, "body": '{"a": 1}'}


@proves("E4", "P8")
@pytest.mark.parametrize(
    ("status", "retryable"),
    [
        *[(status, False) for status in (301, 302, 304, 308, 400, 401, 404, 410, 422, 451)],
        *[(status, True) for status in (408, 425, 429, 500, 501, 502, 503, 599)],
    ],
)
async def test_only_2xx_succeeds_and_only_transient_errors_are_retried(
    http: HttpCaller, receiver: Receiver, status: int, retryable: bool
) -> None:
    receiver.answer(lambda: web.Response(status=status, text="" if status == 304 else "because"))
    failed = failure_of(await http.call(HttpTarget(url=receiver.url), a_call()), "http_status")
    assert failed.retryable is retryable
    assert failed.outcome is Outcome.FAILED
    assert failed.error.facts["status"] == status
    assert str(status) in failed.error.message
    assert failed.error.detail == (None if status == 304 else "because")
    assert failed.retry_after_s is None


@proves("E4")
@pytest.mark.parametrize(
    ("status", "headers", "waits_s"),
    [
        (429, {"Retry-After": "120"}, 120),
        (503, {"Retry-After": "0"}, 0),
        (503, {"Retry-After": "999999999"}, 86_400),
        (503, {"Retry-After": "9" * 5000}, 86_400),
        (503, {"Retry-After": "-5"}, None),
        (503, {"Retry-After": "soon"}, None),
        (500, {"Retry-After": "120"}, 120),
        (503, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
    ],
)
async def test_retry_after_of_a_receiver_is_obeyed_up_to_a_day(
    http: HttpCaller, receiver: Receiver, status: int, headers: dict[str, str], waits_s: float | None
) -> None:
    receiver.answer(lambda: web.Response(status=status, headers=headers))
    failed = failure_of(await http.call(HttpTarget(url=receiver.url), a_call()), "http_status")
    assert failed.retry_after_s == waits_s


@proves("E4", "C3")
async def test_a_date_to_retry_after_from_a_receiver_that_sends_no_date_is_counted_from_the_databases_clock(
    http: HttpCaller,
) -> None:
    later = format_datetime(DATABASE_NOW + timedelta(seconds=90), usegmt=True)

    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 503 Closed\r\nRetry-After: {later}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()

    async with raw_server(refuse) as (url, _):
        report = await http.call(HttpTarget(url=url), a_call())
    assert failure_of(report, "http_status").retry_after_s == 90


@proves("E4")
async def test_a_date_to_retry_after_is_counted_from_the_receivers_own_clock(
    http: HttpCaller, receiver: Receiver
) -> None:
    theirs = datetime(2040, 1, 1, tzinfo=UTC)
    when = {"Date": format_datetime(theirs, usegmt=True)}
    when["Retry-After"] = format_datetime(theirs + timedelta(seconds=90), usegmt=True)
    receiver.answer(lambda: web.Response(status=503, headers=when))
    failed = failure_of(await http.call(HttpTarget(url=receiver.url), a_call()), "http_status")
    assert failed.retry_after_s == 90


@proves("T3")
async def test_a_redirect_is_not_followed_and_the_report_says_so(http: HttpCaller, receiver: Receiver) -> None:
    receiver.answer(lambda: web.Response(status=302, headers={"Location": "http://169.254.169.254/"}))
    failed = failure_of(await http.call(HttpTarget(url=receiver.url), a_call()), "http_status")
    assert "not followed" in failed.error.message
    assert failed.error.facts["location"] == "http://169.254.169.254/"
    assert len(receiver.received) == 1


@proves("E14")
async def test_an_answer_that_never_ends_is_read_to_its_bound_and_dropped(http: HttpCaller, receiver: Receiver) -> None:
    dropped = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x" * 10_000)
        finally:
            dropped.set()

    receiver.answering = endless
    result = result_of(await http.call(HttpTarget(url=receiver.url), a_call()))
    assert result["body"] == "x" * MAX_BODY
    assert "65,536" in result["cut"]
    async with asyncio.timeout(60):
        await dropped.wait()


@proves("E14")
async def test_an_answer_of_just_the_bound_is_kept_whole(http: HttpCaller, receiver: Receiver) -> None:
    receiver.answer(lambda: web.Response(text="x" * MAX_BODY))
    assert result_of(await http.call(HttpTarget(url=receiver.url), a_call())) == {"status": 200, "body": "x" * MAX_BODY}


@proves("E14", "W4")
async def test_more_of_an_answer_is_kept_for_a_step_that_reads_it(http: HttpCaller, receiver: Receiver) -> None:
    files = [f"file-{number}" for number in range(20_000)]
    receiver.answer(lambda: web.json_response(files))
    whole = result_of(await http.call(HttpTarget(url=receiver.url), a_call(result_bytes=1_000_000)))
    assert whole == {"status": 200, "body": files}
    cut = result_of(await http.call(HttpTarget(url=receiver.url), a_call(result_bytes=100_000)))
    assert len(cut["body"]) == 100_000
    assert "100,000" in cut["cut"]


@proves("E14")
async def test_a_gzip_bomb_is_unpacked_no_further_than_is_kept(http: HttpCaller, receiver: Receiver) -> None:
    bomb = gzip.compress(b"0" * 50_000_000)
    receiver.answer(lambda: web.Response(body=bomb, headers={"Content-Encoding": "gzip"}))
    result = result_of(await http.call(HttpTarget(url=receiver.url), a_call()))
    assert result["body"] == "0" * MAX_BODY
    assert result["cut"]


@proves("E14")
@pytest.mark.parametrize(("encoding", "body"), [("br", b"\x8b\x01"), ("gzip", b"not gzip"), ("gzip", b"")])
async def test_an_answer_that_cannot_be_decompressed_is_reported_as_such(
    http: HttpCaller, receiver: Receiver, encoding: str, body: bytes
) -> None:
    receiver.answer(lambda: web.Response(body=body, headers={"Content-Encoding": encoding}))
    body_kept = result_of(await http.call(HttpTarget(url=receiver.url), a_call()))["body"]
    assert body_kept is None if not body else "bytes" in body_kept


@proves("E7")
async def test_an_answer_that_drips_ends_with_the_timeout(http: HttpCaller, receiver: Receiver) -> None:
    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"x")
        await asyncio.Event().wait()
        return response

    receiver.answering = drip
    failed = failure_of(await http.call(HttpTarget(url=receiver.url), a_call(timeout_s=0.3)), "timeout")
    assert failed.outcome is Outcome.TIMED_OUT


@proves("E4")
async def test_a_server_that_is_not_there_is_tried_again(http: HttpCaller) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        target = HttpTarget(url=f"http://127.0.0.1:{unused.getsockname()[1]}")
        failed = failure_of(await http.call(target, a_call()), "connect")
    assert failed.retryable
    assert "127.0.0.1:" in failed.error.message
    assert "refused" in failed.error.message.lower()


@proves("E4")
async def test_a_name_that_does_not_resolve_is_tried_again(http: HttpCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fails)
    failed = failure_of(await http.call(HttpTarget(url="http://nowhere.example"), a_call()), "dns")
    assert failed.retryable
    assert "nowhere.example" in failed.error.message


@proves("E4")
async def test_a_server_that_speaks_no_tls_is_tried_again(http: HttpCaller, receiver: Receiver) -> None:
    failed = failure_of(await http.call(HttpTarget(url=receiver.url.replace("http", "https")), a_call()), "tls")
    assert failed.retryable


@proves("T3")
async def test_a_certificate_without_a_known_issuer_is_not_trusted(http: HttpCaller, tmp_path: Path) -> None:
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("openssl is not here to make a certificate with")
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    make = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=127.0.0.1"]
    made = await asyncio.create_subprocess_exec(
        openssl, *make, "-keyout", str(key), "-out", str(certificate), stderr=asyncio.subprocess.DEVNULL
    )
    assert await made.wait() == 0
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    recorder: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        recorder.append(await reader.read())
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    failed = failure_of(await http.call(HttpTarget(url=f"https://127.0.0.1:{port}"), a_call()), "tls")
    server.close()
    assert "certificate verify failed" in failed.error.message
    assert b"".join(recorder) == b""


@proves("P7")
@pytest.mark.parametrize("method", ["GET", "PUT", "POST"])
async def test_a_call_whose_connection_breaks_is_reported_and_not_sent_again(http: HttpCaller, method: str) -> None:
    async def hang_up(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        return

    async with raw_server(hang_up) as (url, requests):
        failed = failure_of(await http.call(HttpTarget(url=url, method=method), a_call()), "disconnected")
    assert failed.retryable
    assert len(requests) == 1


@proves("P8")
async def test_an_incomplete_answer_is_not_a_success(http: HttpCaller) -> None:
    async def break_off(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        await writer.drain()

    async with raw_server(break_off) as (url, _):
        assert failure_of(await http.call(HttpTarget(url=url), a_call()), "disconnected").retryable


@proves("P8")
@pytest.mark.parametrize(
    "nonsense", [b"SSH-2.0-OpenSSH_9\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n"]
)
async def test_an_answer_that_is_not_http_is_not_a_success(http: HttpCaller, nonsense: bytes) -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(nonsense)
        await writer.drain()

    async with raw_server(talk) as (url, _):
        assert failure_of(await http.call(HttpTarget(url=url), a_call()), "bad_response").retryable


@proves("T3")
async def test_proxies_of_the_environment_have_no_say(
    http: HttpCaller, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert result_of(await http.call(HttpTarget(url=receiver.url), a_call()))["status"] == 204


@proves("P12")
async def test_a_cookie_of_one_call_is_not_sent_with_the_next(http: HttpCaller, receiver: Receiver) -> None:
    receiver.answer(lambda: web.Response(headers={"Set-Cookie": "session=secret; Path=/"}))
    for _ in range(2):
        await http.call(HttpTarget(url=receiver.url), a_call())
    assert "cookie" not in receiver.received[1].headers


@proves("E3")
@pytest.mark.parametrize("url", ["http://", "http://[::1", "ftp://example.com/", "http://x:99999/"])
async def test_an_address_that_cannot_be_called_is_not_retried(http: HttpCaller, url: str) -> None:
    assert not failure_of(await http.call(HttpTarget(url=url), a_call()), "bad_request").retryable


PRIVATE_HOSTS = [
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "0177.0.0.1",
    "017700000001",
    "127.0.0.1.",
    "0",
    "0.0.0.0",
    "10.1.2.3",
    "100.64.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "[::]",
    "[::1]",
    "[::127.0.0.1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b:1::7f00:1]",
    "[100::1]",
    "[2001::1]",
    "[2001:db8::1]",
    "[2002:7f00:1::]",
    "[3fff::1]",
    "[5f00::1]",
    "[fc00::1]",
    "[fec0::1]",
    "[ff02::1]",
]


@proves("T3")
@pytest.mark.parametrize("host", PRIVATE_HOSTS)
async def test_a_private_address_is_refused_in_every_notation(guarded: HttpCaller, host: str) -> None:
    failed = failure_of(await guarded.call(HttpTarget(url=f"http://{host}:1/"), a_call()), "private_address")
    assert not failed.retryable
    assert "ONDOT_ALLOW_PRIVATE_TARGETS=1" in failed.error.message


@proves("T3")
@pytest.mark.parametrize(
    "address", ["1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_a_public_address_is_not_refused(address: str) -> None:
    assert is_public(ip_address(address))


@proves("T3")
async def test_a_name_is_refused_if_any_of_its_addresses_is_private(
    guarded: HttpCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def two(_: str, port: int, *__: Any, **___: Any) -> list[Any]:
        stream = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*stream, ("8.8.8.8", port)), (*stream, ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", two)
    failed = failure_of(await guarded.call(HttpTarget(url="http://two.example/"), a_call()), "private_address")
    assert "two.example (127.0.0.1)" in failed.error.message


@proves("T3")
async def test_the_name_of_this_machine_is_refused(guarded: HttpCaller, receiver: Receiver) -> None:
    target = HttpTarget(url=receiver.url.replace("127.0.0.1", "localhost"))
    for _ in range(2):
        failure_of(await guarded.call(target, a_call()), "private_address")
    assert receiver.received == []


@proves("T3")
async def test_a_name_that_changes_its_mind_leads_nowhere_private(
    guarded: HttpCaller, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address that is looked at is the one that is connected to: there is no second lookup to be fooled by."""
    port = int(receiver.url.rpartition(":")[2])
    lookups: list[str] = []
    connected: list[tuple[str, int]] = []

    def rebinding(host: str, _: int, *__: Any, **___: Any) -> list[Any]:
        lookups.append(host)
        address = "203.0.114.1" if len(lookups) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)

    async def connect(_: socket.socket, address: tuple[str, int]) -> None:
        connected.append(address)
        raise ConnectionRefusedError(111, "refused")

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", connect)
    failure_of(await guarded.call(HttpTarget(url=f"http://rebind.example:{port}/"), a_call()), "connect")
    assert lookups == ["rebind.example"]
    assert connected == [("203.0.114.1", port)]
    assert receiver.received == []


@proves("T3")
@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "2130706433"])
def test_no_socket_is_created_for_an_address_that_is_not_public(address: str) -> None:
    with pytest.raises(PrivateAddress):
        Allowed(PUBLIC).open_socket((socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80)))


NEVER_CALLED = [
    "169.254.169.254",
    "169.254.170.2",
    "169.254.0.1.",
    "2852039166",
    "0xa9fea9fe",
    "0251.0376.0251.0376",
    "169.254.43518",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "[fe80::1]",
    "[febf::1]",
    "[fd00:ec2::254]",
    "[fd00:ec2::23]",
    "[fd20:ce::254]",
    "[::169.254.169.254]",
    "[::ffff:169.254.169.254]",
    "[::ffff:a9fe:a9fe]",
    "[::ffff:0:a9fe:a9fe]",
    "[64:ff9b::a9fe:a9fe]",
    "[64:ff9b:1::a9fe:a9fe]",
    "[64:ff9b:1:a9fe:a9:fe00::]",
    "[2002:a9fe:a9fe::1]",
    "[2001:0:a9fe:a9fe::1]",
    "[2001:0:1:1::5601:5601]",
    "[fd00::5efe:a9fe:a9fe]",
]


@proves("T3")
@pytest.mark.parametrize("host", NEVER_CALLED)
async def test_a_metadata_address_is_refused_even_where_private_ones_are_allowed(
    http: HttpCaller, guarded: HttpCaller, host: str
) -> None:
    for caller in (http, guarded):
        failed = failure_of(await caller.call(HttpTarget(url=f"http://{host}:1/"), a_call()), "private_address")
        assert not failed.retryable
        assert "never calls" in failed.error.message


@proves("T3")
@pytest.mark.parametrize("address", ["169.254.169.254", "fe80::1%2", "::ffff:169.254.169.254"])
async def test_a_name_that_leads_to_metadata_is_refused_even_where_private_ones_are_allowed(
    http: HttpCaller, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    def metadata(_: str, port: int, *__: Any, **___: Any) -> list[Any]:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        rest = (0, 0) if ":" in address else ()
        return [(family, socket.SOCK_STREAM, 6, "", (address, port, *rest))]

    monkeypatch.setattr(socket, "getaddrinfo", metadata)
    target = HttpTarget(url="http://metadata.google.internal/computeMetadata/v1/")
    assert "never calls" in failure_of(await http.call(target, a_call()), "private_address").error.message


@proves("T3")
@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "192.168.1.1", "::1", "fc00::1", "64:ff9b::a00:1"])
def test_other_private_addresses_may_be_allowed(address: str) -> None:
    Allowed(EVERYWHERE).check(address)


@proves("T3")
@pytest.mark.parametrize("host", ["10.1.2.3", "0xa010203", "10.1.515", "[::ffff:10.1.2.3]", "[64:ff9b::a01:203]"])
def test_a_named_network_is_allowed_in_every_notation_and_others_are_not(host: str) -> None:
    allowed = Allowed(Reach(networks=parse_networks(["10.1.0.0/16", "fd12::/48"])))
    allowed.check(host)
    allowed.check("fd12::1")
    for other in ("10.2.0.1", "127.0.0.1", "fd13::1", "169.254.169.254", "[::1]"):
        with pytest.raises(PrivateAddress):
            allowed.check(other)


@proves("T3")
def test_not_even_a_network_of_all_addresses_allows_metadata() -> None:
    allowed = Allowed(Reach(networks=parse_networks(["0.0.0.0/0", "::/0"])))
    allowed.check("127.0.0.1")
    for host in NEVER_CALLED:
        with pytest.raises(PrivateAddress):
            allowed.check(host)


@proves("T3")
async def test_calls_with_another_reach_do_not_share_a_connection(receiver: Receiver) -> None:
    """A connection that is kept open has passed its check already: a stricter call must not be sent over it."""
    port = int(receiver.url.rpartition(":")[2])
    reaches = {1: EVERYWHERE, 2: PUBLIC}

    async def reach_of(tenant_no: int) -> Reach:
        return reaches[tenant_no]

    caller = HttpCaller(reach_of=reach_of)
    target = HttpTarget(url=f"http://localhost:{port}/")
    try:
        assert result_of(await caller.call(target, a_call(tenant_no=1)))["status"] == 204
        failure_of(await caller.call(target, a_call(tenant_no=2)), "private_address")
        reaches[1] = PUBLIC
        failure_of(await caller.call(target, a_call(tenant_no=1)), "private_address")
    finally:
        await caller.close()
    assert len(receiver.received) == 1


@proves("T3")
async def test_a_job_written_without_the_scope_never_reaches_a_private_address(
    http: HttpCaller, receiver: Receiver
) -> None:
    failed = failure_of(await http.call(HttpTarget(url=receiver.url, only_public=True), a_call()), "private_address")
    assert "scope private-targets" in failed.error.message
    assert receiver.received == []


@proves("T3")
async def test_own_endpoints_are_refused_although_their_network_is_allowed(receiver: Receiver) -> None:
    port = int(receiver.url.rpartition(":")[2])
    own = frozenset({endpoint(ip_address("127.0.0.1"), port)})
    caller = HttpCaller(reach=Reach(any_private=True, own=own))
    try:
        for host in ("127.0.0.1", "localhost", "127.9.9.9", "0", "2130706433", "[::1]", "[::ffff:127.0.0.1]", "[::]"):
            url = f"http://{host}:{port}/"
            failed = failure_of(await caller.call(HttpTarget(url=url), a_call()), "private_address")
            assert "ondot's own" in failed.error.message
        async with open_receiver() as other:
            assert result_of(await caller.call(HttpTarget(url=other.url), a_call()))["status"] == 204
    finally:
        await caller.close()
    assert receiver.received == []


@proves("E3")
async def test_the_answer_of_a_receiver_is_not_output_of_the_attempt(http: HttpCaller, receiver: Receiver) -> None:
    recorder = Recorder()
    receiver.answer(lambda: web.Response(text="hello"))
    await http.call(HttpTarget(url=receiver.url), a_call(recorder))
    assert recorder.lines == []


@proves("E3")
async def test_a_caller_that_was_closed_opens_again_when_it_is_called(http: HttpCaller, receiver: Receiver) -> None:
    target = HttpTarget(url=receiver.url)
    await http.call(target, a_call())
    await http.close()
    assert result_of(await http.call(target, a_call()))["status"] == 204
