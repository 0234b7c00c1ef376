"""One supervisor over several processes: `ondot up`, and `ondot worker --processes N` (O6).

It starts its children, starts again those that die, with a growing pause, and on SIGTERM or Ctrl-C stops them in
order and waits for them. Children share its process group, so a Ctrl-C reaches them too; on Linux they are killed with
it, so that `kill -9` leaves no orphan behind. Nothing is lost by that: what they ran is recovered.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType

from ondot.telemetry.log import get_logger

LONGEST_PAUSE_S = 30.0
STEADY_S = 60.0
"""A child that has lived this long starts its count of failures anew."""
LOOK_EVERY_S = 5.0
ECHO_S = 1.0
STOP_MARGIN_S = 30.0
"""On top of the grace: attempts that are ended by force, outcomes that are written, workers that leave."""
_PR_SET_PDEATHSIG = 1

log = get_logger()


@dataclass(slots=True)
class Child:
    """One process to keep alive. Children are stopped in the order in which they were given."""

    name: str
    argv: Sequence[str]
    process: subprocess.Popen[bytes] | None = None
    failures: int = 0
    started_s: float = 0.0
    start_again_s: float = 0.0

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None


class StopSignals:
    """SIGTERM and Ctrl-C, noted from the moment this is made: whatever is under way is finished, then it is asked."""

    def __init__(self) -> None:
        self._noted_s: list[float] = []
        self._reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self._noted_s.append(time.monotonic())

    @property
    def stopping(self) -> bool:
        return bool(self._noted_s)

    @property
    def impatient(self) -> bool:
        """A second signal, and not the echo of the first: `timeout` and some shells signal twice."""
        return self.stopping and self._noted_s[-1] - self._noted_s[0] > ECHO_S

    def wait(self, at_most_s: float) -> None:
        """Until a signal (a child's end too), or this long."""
        ready, _, _ = select.select([self._reader], [], [], at_most_s)
        if ready:
            os.read(self._reader, 4096)


@dataclass(slots=True)
class Supervisor:
    children: Sequence[Child]
    environment: Mapping[str, str]
    stop_timeout_s: float
    signals: StopSignals
    look: Callable[[], None] = lambda: None
    """Called every few seconds, for whatever else must be kept alive."""

    def start(self) -> None:
        for child in self.children:
            self._start(child)

    def run(self) -> int:
        """Keep the children alive until a signal; gives the exit code: 0 if all ended cleanly."""
        while not self.signals.stopping:
            self._mend()
            self.look()
            self.signals.wait(self._pause_s())
        return self.stop()

    def _pause_s(self) -> float:
        waits = [child.start_again_s - time.monotonic() for child in self.children if not child.running]
        return max(min([LOOK_EVERY_S, *waits]), 0.05)

    def _mend(self) -> None:
        now_s = time.monotonic()
        for child in self.children:
            if child.running:
                continue
            if child.process is not None:
                child.failures = 1 if now_s - child.started_s > STEADY_S else child.failures + 1
                pause_s = min(0.5 * 2 ** (child.failures - 1), LONGEST_PAUSE_S)
                child.start_again_s = now_s + pause_s
                log.error("child.died", child=child.name, exit_code=child.process.returncode, again_in_s=pause_s)
                child.process = None
            if now_s >= child.start_again_s:
                self._start(child)

    def _start(self, child: Child) -> None:
        argv = [*child.argv, "--supervised-by", str(os.getpid())]
        child.process = subprocess.Popen(argv, env=dict(self.environment), stdin=subprocess.DEVNULL)  # noqa: S603
        child.started_s = time.monotonic()

    def stop(self) -> int:
        """Stop in order, within one deadline for all; a second signal ends the waiting."""
        deadline_s = time.monotonic() + self.stop_timeout_s
        clean = True
        for child in self.children:
            if child.process is None:
                continue
            child.process.terminate()
            while child.running and time.monotonic() < deadline_s and not self.signals.impatient:
                try:
                    child.process.wait(0.2)
                except subprocess.TimeoutExpired:
                    continue
            if child.running:
                log.error("child.killed", child=child.name)
                child.process.kill()
                child.process.wait()
            # Ended by our signal: it had not begun to listen for it, so it had nothing under way either.
            clean = clean and child.process.returncode in {0, -signal.SIGTERM, -signal.SIGINT}
        return 0 if clean else 1


def role_argv(*words: str) -> list[str]:
    """The command line of a role as a child process."""
    return [sys.executable, "-m", "ondot", *words]


def die_with(parent_pid: int) -> None:
    """In a child: be killed when the supervisor dies, however it dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise SystemExit(1)
