"""A pipe for a process's log that the harness reads into a file, or leaves unread: then it is full at once.

A write to a full pipe waits for a reader: for ever, if a log collector hangs.
"""

import fcntl
import os
import threading
from contextlib import suppress
from pathlib import Path

PIPE_BYTES = 4096
"""The smallest pipe that Linux allows."""
FILLINGS = (b"." * 1023 + b"\n", b"\n")


class LogPipe:
    def __init__(self, log: Path) -> None:
        self._log = log
        self._ours, self.theirs = os.pipe()
        fcntl.fcntl(self.theirs, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._reads = threading.Event()
        self._reads.set()
        self._is_parked = threading.Event()
        # A separate open file description: `theirs` must block.
        self._filler = os.open(f"/proc/self/fd/{self.theirs}", os.O_WRONLY | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._copy, name="log-pipe", daemon=True)
        self._thread.start()

    def stop_reading(self) -> None:
        """From here on, writes wait."""
        self._is_parked.clear()
        self._reads.clear()
        # Wake the reader from its last read.
        self._fill()
        self._is_parked.wait()
        self._fill()

    def _fill(self) -> None:
        """To the last byte: a short write goes in whole or waits."""
        for filling in FILLINGS:
            with suppress(BlockingIOError):
                while True:
                    os.write(self._filler, filling)

    def read_again(self) -> None:
        self._reads.set()

    def close(self) -> None:
        self._reads.set()
        os.close(self.theirs)
        os.close(self._filler)

    def _copy(self) -> None:
        with self._log.open("ab", buffering=0) as log:
            while True:
                if not self._reads.is_set():
                    self._is_parked.set()
                    self._reads.wait()
                data = os.read(self._ours, 65536)
                if not data:
                    break
                log.write(data)
        os.close(self._ours)
