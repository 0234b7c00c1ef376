"""A lean receiver of HTTP calls in a separate process: it answers each at once, and counts calls and their ids.

    python receiver.py        prints its URL; GET /counts returns the counts so far

It reads only the end of a request, its execution (`webhook-id`) and its path, to leave as much as possible of the
machine to the callers.
"""

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import uvloop

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 4\r\n\r\nnull"
WAITING_TO_CONNECT = 4096


@dataclass(frozen=True, slots=True)
class Receiver:
    url: str
    process: psutil.Popen

    def counts(self) -> tuple[int, int]:
        """How many calls were received, and of how many executions."""
        with urllib.request.urlopen(f"{self.url}/counts", timeout=30) as answer:
            counts = json.load(answer)
        return counts["calls"], counts["executions"]


@contextmanager
def receiving() -> Iterator[Receiver]:
    process = psutil.Popen([sys.executable, str(Path(__file__).resolve())], stdout=subprocess.PIPE, text=True)
    try:
        yield Receiver(process.stdout.readline().strip(), process)
    finally:
        process.terminate()
        process.wait(30)


class _Counted:
    def __init__(self) -> None:
        self.calls = 0
        self.executions: set[bytes] = set()


class _Connection(asyncio.Protocol):
    def __init__(self, counted: _Counted) -> None:
        self._counted = counted
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end].lower()
            size = end + 4 + int(_value(head, b"content-length") or 0)
            if len(self._received) < size:
                return
            self._received = self._received[size:]
            self._transport.write(self._answer(head))  # type: ignore[attr-defined] # uvloop's is one by its methods

    def _answer(self, head: bytes) -> bytes:
        if head.startswith(b"get /counts "):
            counts = {"calls": self._counted.calls, "executions": len(self._counted.executions)}
            body = json.dumps(counts).encode()
            return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)
        self._counted.calls += 1
        if execution_id := _value(head, b"webhook-id"):
            self._counted.executions.add(execution_id)
        return OK


def _value(head: bytes, name: bytes) -> bytes:
    begin = head.find(b"\r\n" + name + b":")
    if begin < 0:
        return b""
    begin += len(name) + 3
    end = head.find(b"\r\n", begin)
    return head[begin : end if end >= 0 else len(head)].strip()


async def main() -> None:
    counted = _Counted()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(counted), "127.0.0.1", 0, backlog=WAITING_TO_CONNECT)
    print("http://127.0.0.1:{1}".format(*server.sockets[0].getsockname()), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
