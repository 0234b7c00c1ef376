"""The worker's side of the guard (E6, E7): no program outlives its worker, however that one dies.

One small process for each worker, begun with its first program, knows by mark and process id what the worker runs, and
kills all of it when the worker is gone (`guard_main`). A start costs three short writes to a pipe, none of which waits.
A parent-death signal would be had for nothing, but it leaves alone what the program began, it comes too early if the
thread that started the program ends, and it must be set between fork and exec, where a process with threads must not
run Python.

The mark is told before the program is started: whoever is killed in between leaves nobody unknown. A guard that was
killed itself is replaced at the next start, and its successor is told of all that runs.
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
"""Room for what is told while the guard itself begins: 20,000 messages; unasked, Linux gives a sixteenth of it."""

_NOT_FOR_THE_GUARD: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

log = get_logger()


class Guard:
    """Used from one thread."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}
        self._pipe = -1
        self._close: weakref.finalize[..., Guard] | None = None

    def hold(self, mark: str, leader: int = STARTING) -> None:
        """Before the start by its mark alone, after it with the process id. Raises OSError if there is no guard."""
        self._held[mark] = leader
        if not self._tell(_hold(mark, leader)):
            try:
                self._begin()
            except OSError as error:
                if leader == STARTING:
                    del self._held[mark]
                    # Not with its own number: a missing interpreter must not be taken for a missing program.
                    raise OSError(errno.EAGAIN, f"its guard could not be started ({error.strerror})") from error
                log.exception("guard.not_started", programs=len(self._held))

    def release(self, mark: str) -> None:
        """Its end has been seen to; what it left in the background on purpose may stay."""
        if self._held.pop(mark, None) is not None:
            # A guard that is gone need not forget.
            self._tell(f"{RELEASE} {mark}\n")

    def _tell(self, message: str) -> bool:
        if self._pipe < 0:
            return False
        try:
            # Short enough to be written whole or not at all.
            os.write(self._pipe, message.encode())
        except OSError as error:
            log.warning("guard.lost", reason=error.strerror, programs=len(self._held))
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
        # Somebody must wait for it, and this object may be gone first.
        threading.Thread(target=process.wait, name="ondot guard", daemon=True).start()
        self._pipe, self._close = ours, weakref.finalize(self, os.close, ours)
        for mark, leader in self._held.items():
            os.write(ours, _hold(mark, leader).encode())

    def _end(self) -> None:
        self._pipe = -1
        if self._close is not None:
            self._close()


def _start(told: int) -> subprocess.Popen[bytes]:
    # Whoever stops a whole unit means the worker, which may take its time; its guard goes after it. Blocked from here,
    # since the guard is handed this thread's mask: by itself it could do so only once its interpreter has begun.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_FOR_THE_GUARD)
    try:
        return subprocess.Popen(  # noqa: S603 - our own interpreter and module
            (sys.executable, "-P", "-m", "ondot.targets.processes.guard_main", str(os.getpid())),
            stdin=told,
            stdout=subprocess.DEVNULL,
            env=plain_environment(),
            # Nor is it meant by what is sent to the worker's group or terminal.
            start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _hold(mark: str, leader: int) -> str:
    return f"{HOLD} {mark} {leader}\n"
