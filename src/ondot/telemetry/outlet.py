"""Standard output and standard error that never block the writer (P13).

A pipe that nobody reads, or a stopped terminal, blocks `write()` indefinitely, and with it the loop that logs. So
output goes into a queue, bounded by count and bytes, which a thread empties. When the queue is full, further writes are
dropped, counted, and reported when writing works again. A closed pipe loses the lines. The order is kept. Each write is
still one `write()` of the system, so lines of several processes stay whole.
"""

import atexit
import os
import select
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Final, TextIO, cast

from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import LOG_DROPPED

MOST_WRITES: Final = 10_000
MOST_BYTES: Final = 4 * 1024 * 1024
FLUSH_S: Final = 1.0
"""How long an ending process waits for the rest to be written."""

log = get_logger()


class Outlet:
    """The part of a text stream that ondot uses; everything else is passed to the stream beneath."""

    def __init__(self, beneath: TextIO, *, most_writes: int = MOST_WRITES, most_bytes: int = MOST_BYTES) -> None:
        self._beneath = beneath
        self._fd = beneath.fileno()
        self._most_writes = most_writes
        self._most_bytes = most_bytes
        self._encoding = beneath.encoding or "utf-8"
        self._is_copy = False
        self._begin()
        os.register_at_fork(after_in_child=self._start_in_fork)
        atexit.register(self.drain)

    def _start_in_fork(self) -> None:
        """A forked copy has no thread, perhaps a lock that is never released, and no loop that could block."""
        self._is_copy = True
        self._begin()

    def _begin(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._dropped = 0
        self._is_writing = False
        self._thread: threading.Thread | None = None
        # Reentrant: while it is held, garbage may be collected, and a finalizer may print.
        self._changed = threading.Condition(threading.RLock())

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        data = text.encode(self._encoding, "backslashreplace")
        if self._is_copy:
            self._write_whole(data)
            return len(text)
        with self._changed:
            if len(self._waiting) >= self._most_writes or self._bytes + len(data) > self._most_bytes:
                self._dropped += 1
                LOG_DROPPED.inc()
                return len(text)
            self._waiting.append(data)
            self._bytes += len(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_for_ever, name="ondot-output", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Does nothing: the writer must not wait."""

    def drain(self, within_s: float = FLUSH_S) -> bool:
        """Wait until everything is written. Returns False if that takes too long."""
        deadline_s = time.monotonic() + within_s
        with self._changed:
            while self._waiting or self._is_writing:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return False
                self._changed.wait(left_s)
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._beneath, name)

    def _write_for_ever(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                data = self._waiting.popleft()
                self._is_writing = True
            is_written = self._write_whole(data)
            with self._changed:
                self._is_writing = False
                self._bytes -= len(data)
                self._dropped += not is_written
                has_room = is_written and len(self._waiting) < self._most_writes // 2
                dropped = self._dropped if has_room else 0
                self._dropped -= dropped
                self._changed.notify_all()
            if not is_written:
                LOG_DROPPED.inc()
            if dropped:
                log.warning("log.dropped", writes=dropped, why="nobody read this process's output")

    def _write_whole(self, data: bytes) -> bool:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:
                # Another process that shares the pipe made it non-blocking.
                select.select([], [self._fd], [])
            except OSError:
                return False
        return True


def unblock_output() -> None:
    """Wrap stdout and stderr until the process ends. Call it before logs are configured; a second call does nothing."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, Outlet):
            continue
        if stream is None:
            # It was closed before the process started. Kept open, or the next opened file would get its number.
            stream = Path(os.devnull).open("w")  # noqa: SIM115 - as long as the process
        try:
            outlet = Outlet(stream)
        except (OSError, ValueError):
            # Not a file but a test's own stream.
            continue
        setattr(sys, name, cast("TextIO", outlet))


def drain_output() -> None:
    """Call it before the process ends without Python's exit handlers: by `exec` or `_exit`."""
    for stream in (sys.stdout, sys.stderr):
        # Also through a writer that wraps it (`targets.function.prints`).
        drain = getattr(stream, "drain", None)
        if drain is not None:
            drain()
