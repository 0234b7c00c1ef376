"""HTTP/1.1 on a connection, with a deadline for everything that a client may leave open (T1, L7).

uvicorn's own protocol waits for the head of a request for ever, and accepts heads of any size. Here a head must arrive
within 10 s and has at most 64 KiB and 100 fields, a body must arrive within a minute, a response that the client does
not read is given up, and connections are counted. Beyond the limit, the connection that has sent nothing for longest is
closed: a flood of idle connections closes its own, and a client that sends a request at once gets its response.
"""

import asyncio
import json
import resource
from http import HTTPStatus
from typing import Any, Final

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from ondot.api.guard import HEADERS
from ondot.api.peer import Peer
from ondot.api.problems import CONTENT_TYPE, TYPE
from ondot.model.networks import network_of
from ondot.telemetry.log import get_logger

HEAD_WITHIN_S: Final = 10.0
HEAD_BYTES: Final = 64 * 1024
HEAD_FIELDS: Final = 100
BODY_WITHIN_S: Final = 60.0
"""For a body that no route reads, for example of a request without a key; a route gives up after 30 s, with a
response."""
LINGER_S: Final = 5.0
LINGER_BYTES: Final = 16 * 1024 * 1024
"""How much of a body may still arrive after the response: a client that is cut off while it sends never reads the
response."""
READ_WITHIN_S: Final = 60.0
"""A response that has filled the buffers must move on within this, or it is given up."""
MOVES_BYTES: Final = 64 * 1024
"""What counts as moving on: about 1 kB/s, which a slow line has, and a client that keeps a response open has not."""
PIPELINED: Final = 16

CONNECTIONS: Final = 4_000
RESERVED: Final = 200
"""File descriptors that are kept for the database and everything else."""
UNPROVEN_BY_ADDRESS: Final = 200
"""Connections of one address without an authorized request yet."""


log = get_logger()


class Connections:
    """All connections of a server; closes idle ones when there are too many."""

    def __init__(self, most: int | None = None, by_address: int = UNPROVEN_BY_ADDRESS) -> None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        room = CONNECTIONS if files == resource.RLIM_INFINITY else max(files - RESERVED, 50)
        self._most = most or min(CONNECTIONS, room)
        self._by_address = by_address
        self._count = 0
        self._unproven: dict[Protocol, None] = {}
        self._of_address: dict[str, dict[Protocol, None]] = {}
        """The unproven ones by address; both in the order in which they connected."""

    def admit(self, protocol: "Protocol", address: str) -> bool:
        """Accept one more connection, and close an idle one for it if necessary; False if none is idle."""
        self._count += 1
        self._unproven[protocol] = None
        of_address = self._of_address.setdefault(address, {})
        of_address[protocol] = None
        if len(of_address) > self._by_address and not self._end_idle(of_address, protocol):
            return False
        return self._count <= self._most or self._end_idle(self._unproven, protocol)

    def prove(self, protocol: "Protocol", address: str) -> None:
        self._unproven.pop(protocol, None)
        of_address = self._of_address.get(address)
        if of_address is not None:
            of_address.pop(protocol, None)
            if not of_address:
                del self._of_address[address]

    def leave(self, protocol: "Protocol", address: str) -> None:
        self._count -= 1
        self.prove(protocol, address)

    @staticmethod
    def _end_idle(among: "dict[Protocol, None]", newest: "Protocol") -> bool:
        oldest = next((protocol for protocol in among if protocol.is_idle and protocol is not newest), None)
        if oldest is None:
            return False
        oldest.end()
        return True


class Protocol(HttpToolsProtocol):
    def __init__(
        self,
        connections: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._all = connections
        self._address = ""
        self._peer: Peer | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timed: tuple[str, int] = ("", 0)
        self._phase = "head"
        self._message = 0
        self._is_head_new = False
        self._head_bytes = 0
        self._fields = 0
        self._field_bytes = 0
        self._lingering: int | None = None
        self._refusal: tuple[HTTPStatus, str, str] | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._unread_bytes = 0
        self._is_counted = False

    @property
    def is_idle(self) -> bool:
        """No request is running, so that no client waits for a response."""
        return not self.transport.is_closing() and not self._is_answering

    @property
    def _is_answering(self) -> bool:
        cycle: Any = self.cycle  # None until the first head has arrived
        return cycle is not None and not cycle.response_complete

    def end(self) -> None:
        # Uncounted at once: the transport reports the end only in a later round of the loop.
        self._leave()
        self.transport.abort()

    # Connections.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._address = network_of(self.client[0]) if self.client else ""
        if self.client and self.server and self.server[1] is not None:
            self._peer = Peer(self.client, (self.server[0], self.server[1]), self._prove)
        self._is_counted = True
        self._set_deadline()
        if not self._all.admit(self, self._address):
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", "Too many connections are open. Try again.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        for timer in (self._timer, self._unread):
            if timer is not None:
                timer.cancel()
        self._timer = self._unread = None
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def _prove(self) -> None:
        self._all.prove(self, self._address)

    def _leave(self) -> None:
        if self._is_counted:
            self._is_counted = False
            self._all.leave(self, self._address)

    # Data that arrives.

    def data_received(self, data: bytes) -> None:
        if self._lingering is not None:
            self._lingering += len(data)
            if self._lingering > LINGER_BYTES:
                self.transport.abort()
            if self._refusal is not None:
                return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # ondot speaks no other protocol: the request is answered as HTTP/1.1, and is the last.
            self.cycle.keep_alive = False
        except httptools.HttpParserError:
            self._refuse(*(self._refusal or _NOT_HTTP))
            return
        if self._phase == "head":
            # The first bytes are not counted: how many of them belong to this head is unknown.
            self._head_bytes += 0 if self._is_head_new else len(data)
            self._is_head_new = False
            if self._head_bytes > HEAD_BYTES:
                self._refuse(*_TOO_LARGE)
                return
        self._set_deadline()

    def on_message_begin(self) -> None:
        # Not at the first byte: empty lines between requests would keep a connection open for ever.
        self._unset_keepalive_if_required()
        super().on_message_begin()
        self._phase = "head"
        self._message += 1
        self._is_head_new = True
        self._head_bytes = 0
        self._fields = 0
        self._field_bytes = 0
        self.scope["state"]["peer"] = self._peer

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._field_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called for the fields of a head, and for the trailers of a chunked body."""
        self._fields += 1
        self._field_bytes += len(name) + len(value) + 4
        if self._fields > HEAD_FIELDS or self._field_bytes > HEAD_BYTES:
            self._refusal = _TOO_LARGE
            raise ValueError("too large")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= PIPELINED:
            self._refusal = _TOO_MANY
            raise ValueError("too many requests at once")
        self._phase = "body"
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._phase = "done"
        self._lingering = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._phase == "body" and not self.pipeline and not self.transport.is_closing():
            self._lingering = 0
            self._phase = "linger"
            self._set_deadline()

    # Time.

    def _set_deadline(self) -> None:
        """Set the deadline of the part that is awaited, once for each part of a request. A request that arrives whole,
        as nearly all do, needs none."""
        awaited = (self._phase, self._message)
        if awaited == self._timed:
            return
        self._timed = awaited
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        within_s = _WITHIN_S.get(self._phase)
        if within_s is not None:
            self._timer = self.loop.call_later(within_s, self._give_up, within_s)

    def _give_up(self, within_s: float) -> None:
        if self.pipeline:
            # The server does not read from this connection while its earlier requests run: not the client's fault.
            self._timer = self.loop.call_later(within_s, self._give_up, within_s)
            return
        self._timer = None
        self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._watch_unread()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _watch_unread(self) -> None:
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(READ_WITHIN_S, self._check_unread)

    def _check_unread(self) -> None:
        """Give the response up, unless the client has read enough of it since. A large one may be in the buffers as a
        whole, and a slow line then needs more than one deadline for it."""
        left = self.transport.get_write_buffer_size()
        if self._unread_bytes - left >= MOVES_BYTES:
            self._watch_unread()
            return
        path = self.scope.get("path", "")
        log.warning("response.unread", path=path, client=self._address, bytes_left=left, within_s=READ_WITHIN_S)
        self.transport.abort()

    # Refusals, before there is a request for the application.

    def _refuse(self, status: HTTPStatus, code: str, detail: str) -> None:
        self._refusal = status, code, detail
        if self.transport.is_closing():
            return
        if self._is_answering:
            # A response is being sent: the client would read another one as a part of it.
            self.transport.abort()
            return
        body = {"type": TYPE + code, "title": status.phrase, "status": status.value, "detail": detail}
        content = json.dumps(body).encode()
        head = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            f"content-type: {CONTENT_TYPE}",
            f"content-length: {len(content)}",
            *(["retry-after: 1"] if status is HTTPStatus.SERVICE_UNAVAILABLE else []),
            *(f"{name.decode()}: {value.decode()}" for name, value in HEADERS),
            "connection: close",
        ]
        self.transport.write("\r\n".join([*head, "", ""]).encode() + content)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._lingering = 0
        self._phase = "linger"
        self._set_deadline()


_WITHIN_S: Final = {"head": HEAD_WITHIN_S, "body": BODY_WITHIN_S, "linger": LINGER_S}
_NOT_HTTP: Final = (HTTPStatus.BAD_REQUEST, "invalid-request", "This is not HTTP/1.1. Send a well-formed request.")
_TOO_LARGE: Final = (
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    "head-too-large",
    f"The head of a request may have at most {HEAD_BYTES:,} bytes and {HEAD_FIELDS} fields. Send less.",
)
_TOO_MANY: Final = (
    HTTPStatus.BAD_REQUEST,
    "invalid-request",
    f"At most {PIPELINED} requests may wait on one connection. Read the responses first.",
)
