"""The guard's side (E6, E7): `python -m ondot.targets.processes.guard_main PID` kills a worker's programs after it.

It reads from standard input, line by line, which programs there are; see `guard`. It learns of the worker's death from
the end of that pipe, and on Linux also from the process itself: a process that the worker forked may keep the pipe
open. Then it kills each program's session, group and children, and the processes with its mark (see `descendants`),
until it has found none for a while: a process that was forked and has not executed its program yet has no mark. Last it
removes the directories of the programs. It imports little: each worker has one in memory.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Final

from ondot.targets.processes.descendants import living_of, start_of

HOLD: Final = "hold"
RELEASE: Final = "release"
STARTING: Final = 0
"""In place of the process id of a program that is not started yet."""

_QUIET_S: Final = 0.5
_GIVE_UP_S: Final = 10.0
"""Some processes cannot be killed: they hang in the kernel, or have become another user."""
_LOOK_AGAIN_S: Final = 0.02
_READ_BYTES: Final = 64 * 1024


class Programs:
    """What a worker runs: for each mark its leader and when that started, because process ids are reused."""

    def __init__(self) -> None:
        self._programs: dict[str, tuple[int, int | None]] = {}
        self._partial = b""

    def feed(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            match line.decode().split():
                case [word, mark, leader] if word == HOLD:
                    self._programs[mark] = int(leader), start_of(int(leader))
                case [word, mark] if word == RELEASE:
                    self._programs.pop(mark, None)
                case _:
                    raise ValueError(f"the guard received {line!r}")

    def kill(self) -> None:
        now = time.monotonic()
        give_up_at, quiet_at = now + _GIVE_UP_S, now + _QUIET_S
        while self._programs and time.monotonic() < min(give_up_at, quiet_at):
            leaders = self._leaders()
            for leader in leaders:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(leader, signal.SIGKILL)
            found = living_of(leaders, self._programs.keys())
            for pid in found:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if found:
                quiet_at = time.monotonic() + _QUIET_S
            time.sleep(_LOOK_AGAIN_S)

    def remove_scratch(self) -> None:
        # Imported here: most guards never need it.
        from ondot.targets.processes.scratch import remove_scratch, scratch_of

        for mark in self._programs:
            remove_scratch(scratch_of(mark))

    def _leaders(self) -> set[int]:
        return {
            leader
            for leader, start in self._programs.values()
            if leader != STARTING and start_of(leader) in {None, start}
        }


def listen(worker: int, programs: Programs) -> None:
    """Until the worker is gone."""
    waiting = select.poll()
    waiting.register(sys.stdin.fileno(), select.POLLIN)
    if sys.platform == "linux":
        # Missing or forbidden in some containers: then only the end of the pipe shows it.
        with suppress(OSError):
            waiting.register(os.pidfd_open(worker), select.POLLIN)
    # Checked after it is watched: otherwise it could die in between.
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
