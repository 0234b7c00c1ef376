"""An HTTP connection that takes no more for one answer than an answer can need (E14).

Of a body 64 KiB are read; but around it a receiver may send what costs the worker time and is no body: hints without
end (1xx), chunks of one byte, extensions and sizes of chunks that never stop. aiohttp reads all of these for as long as
they come. Here a connection over which a mebibyte, or a hundred hints, came for one request is given up.
"""

from typing import Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler

MAX_BYTES: Final = 1_048_576
MAX_MESSAGES: Final = 100


class TooMuch(aiohttp.ClientError):
    def __init__(self) -> None:
        super().__init__(f"more than {MAX_BYTES:,} bytes or {MAX_MESSAGES} hints came, and no whole answer")


class BoundedConnection(ResponseHandler):
    _bytes = 0
    _messages = 0

    def set_response_params(self, **parameters: Any) -> None:
        """Called for each request."""
        self._bytes = self._messages = 0
        super().set_response_params(**parameters)

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Called for each message: a hint, or the answer."""
        self._messages += 1
        if self._messages <= MAX_MESSAGES:
            super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._bytes <= MAX_BYTES:
            super().data_received(data)
        if self._bytes > MAX_BYTES or self._messages > MAX_MESSAGES:
            self._give_up()

    def _give_up(self) -> None:
        self.set_exception(TooMuch())
        if self._payload is not None:
            self._payload.set_exception(TooMuch())
            # Or the end of the connection would be told instead.
            self._payload = None
        if self.transport is not None:
            self.transport.abort()
