"""Signs of life of a supervised process (P13): one of its threads writes a byte each second to its supervisor's pipe.

`roles.pulse` finds a stalled loop from a thread of the same process. It finds nothing if no thread of that process
runs: it was stopped (SIGSTOP), a call keeps Python's lock for ever (a regular expression that backtracks), or an
`atexit` handler does not return. Others take over its work, but only its supervisor can replace it.
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
    """In the process: write until its main thread has ended. SIGABRT prints the stacks of its threads and ends it."""
    with suppress(OSError, ValueError):
        faulthandler.enable(file=2)
    os.set_blocking(descriptor, False)
    # The first by this thread: who is stopped before the other begins was never alive, and would not be judged.
    _write_one(descriptor)
    threading.Thread(target=_write, args=(descriptor,), name="ondot-signs", daemon=True).start()


def _write(descriptor: int) -> None:
    # Not during `atexit`: a handler that hangs there must be noticed.
    while threading.main_thread().is_alive() and _write_one(descriptor):
        time.sleep(EVERY_S)


def _write_one(descriptor: int) -> bool:
    """Whether anybody could read it, now or later."""
    try:
        os.write(descriptor, b".")
    except BlockingIOError:
        return True  # the supervisor itself was stopped
    except OSError:
        return False
    return True


class Signs:
    """The supervisor's end of the pipe."""

    def __init__(self, reader: int) -> None:
        self._reader = reader
        self._has_shown_life = False
        self.silent_s = 0.0
        os.set_blocking(reader, False)

    def look(self, passed_s: float) -> None:
        """`passed_s`: since the last look. A process that has not shown any life yet is not judged."""
        try:
            is_alive = bool(os.read(self._reader, _READ_BYTES))
        except BlockingIOError:
            is_alive = False
        if is_alive:
            self._has_shown_life = True
            self.silent_s = 0.0
        elif self._has_shown_life:
            self.silent_s += passed_s

    def close(self) -> None:
        os.close(self._reader)
