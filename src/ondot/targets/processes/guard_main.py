"""The guard's side (E6, E7): `python -m ondot.targets.processes.guard_main PID` kills a worker's programs after it.

Told on standard input, in lines, which programs there are; see `guard`. It learns of the worker's death from the end
of that pipe, and on Linux also from the process itself: a process that the worker has forked may hold the pipe open.
Then it kills each program's session, group and children, and whoever carries its mark (see `descendants`), until nobody
was seen for a while: who was forked and has not begun its program yet has no mark. Last it removes the directories that
the programs worked in. Imports little: there is one in memory for each worker.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Final

from ondot.targets.processes.descendants import began, living_of

HOLD: Final = "hold"
RELEASE: Final = "release"
STARTING: Final = 0
"""In place of the process id of a program that is not started yet."""

_QUIET_S: Final = 0.5
_GIVE_UP_S: Final = 10.0
"""Some cannot be killed: who hangs in the kernel, who has become another user."""
_LOOK_AGAIN_S: Final = 0.02
_READ_BYTES: Final = 64 * 1024


class Programs:
    """What a worker runs: for each mark its leader, and when that one began, since a process id may be given anew."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[int, int | None]] = {}
        self._begun = b""

    def feed(self, data: bytes) -> None:
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            match line.decode().split():
                case [word, mark, leader] if word == HOLD:
                    self._held[mark] = int(leader), began(int(leader))
                case [word, mark] if word == RELEASE:
                    self._held.pop(mark, None)
                case _:
                    raise ValueError(f"the guard was told {line!r}")

    def kill(self) -> None:
        now = time.monotonic()
        give_up_at, quiet_at = now + _GIVE_UP_S, now + _QUIET_S
        while self._held and time.monotonic() < min(give_up_at, quiet_at):
            leaders = self._leaders()
            for leader in leaders:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(leader, signal.SIGKILL)
            found = living_of(leaders, self._held.keys())
            for pid in found:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if found:
                quiet_at = time.monotonic() + _QUIET_S
            time.sleep(_LOOK_AGAIN_S)

    def remove_scratch(self) -> None:
        # Imported now, and not before: most guards never need it.
        from ondot.targets.processes.scratch import remove_scratch, scratch_of

        for mark in self._held:
            remove_scratch(scratch_of(mark))

    def _leaders(self) -> set[int]:
        return {
            leader
            for leader, began_then in self._held.values()
            if leader != STARTING and began(leader) in {None, began_then}
        }


def listen(worker: int, programs: Programs) -> None:
    """Until the worker is gone."""
    waiting = select.poll()
    waiting.register(sys.stdin.fileno(), select.POLLIN)
    if sys.platform == "linux":
        # Not there, or forbidden in some containers: then the end of the pipe must do.
        with suppress(OSError):
            waiting.register(os.pidfd_open(worker), select.POLLIN)
    # After it is watched, and not before: else it could die in between.
    is_gone = os.getppid() != worker
    os.set_blocking(sys.stdin.fileno(), False)
    while True:
        is_gone = is_gone or any(fd != sys.stdin.fileno() for fd, _ in waiting.poll())
        try:
            data = os.read(sys.stdin.fileno(), _READ_BYTES)
        except BlockingIOError:
            if is_gone:
                return
            continue
        if not data:
            return
        programs.feed(data)


def main(worker: int) -> None:
    programs = Programs()
    listen(worker, programs)
    programs.kill()
    programs.remove_scratch()


if __name__ == "__main__":
    main(int(sys.argv[1]))
