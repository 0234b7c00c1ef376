"""Whether a supervised process runs at all (P13): a thread of it writes a byte each second to a pipe of its supervisor.

`roles.pulse` finds a loop that stands still from a thread of the same process. It finds nothing where no thread of that
process runs: it was stopped (SIGSTOP), a call keeps Python's lock for ever (a regular expression that backtracks), or a
handler of `atexit` does not return. Others take over its work, but only its supervisor can replace it.
"""

import faulthandler
import os
import threading
import time
from contextlib import suppress
from typing import Final

EVERY_S: Final = 1.0
_READ_BYTES: Final = 64 * 1024


def show_life(descriptor: int) -> None:
    """In the process: write until its main thread has ended. SIGABRT shows what its threads do, and ends it."""
    with suppress(OSError, ValueError):
        faulthandler.enable(file=2)
    os.set_blocking(descriptor, False)
    threading.Thread(target=_write, args=(descriptor,), name="ondot-signs", daemon=True).start()


def _write(descriptor: int) -> None:
    # Not during `atexit`: a handler that hangs there is to be found.
    while threading.main_thread().is_alive():
        try:
            os.write(descriptor, b".")
        except BlockingIOError:
            pass  # the supervisor itself was stopped
        except OSError:
            return
        time.sleep(EVERY_S)


class Signs:
    """The supervisor's end of the pipe."""

    def __init__(self, reader: int) -> None:
        self._reader = reader
        self._is_first_awaited = True
        self.silent_s = 0.0
        os.set_blocking(reader, False)

    def look(self, passed_s: float) -> None:
        """`passed_s`: since the look before. A process that has shown no life yet is not judged."""
        try:
            has_come = bool(os.read(self._reader, _READ_BYTES))
        except BlockingIOError:
            has_come = False
        if has_come:
            self._is_first_awaited = False
            self.silent_s = 0.0
        elif not self._is_first_awaited:
            self.silent_s += passed_s

    def close(self) -> None:
        os.close(self._reader)
