"""`/metrics` of a process, from threads of its own (O2): it is served while the loop that does the work is busy, and
while it hangs.

Requests cost that loop next to nothing, however many there are: an answer is built once a second at most, by one thread
at a time, and sent to all that ask meanwhile. At most CONNECTIONS clients are served at once, and each has a few
seconds for its request, so a client that sends nothing keeps no other out for long.
"""

import io
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from ondot.telemetry.log import get_logger

CONNECTIONS: Final = 8
WITHIN_S: Final = 5.0
"""For a request to arrive, and again for the answer to be taken."""
LONGEST_HEAD: Final = 16 * 1024
BUILT_EVERY_S: Final = 1.0

Collect = Callable[[], Iterable[Metric]]
MayRead = Callable[[str | None], HTTPStatus]
"""By the `Authorization` header: OK, UNAUTHORIZED, FORBIDDEN, or SERVICE_UNAVAILABLE if it cannot be checked now."""

log = get_logger()


@dataclass(frozen=True, slots=True)
class Metrics:
    """What prometheus_client's encoders take."""

    _collect: Collect

    def collect(self) -> Iterator[Metric]:
        yield from self._collect()


def encode(collect: Collect, accept: str) -> tuple[bytes, str]:
    """The metrics in the form that a scraper asks for, and its media type. Exemplars are in OpenMetrics only."""
    encoder, media_type = choose_encoder(accept)
    return encoder(Metrics(collect)), media_type


class MetricsServer(ThreadingHTTPServer):
    """Serves on a socket that listens already, until the process ends or `stop`."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, collect: Collect, may_read: MayRead = lambda _: HTTPStatus.OK) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.collect = collect
        self.may_read = may_read
        self._room = threading.BoundedSemaphore(CONNECTIONS)
        self._building = threading.Lock()
        self._built: dict[str, tuple[float, bytes]] = {}
        self._thread = threading.Thread(target=self.serve_forever, name="ondot-metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()

    def answer(self, accept: str) -> tuple[bytes, str]:
        """An answer that is at most BUILT_EVERY_S old."""
        encoder, media_type = choose_encoder(accept)
        with self._building:
            built_s, body = self._built.get(media_type, (-float("inf"), b""))
            if time.monotonic() - built_s >= BUILT_EVERY_S:
                body = encoder(Metrics(self.collect))
                # A scraper chooses the media type, so only the last one is kept.
                self._built = {media_type: (time.monotonic(), body)}
        return body, media_type

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, _request: Any, _client_address: Any) -> None:
        """A client that goes away is no error; anything else is a bug, and must not end the thread."""
        log.debug("metrics.not_served", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = WITHIN_S
    server_version = "ondot"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        # The whole head before anything is parsed: the timeout of a socket is for each read, and a client that sends
        # a byte now and then would stay for ever.
        self.rfile = io.BufferedReader(io.BytesIO(_read_head(self.connection)))

    def do_GET(self) -> None:
        if self.path.partition("?")[0] not in {"/metrics", "/"}:
            self.send_error(HTTPStatus.NOT_FOUND, explain="Only /metrics is served here.")
            return
        status = self.server.may_read(self.headers.get("authorization"))
        if status is not HTTPStatus.OK:
            self.send_error(status)
            return
        body, media_type = self.server.answer(self.headers.get("accept", ""))
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the name in the class above
        """Scrapes are not logged."""


def _read_head(connection: socket.socket) -> bytes:
    deadline_s = time.monotonic() + WITHIN_S
    head = b""
    with suppress(OSError):
        while b"\r\n\r\n" not in head and len(head) < LONGEST_HEAD:
            connection.settimeout(max(deadline_s - time.monotonic(), 0.001))
            part = connection.recv(4096)
            if not part:
                break
            head += part
    connection.settimeout(WITHIN_S)
    return head if b"\r\n\r\n" in head else b""
