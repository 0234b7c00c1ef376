"""An HTTP connection with a limit on what it reads for one answer (E14).

Only 64 KiB of a body are read, but a hostile receiver can send other data that costs the worker time: informational
responses (1xx) without end, chunks of one byte, chunk extensions and sizes that never stop. aiohttp reads all of it.
This connection closes after a mebibyte, or a hundred informational responses, for one request.
"""

from typing import Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler

MAX_BYTES: Final = 1_048_576
MAX_MESSAGES: Final = 100


class TooMuch(aiohttp.ClientError):
    def __init__(self) -> None:
        super().__init__(f"more than {MAX_BYTES:,} bytes or {MAX_MESSAGES} informational responses, and no answer")


class BoundedConnection(ResponseHandler):
    _bytes = 0
    _messages = 0

    def set_response_params(self, **parameters: Any) -> None:
        """Called for each request."""
        self._bytes = self._messages = 0
        super().set_response_params(**parameters)

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Called for each message: an informational response, or the answer."""
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
            # Or the end of the connection would be reported instead.
            self._payload = None
        if self.transport is not None:
            self.transport.abort()
