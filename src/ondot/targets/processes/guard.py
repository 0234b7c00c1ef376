"""The worker's side of the guard (E6, E7): no program outlives its worker, however the worker dies.

The guard is one small process for each worker, started with its first program. It knows what the worker runs by mark
and process id, and kills all of it when the worker is gone (`guard_main`). A start costs three short writes to a pipe,
none of which waits. A parent-death signal would be simpler, but it spares the processes that the program started, it
arrives too early if the thread that started the program ends, and it must be set between fork and exec, where a process
with threads must not run Python.

The guard gets the mark before the program starts: if the worker is killed in between, no process stays unknown. A guard
that was killed is replaced at the next start, and its successor gets all programs that run.
"""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from typing import Final

from ondot.environment import plain_environment
from ondot.targets.processes.guard_main import HOLD, RELEASE, STARTING
from ondot.telemetry.log import get_logger

_PIPE_BYTES: Final = 1024 * 1024
"""Room for 20,000 messages while the guard itself starts; the default of Linux is a sixteenth of it."""

_BLOCKED: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

log = get_logger()


class Guard:
    """Used from one thread."""

    def __init__(self) -> None:
        self._programs: dict[str, int] = {}
        self._pipe = -1
        self._close: weakref.finalize[..., Guard] | None = None

    def hold(self, mark: str, leader: int = STARTING) -> None:
        """Before the start only the mark, after it also the process id. Raises OSError if there is no guard."""
        self._programs[mark] = leader
        if not self._send(_hold(mark, leader)):
            try:
                self._begin()
            except OSError as error:
                if leader == STARTING:
                    del self._programs[mark]
                    # Not with its own number: a missing interpreter must not look like a missing program.
                    raise OSError(errno.EAGAIN, f"its guard could not be started ({error.strerror})") from error
                log.exception("guard.not_started", programs=len(self._programs))

    def release(self, mark: str) -> None:
        """It has ended; processes that it left in the background on purpose may stay."""
        if self._programs.pop(mark, None) is not None:
            self._send(f"{RELEASE} {mark}\n")

    def _send(self, message: str) -> bool:
        if self._pipe < 0:
            return False
        try:
            # Short enough to be written whole or not at all.
            os.write(self._pipe, message.encode())
        except OSError as error:
            log.warning("guard.lost", reason=error.strerror, programs=len(self._programs))
            self._end()
            return False
        return True

    def _begin(self) -> None:
        theirs, ours = os.pipe()
        try:
            os.set_blocking(ours, False)
            if sys.platform == "linux":
                with suppress(OSError):
                    fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            process = _start(theirs)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        # A thread waits for it: this object may be gone first.
        threading.Thread(target=process.wait, name="ondot guard", daemon=True).start()
        self._pipe, self._close = ours, weakref.finalize(self, os.close, ours)
        for mark, leader in self._programs.items():
            os.write(ours, _hold(mark, leader).encode())

    def _end(self) -> None:
        self._pipe = -1
        if self._close is not None:
            self._close()


def _start(stdin: int) -> subprocess.Popen[bytes]:
    # A signal to a whole systemd unit is for the worker, which may take its time; its guard ends after it. Blocked
    # here, because the guard inherits this thread's mask: by itself it could block them only after its interpreter
    # started.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    try:
        return subprocess.Popen(  # noqa: S603 - our own interpreter and module
            (sys.executable, "-P", "-m", "ondot.targets.processes.guard_main", str(os.getpid())),
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            env=plain_environment(),
            # Signals to the worker's group or terminal are not for it either.
            start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _hold(mark: str, leader: int) -> str:
    return f"{HOLD} {mark} {leader}\n"
