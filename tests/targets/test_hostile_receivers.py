"""Receivers that answer slowly, endlessly, wrongly or never: each call ends in its time and in little memory."""

import asyncio
import gzip
import socket
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from ondot.model.addresses import EVERYWHERE
from ondot.model.execution import Outcome
from ondot.model.outcome import Cancelled, Failed, Succeeded
from ondot.model.target import HttpTarget
from ondot.ports.target import Cancel
from ondot.targets.http.answer import MAX_BODY
from ondot.targets.http.target import HttpCaller
from tests.conformance.calls import a_call, failure_of, result_of
from tests.proves import proves

Talk = Callable[[asyncio.StreamWriter], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\n"
MEGABYTE = b"x" * 1_000_000
MOST_BYTES_HELD = 20_000_000


@pytest.fixture
async def http() -> AsyncIterator[HttpCaller]:
    caller = HttpCaller(reach=EVERYWHERE)
    yield caller
    await caller.close()


class Server:
    """Says what no framework would; `dropped` is set when the caller hangs up."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        self.requests = 0
        self.url = ""
        self.asked = asyncio.Event()
        self.dropped = asyncio.Event()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.requests += 1
            self.asked.set()
            talking = asyncio.ensure_future(self.talk(writer))
            ended = asyncio.ensure_future(self._until_dropped(reader))
            await asyncio.wait({talking, ended}, return_when=asyncio.FIRST_COMPLETED)
            for task in (talking, ended):
                task.cancel()
            await asyncio.wait({talking, ended})
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.dropped.set()
            writer.close()

    async def _until_dropped(self, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while await reader.read(65536):
                pass


@asynccontextmanager
async def serving(talk: Talk) -> AsyncIterator[Server]:
    server = Server(talk)
    listening = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    server.url = f"http://{host}:{port}/"
    try:
        yield server
    finally:
        listening.close()


async def never(_: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def drips(writer: asyncio.StreamWriter) -> None:
    writer.write(OK + b"content-length: 1000000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.005)


async def drips_headers(writer: asyncio.StreamWriter) -> None:
    writer.write(OK + b"x-slow: ")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.005)


@proves("E7")
@pytest.mark.parametrize("talk", [never, drips, drips_headers])
async def test_a_receiver_that_takes_for_ever_is_dropped_at_the_timeout(http: HttpCaller, talk: Talk) -> None:
    async with serving(talk) as server:
        failed = failure_of(await http.call(HttpTarget(url=server.url), a_call(timeout_s=0.4)), "timeout")
        assert failed.outcome is Outcome.TIMED_OUT
        assert failed.retryable
        async with asyncio.timeout(60):
            await server.dropped.wait()


@proves("E7")
@pytest.mark.parametrize("talk", [never, drips_headers])
async def test_a_receiver_that_sends_no_first_byte_in_time_is_reported_as_such(http: HttpCaller, talk: Talk) -> None:
    async with serving(talk) as server:
        target = HttpTarget(url=server.url, first_byte_timeout_s=0.2)
        failed = failure_of(await http.call(target, a_call(timeout_s=60)), "first_byte_timeout")
        assert failed.outcome is Outcome.TIMED_OUT
        assert failed.retryable
        assert "0.2 s" in failed.error.message
        async with asyncio.timeout(60):
            await server.dropped.wait()


@proves("E7")
async def test_an_answer_that_started_in_time_may_take_longer(http: HttpCaller) -> None:
    async def in_two_parts(writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"content-length: 4\r\n\r\nab")
        await writer.drain()
        await asyncio.sleep(0.4)
        writer.write(b"cd")
        await writer.drain()

    async with serving(in_two_parts) as server:
        target = HttpTarget(url=server.url, first_byte_timeout_s=0.3, connect_timeout_s=0.3)
        assert result_of(await http.call(target, a_call(timeout_s=60)))["body"] == "abcd"


@proves("E7")
async def test_each_call_over_a_connection_that_is_kept_has_its_own_times(http: HttpCaller) -> None:
    turns = iter(["answer", "hang"])

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                assert b"content-length: 4" in head.lower()
                await reader.readexactly(4)
                if next(turns) == "hang":
                    await reader.read()
                    break
                writer.write(OK + b"content-length: 2\r\n\r\nok")
        writer.close()

    listening = await asyncio.start_server(talk, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    target = HttpTarget(url=f"http://{host}:{port}/", first_byte_timeout_s=0.2)
    assert isinstance(await http.call(target, a_call()), Succeeded)
    failure_of(await http.call(target, a_call()), "first_byte_timeout")
    listening.close()


@asynccontextmanager
async def not_accepting() -> AsyncIterator[str]:
    """An address whose queue of connections is full: those that knock now wait for ever."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        address = listening.getsockname()
        knocking = []
        for _ in range(4):
            one = socket.socket()
            one.setblocking(False)
            with suppress(BlockingIOError):
                one.connect(address)
            knocking.append(one)
        try:
            yield f"http://{address[0]}:{address[1]}/"
        finally:
            for one in knocking:
                one.close()


@proves("E7")
@pytest.mark.parametrize(("connect_s", "total_s"), [(0.2, 60.0), (None, 0.2), (60.0, 0.2)])
async def test_a_connection_that_takes_too_long_is_reported_as_such(
    http: HttpCaller, connect_s: float | None, total_s: float
) -> None:
    async with not_accepting() as url:
        target = HttpTarget(url=url, connect_timeout_s=connect_s, first_byte_timeout_s=60)
        failed = failure_of(await http.call(target, a_call(timeout_s=total_s)), "connect_timeout")
        assert failed.outcome is Outcome.TIMED_OUT
        assert failed.retryable
        assert "0.2 s" in failed.error.message


@proves("E8")
async def test_a_call_that_is_cancelled_is_dropped_at_once(http: HttpCaller) -> None:
    cancel = Cancel(grace_s=100)
    async with serving(never) as server, asyncio.timeout(60):
        calling = asyncio.ensure_future(http.call(HttpTarget(url=server.url), a_call(timeout_s=100, cancel=cancel)))
        await server.asked.wait()
        cancel.request()
        report = await calling
        await server.dropped.wait()
    assert isinstance(report, Cancelled)
    assert report.forced
    assert "receiver" in report.message


@proves("E8")
async def test_a_call_that_is_cancelled_before_it_is_connected_has_sent_nothing(http: HttpCaller) -> None:
    cancel = Cancel()
    async with not_accepting() as url, asyncio.timeout(60):
        calling = asyncio.ensure_future(http.call(HttpTarget(url=url), a_call(timeout_s=100, cancel=cancel)))
        await asyncio.sleep(0)
        cancel.request()
        report = await calling
    assert isinstance(report, Cancelled)
    assert not report.forced
    assert "nothing was sent" in report.message


@proves("E14")
@pytest.mark.parametrize("chunked", [True, False])
async def test_only_the_start_of_an_answer_of_a_gigabyte_is_read(http: HttpCaller, chunked: bool) -> None:
    taken = 0

    async def talk(writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        writer.write(OK + (b"transfer-encoding: chunked\r\n\r\n" if chunked else b"content-length: 1000000000\r\n\r\n"))
        for _ in range(1000):
            writer.write(b"%x\r\n%s\r\n" % (len(MEGABYTE), MEGABYTE) if chunked else MEGABYTE)
            await writer.drain()
            taken += len(MEGABYTE)

    async with serving(talk) as server:
        report = await http.call(HttpTarget(url=server.url), a_call())
        async with asyncio.timeout(60):
            await server.dropped.wait()
    assert "cut" in result_of(report)
    assert taken < MOST_BYTES_HELD


@proves("E14")
async def test_a_bomb_of_a_gigabyte_takes_no_memory(http: HttpCaller) -> None:
    # A gzip of gzips, of which a megabyte unpacks to a gigabyte.
    bomb = gzip.compress(bytes(50_000_000)) * 20

    async def talk(writer: asyncio.StreamWriter) -> None:
        head = b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(bomb)
        writer.write(OK + head + bomb)
        await writer.drain()

    async with serving(talk) as server:
        tracemalloc.start()
        try:
            report = await http.call(HttpTarget(url=server.url), a_call())
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert "cut" in result_of(report)
    assert peak < MOST_BYTES_HELD


CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"


@proves("E14")
@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [
        (OK, b"x-header: value\r\n" * 10_000),
        (OK + b"x-header: ", MEGABYTE),
        (b"HTTP/1.1 200 ", MEGABYTE),
        (b"", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" * 1000),
        (CHUNKED, b"0" * 100_000),
        (CHUNKED + b"1;", MEGABYTE),
        (CHUNKED + b"1\r\nx\r\n0\r\n", b"x-trailer: value\r\n" * 10_000),
    ],
    ids=["headers", "header", "status", "hints", "chunk size", "chunk extension", "trailers"],
)
async def test_an_answer_without_an_end_is_given_up_soon(http: HttpCaller, begins: bytes, goes_on: bytes) -> None:
    taken = 0

    async def talk(writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        writer.write(begins)
        while True:
            writer.write(goes_on)
            await writer.drain()
            taken += len(goes_on)

    async with serving(talk) as server:
        report = await http.call(HttpTarget(url=server.url), a_call(timeout_s=30))
        async with asyncio.timeout(60):
            await server.dropped.wait()
    assert isinstance(report, Failed)
    assert report.error.code in {"bad_response", "disconnected"}
    assert taken < MOST_BYTES_HELD


@proves("E14")
async def test_an_answer_in_chunks_of_one_byte_is_read_as_far_as_it_is_kept(http: HttpCaller) -> None:
    async def talk(writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + b"1\r\nx\r\n" * 70_000 + b"0\r\n\r\n")
        await writer.drain()

    async with serving(talk) as server:
        result = result_of(await http.call(HttpTarget(url=server.url), a_call()))
    assert result["body"] == "x" * MAX_BODY
    assert "cut" in result


@proves("E3")
async def test_the_limit_counts_for_each_answer_of_a_connection(http: HttpCaller) -> None:
    body = b"x" * 60_000
    answered = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(4)
                answered += 1
                writer.write(OK + b"content-length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    listening = await asyncio.start_server(talk, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    for _ in range(30):
        assert isinstance(await http.call(HttpTarget(url=f"http://{host}:{port}/"), a_call()), Succeeded)
    assert answered == 30
    listening.close()


@proves("P8")
@pytest.mark.parametrize(
    "body",
    [
        b"transfer-encoding: chunked\r\n\r\nzz\r\nab\r\n0\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\n-1\r\nab\r\n0\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\n2\r\nabcdef\r\n0\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\n5\r\nab",
        b"transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\nab",
        b"content-length: -1\r\n\r\nab",
        b"content-length: 3\r\ncontent-length: 2\r\n\r\nab",
        b"content-length: 100\r\n\r\nab",
    ],
)
async def test_an_invalid_answer_is_not_a_success(http: HttpCaller, body: bytes) -> None:
    async def talk(writer: asyncio.StreamWriter) -> None:
        writer.write(OK + body)
        await writer.drain()

    async with serving(talk) as server:
        report = await http.call(HttpTarget(url=server.url), a_call(timeout_s=5))
    assert isinstance(report, Failed), report
    assert report.retryable
    assert report.error.code in {"bad_response", "disconnected"}


@proves("T3")
async def test_a_receiver_that_redirects_for_ever_is_called_once(http: HttpCaller) -> None:
    async with serving(never) as server:

        async def talk(writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 307 Go\r\nlocation: " + server.url.encode() + b"\r\ncontent-length: 0\r\n\r\n")
            await writer.drain()

        server.talk = talk
        failed = failure_of(await http.call(HttpTarget(url=server.url), a_call()), "http_status")
        assert failed.error.facts["status"] == 307
        assert server.requests == 1
