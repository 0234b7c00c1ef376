"""Connections: heads and bodies that do not end, that are too large, and floods; on real sockets."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from ondot.api import protocol, serve
from ondot.api.protocol import Connections
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import World

HEAD = b"GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\n"
ALLOWED = HEAD + b"\r\n"
QUICK_S = 0.05

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines of seconds become fractions of a second."""
    monkeypatch.setattr(protocol, "_WITHIN_S", dict.fromkeys(("head", "body", "linger"), QUICK_S))


@pytest.fixture
async def page(world: World) -> AsyncIterator[Served]:
    async with served(world.database) as page:
        yield page


@asynccontextmanager
async def connected(page: Served) -> AsyncIterator[Ends]:
    host, _, port = page.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], Any]:
    async with asyncio.timeout(20):
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        body = await reader.readexactly(int(headers["content-length"]))
    return int(status.split()[1]), headers, json.loads(body)


async def has_ended(reader: asyncio.StreamReader) -> None:
    """Until the server ends the connection; bounded by the test's own timeout."""
    async with asyncio.timeout(20):
        try:
            while await reader.read(65536):
                pass
        except ConnectionError:
            pass


@proves("T1")
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET",
        HEAD + b"x: ",
        b"\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 10\r\n\r\n{",
        b"POST /v1/jobs HTTP/1.1\r\nhost: evil\r\ncontent-length: 10\r\n\r\n{",
        b"POST /v1/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\n",
        ALLOWED + b"GET /livez",
        ALLOWED * 3 + HEAD,
    ],
)
async def test_a_request_that_does_not_end_ends_its_connection(page: Served, sent: bytes) -> None:
    async with connected(page) as (reader, writer):
        writer.write(sent)
        await has_ended(reader)


@proves("T1")
async def test_idle_connections_end_and_empty_lines_do_not_keep_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "IDLE_S", QUICK_S)
    async with served(world.database) as page, connected(page) as (reader, writer):
        writer.write(ALLOWED)
        assert (await answer_of(reader))[0] == 200
        writer.write(b"\r\n")
        await has_ended(reader)


@proves("T1")
@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"x: " + b"a" * 70_000 + b"\r\n\r\n",
        HEAD + b"x: y\r\n" * 101 + b"\r\n",
        HEAD + b"x: y\r\n" * 100_000 + b"\r\n",
        HEAD + b"x: " + b"a" * 8_000_000,
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
        HEAD + (b"x: " + b"a" * 1_000 + b"\r\n") * 70 + b"\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n" + b"x: y\r\n" * 200,
    ],
    ids=["one field", "101 fields", "100,000 fields", "endless field", "address", "many bytes", "trailers"],
)
async def test_a_head_that_is_too_large_is_431_or_ends_the_connection(page: Served, sent: bytes) -> None:
    async with connected(page) as (reader, writer):
        writer.write(sent)
        if b"chunked" not in sent:
            status, headers, problem = await answer_of(reader)
            assert (status, headers["connection"]) == (431, "close")
            assert problem["type"] == "urn:ondot:problem:head-too-large"
            assert headers["x-content-type-options"] == "nosniff"
        await has_ended(reader)
    assert (await page.client.get("/livez")).status_code == 200


@proves("T1")
async def test_a_head_within_the_limits_is_read_in_pieces_of_any_size(page: Served) -> None:
    sent = HEAD + b"".join(b"x-%d: %s\r\n" % (number, b"a" * 500) for number in range(90)) + b"\r\n"
    async with connected(page) as (reader, writer):
        for at in range(0, len(sent), 5_000):
            writer.write(sent[at : at + 5_000])
            await writer.drain()
        assert (await answer_of(reader))[0] == 200
        writer.write(ALLOWED)
        assert (await answer_of(reader))[0] == 200


@proves("T1")
@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01\x02\x00", b"GET / HTTP/9.9\r\n\r\n", b"nonsense\r\n\r\n", b"GET \xff HTTP/1.1\r\n\r\n"]
)
async def test_bytes_that_are_not_http_are_400(page: Served, sent: bytes) -> None:
    async with connected(page) as (reader, writer):
        writer.write(sent)
        status, _, problem = await answer_of(reader)
        assert (status, problem["type"]) == (400, "urn:ondot:problem:invalid-request")
        await has_ended(reader)


@proves("T1")
async def test_an_upgrade_is_answered_as_a_plain_request(page: Served) -> None:
    async with connected(page) as (reader, writer):
        writer.write(HEAD + b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\r\n")
        assert (await answer_of(reader))[0] == 200
        await has_ended(reader)


@proves("T1")
async def test_a_few_requests_may_be_pipelined_and_thousands_may_not(page: Served) -> None:
    async with connected(page) as (reader, writer):
        writer.write(ALLOWED * 10)
        for _ in range(10):
            assert (await answer_of(reader))[0] == 200
    async with connected(page) as (reader, writer):
        writer.write(ALLOWED * 5_000)
        await has_ended(reader)


@proves("T1")
@pytest.mark.parametrize("limits", [{"by_address": 20}, {"most": 20, "by_address": 1_000}])
async def test_a_flood_of_idle_connections_closes_only_its_own(
    world: World, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]
) -> None:
    monkeypatch.setattr(serve, "Connections", lambda: Connections(**limits))
    async with served(world.database, by_itself=True) as page, AsyncExitStack() as stack:
        stream = await stack.enter_async_context(page.client.stream("GET", "/ui/live"))
        lines = stream.aiter_lines()
        await anext(lines)
        reader, writer = await stack.enter_async_context(connected(page))
        writer.write(b"GET /v1/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        assert (await answer_of(reader))[0] == 200
        flood = [await stack.enter_async_context(connected(page)) for _ in range(60)]
        for number, (_, strange) in enumerate(flood):
            strange.write(b"GET" if number % 2 else b"")
        await asyncio.gather(*(has_ended(strange) for strange, _ in flood[:30]))
        # A client that sends a request at once is answered; a connection with an authorized request stays.
        assert (await page.client.get("/v1/jobs")).status_code == 200
        writer.write(b"GET /v1/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        assert (await answer_of(reader))[0] == 200
        async with asyncio.timeout(20):
            await anext(lines)


@proves("T1")
async def test_a_response_that_the_client_does_not_read_is_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "READ_WITHIN_S", QUICK_S)
    async with served(world.database) as page:
        host, _, port = page.url.removeprefix("http://").partition(":")
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(deaf, (host, int(port)))
            # Requests until their responses of 100 kB have filled every buffer on the way.
            async with asyncio.timeout(30):
                while True:
                    try:
                        await loop.sock_sendall(deaf, b"GET /openapi.json HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 8)
                    except ConnectionError:
                        break
