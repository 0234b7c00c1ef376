"""A TCP proxy between one role and PostgreSQL that breaks the connection in every way a network can.

Each role process has its own, in the harness's event loop, so that roles can be cut off one by one. It parses the
protocol's messages, because some faults depend on the statement: asyncpg sends a statement's text once, with the name
under which it is prepared, and from then on only the name. A transaction is over when the server reports that it is
ready and idle. Bytes that are held back are passed on after `repair`, as TCP would by sending them again.
"""

import asyncio
import socket
import struct
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qs, urlsplit

Way = Literal["in", "out"]
"""`in`: towards PostgreSQL; `out`: from it."""

CANCEL_REQUEST, SSL_REQUEST, GSS_REQUEST = 80877102, 80877103, 80877104
AT_ONCE_BYTES = 1 << 20
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
NO_ENCRYPTION = b"N"


class Cut(Exception):
    """Reset this link now."""


@dataclass(slots=True)
class Link:
    """One connection of a client, and the state of the protocol on it."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter | None = None
    texts: dict[bytes, bytes] = field(default_factory=dict)
    """The text of each prepared statement, by its name."""
    portals: dict[bytes, bytes] = field(default_factory=dict)
    """The text of a portal's statement, by the portal's name."""
    asked: deque[bool] = field(default_factory=deque)
    """For each unanswered request: whether its reply is the one to drop."""
    marks: bool = False
    """The request in progress is marked."""
    in_marked_transaction: bool = False
    reply: bytearray = field(default_factory=bytearray)
    """The answer to the request in progress, kept here while it may have to be withheld."""
    did_nothing: bool = False
    """The answer in progress is an error or a rollback."""

    def reset(self) -> None:
        for writer in (self.client, self.server):
            if writer is not None:
                with suppress(OSError):
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                writer.transport.abort()

    def close(self) -> None:
        for writer in (self.client, self.server):
            if writer is not None:
                writer.close()


class Proxy:
    def __init__(self, url: str) -> None:
        self.url = ""
        self.happened: Counter[str] = Counter()
        self._links: dict[int, Link] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._open = {"in": asyncio.Event(), "out": asyncio.Event()}
        self._struck = asyncio.Event()
        self._waiting: dict[asyncio.Event, tuple[bytes, ...]] = {}
        self._holding: set[asyncio.Event] = set()
        self._refuses = False
        self._latency_s = 0.0
        self._drop_after: tuple[bytes, ...] = ()
        self._request_word: bytes | None = None
        self._reply_word: bytes | None = None
        self._resets_reply = False
        self._behind = urlsplit(url)
        self.repair()

    # Faults -----------------------------------------------------------------------------------------------------------

    def latency(self, seconds: float) -> None:
        """Delay everything by this much, each way."""
        self._latency_s = seconds

    def cut(self) -> None:
        """Reset all connections, and every new one, until `repair`."""
        self._refuses = True
        self.reset_all()

    def cut_one_way(self, way: Way) -> None:
        """Pass on nothing in this direction until `repair`, and close nothing."""
        self._open[way].clear()
        self.happened[f"cut {way}"] += 1

    def half_open(self) -> None:
        """Pass on nothing and close nothing until `repair`; new connections are accepted, and hang."""
        for gate in self._open.values():
            gate.clear()
        self.happened["half open"] += 1

    def reset_in_the_middle(self) -> None:
        """Pass on half of the next reply, then reset that connection."""
        self._resets_reply = True
        self._struck.clear()

    def drop_reply_after(self, *words: str) -> None:
        """Once: pass on a statement with one of these words, and reset the connection when it is committed."""
        self._drop_after = tuple(word.encode() for word in words)
        self._struck.clear()

    def cut_before_request(self, word: str) -> None:
        """Once: reset the connection instead of passing on a client message with this word."""
        self._request_word = word.encode()
        self._struck.clear()

    def cut_before_reply(self, word: str) -> None:
        """Once: reset the connection instead of passing on a server message with this word."""
        self._reply_word = word.encode()
        self._struck.clear()

    def reset_all(self) -> None:
        """Reset all connections; new ones are accepted."""
        self.happened["cuts"] += len(self._links)
        for link in self._links.values():
            link.reset()

    def repair(self) -> None:
        """End every fault, also those that still wait to strike."""
        self._refuses, self._resets_reply, self._latency_s = False, False, 0.0
        self._drop_after, self._request_word, self._reply_word = (), None, None
        for gate in self._open.values():
            gate.set()

    def point_at(self, url: str) -> None:
        """Use another server for new connections."""
        self._behind = urlsplit(url)

    # Waiting ----------------------------------------------------------------------------------------------------------

    @property
    def was_struck(self) -> bool:
        return self._struck.is_set()

    async def struck(self) -> None:
        """Wait until the fault has happened."""
        await self._struck.wait()

    async def sent(self, *words: str, hold_replies: bool = False) -> None:
        """Wait until a statement with one of these words was passed on; `hold_replies` from then until `repair`."""
        event = asyncio.Event()
        self._waiting[event] = tuple(word.encode() for word in words)
        if hold_replies:
            self._holding.add(event)
        try:
            await event.wait()
        finally:
            del self._waiting[event]
            self._holding.discard(event)

    # Serving ----------------------------------------------------------------------------------------------------------

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a new connection in a task that `end` cancels."""
        link = Link(writer)
        if self._refuses:
            self.happened["refused"] += 1
            link.reset()
            return
        self.happened["connections"] += 1
        self._links[id(link)] = link
        task = asyncio.create_task(self._serve(link, reader))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, link: Link, reader: asyncio.StreamReader) -> None:
        try:
            await self._relay(link, reader)
        except Cut:
            link.reset()
        except (OSError, EOFError):
            pass
        finally:
            link.close()
            del self._links[id(link)]

    async def end(self) -> None:
        """Reset all connections, and wait until their tasks have ended."""
        self.repair()
        self.reset_all()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _relay(self, link: Link, client: asyncio.StreamReader) -> None:
        hello = await self._hello(link, client)
        await self._open["in"].wait()
        server, link.server = await self._connect()
        link.server.write(hello)
        pumps = [
            asyncio.create_task(self._pump(client, link, "in")),
            asyncio.create_task(self._pump(server, link, "out")),
        ]
        try:
            done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in done:
                pump.result()
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _hello(self, link: Link, client: asyncio.StreamReader) -> bytes:
        """Read the first message, which has no kind. Encryption is declined: messages must stay readable."""
        while True:
            head = await client.readexactly(8)
            size, code = struct.unpack("!II", head)
            if code not in {SSL_REQUEST, GSS_REQUEST}:
                break
            await self._open["out"].wait()
            link.client.write(NO_ENCRYPTION)
        if code != CANCEL_REQUEST:
            link.asked.append(False)
        return head + await client.readexactly(size - 8)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        query = parse_qs(self._behind.query)
        if "host" in query:
            socket_path = f"{query['host'][0]}/.s.PGSQL.{query['port'][0]}"
            return await asyncio.open_unix_connection(socket_path, limit=AT_ONCE_BYTES)
        return await asyncio.open_connection(self._behind.hostname, self._behind.port or 5432, limit=AT_ONCE_BYTES)

    async def _pump(self, reader: asyncio.StreamReader, link: Link, way: Way) -> None:
        """Copy one direction until that side closes; everything before is passed on first."""
        assert link.server is not None
        writer = link.server if way == "in" else link.client
        handle: Callable[[Link, bytes], bytes] = self._on_client if way == "in" else self._on_server
        rest = b""
        while chunk := await reader.read(AT_ONCE_BYTES):
            if self._latency_s:
                await asyncio.sleep(self._latency_s)
            await self._open[way].wait()
            messages, rest = _split(rest + chunk)
            passed = bytearray()
            try:
                for message in messages:
                    passed += handle(link, message)
            finally:
                writer.write(passed)
            await writer.drain()
        await self._open[way].wait()
        if way == "out":
            writer.write(link.reply)

    # Messages ---------------------------------------------------------------------------------------------------------

    def _on_client(self, link: Link, message: bytes) -> bytes:
        if self._request_word is not None and self._request_word in message:
            self._request_word = None
            self._strike("requests cut")
            raise Cut
        match message[:1]:
            case b"P":
                name, text, _ = message[5:].split(b"\0", 2)
                link.texts[name] = text
            case b"B":
                portal, statement, _ = message[5:].split(b"\0", 2)
                link.portals[portal] = link.texts.get(statement, b"")
            case b"E":
                self._on_statement(link, link.portals.get(message[5:].split(b"\0", 1)[0], b""))
            case b"Q":
                self._on_statement(link, message[5:-1])
                self._ask(link)
            case b"S":
                self._ask(link)
        return message

    def _on_statement(self, link: Link, text: bytes) -> None:
        for event, words in self._waiting.items():
            if any(word in text for word in words):
                event.set()
                if event in self._holding:
                    self._open["out"].clear()
        if any(word in text for word in self._drop_after):
            link.marks = True

    def _ask(self, link: Link) -> None:
        """A request is complete: the server will answer it with one ReadyForQuery."""
        link.asked.append(link.marks)
        link.marks = False

    def _on_server(self, link: Link, message: bytes) -> bytes:
        if self._reply_word is not None and self._reply_word in message:
            self._reply_word = None
            self._strike("replies cut")
            raise Cut
        # Messages outside a complete request (a statement only prepared, a notification) have no end to wait for.
        if not link.asked:
            return message
        kind = message[:1]
        is_marked = link.in_marked_transaction or link.asked[0]
        if not is_marked and not self._resets_reply and not link.reply:
            if kind == b"Z":
                link.asked.popleft()
            return message
        link.reply += message
        if kind == b"E" or (kind == b"C" and message[5:] == b"ROLLBACK\0"):
            link.did_nothing = True
        return self._end_reply(link, is_marked=is_marked, state=message[5:]) if kind == b"Z" else b""

    def _end_reply(self, link: Link, *, is_marked: bool, state: bytes) -> bytes:
        """Return the part of a kept reply that is passed on."""
        reply, did_nothing = bytes(link.reply), link.did_nothing
        link.reply.clear()
        link.did_nothing = False
        link.asked.popleft()
        link.in_marked_transaction = is_marked and not did_nothing and state == b"T"
        # Meanwhile the fault may have been repaired, or may have struck another connection.
        if is_marked and not did_nothing and state == b"I" and self._drop_after:
            self._drop_after = ()
            self._strike("replies dropped")
            raise Cut
        if self._resets_reply:
            self._resets_reply = False
            self._strike("resets in the middle")
            link.client.write(reply[: len(reply) // 2])
            raise Cut
        return reply

    def _strike(self, what: str) -> None:
        self.happened[what] += 1
        self._struck.set()


def _split(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the complete messages, and the start of the next one."""
    messages, at = [], 0
    while len(data) >= at + 5 and len(data) > at + (size := struct.unpack_from("!I", data, at + 1)[0]):
        messages.append(data[at : at + size + 1])
        at += size + 1
    return messages, data[at:]


@asynccontextmanager
async def a_proxy(url: str, *, host: str = "127.0.0.1") -> AsyncIterator[Proxy]:
    """A proxy to the server of this URL: over TCP, or by the directory of its socket, as `tests.servers` names it."""
    proxy = Proxy(url)
    server = await asyncio.start_server(proxy.accept, host, limit=AT_ONCE_BYTES)
    parts = urlsplit(url)
    port = server.sockets[0].getsockname()[1]
    proxy.url = f"postgresql://{parts.username}@{host}:{port}{parts.path}?sslmode=disable"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.end()
        await server.wait_closed()
