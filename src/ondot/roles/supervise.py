"""One supervisor over several processes: `ondot up`, and `ondot worker --processes N` (O6).

It starts its children, restarts those that die, with a growing pause, and on SIGTERM or Ctrl-C stops them and waits for
them, kind by kind: all workers at once, so that none leases work that another has just given back. Children share its
process group, so a Ctrl-C reaches them too; on Linux they are killed with it, so that `kill -9` leaves no orphan
behind. Nothing is lost by that: their work is recovered.

A child in which no thread runs any more (`roles.signs`) is ended and restarted: only its supervisor can do that.
"""

import ctypes
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from types import FrameType

from ondot.environment import hand_over
from ondot.roles.signs import Signs
from ondot.telemetry.log import get_logger

LONGEST_PAUSE_S = 30.0
STEADY_S = 60.0
"""After this long the failures of a child are counted from one again."""
LOOK_EVERY_S = 5.0
ECHO_S = 1.0
"""A second signal within this time is the same one: `timeout` and some shells signal twice."""
HUNG_AFTER_S = 15.0
"""A child without a sign of life for this long is ended. Its heartbeat has a shorter timeout: others have its work."""
HUNG_AFTER_BEATS = 1.5
STOP_LATER_S = 5.0
"""The least time for kinds that are stopped later, even if an earlier kind used up the time."""
STOP_MARGIN_S = 30.0
"""On top of the grace: attempts that are ended by force, outcomes that are written, workers that leave."""
_PR_SET_PDEATHSIG = 1

log = get_logger()


@dataclass(slots=True)
class Child:
    """One process to keep alive. Children of one kind are stopped at once, the kinds in the order given."""

    name: str
    kind: str
    argv: Sequence[str]
    pages: Sequence[int] = ()
    """Descriptors: the page that it counts in (`telemetry.page`), and those that it adds up. They outlive it."""
    process: subprocess.Popen[bytes] | None = None
    signs: Signs | None = None
    is_hung: bool = False
    failures: int = 0
    started_s: float = 0.0
    start_again_s: float = 0.0

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None


class StopSignals:
    """Records SIGTERM and Ctrl-C from its creation on: the caller finishes a step, then asks."""

    def __init__(self) -> None:
        self._received_s: list[float] = []
        self._reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self._received_s.append(time.monotonic())

    @property
    def stopping(self) -> bool:
        return bool(self._received_s)

    @property
    def impatient(self) -> bool:
        """There was a second signal, and not only an echo of the first."""
        return self.stopping and self._received_s[-1] - self._received_s[0] > ECHO_S

    def wait(self, at_most_s: float) -> None:
        """Until a signal, the end of a child, or this time."""
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
    """Called every few seconds, to keep alive what is no child, as the embedded PostgreSQL."""
    report_waiting: Callable[[str], None] = lambda _kind: None
    """Called once for a kind whose stop takes long, as soon as a second signal would end the waiting."""

    hung_after_s: float = HUNG_AFTER_S
    look_every_s: float = LOOK_EVERY_S
    looked_s: float = field(default_factory=time.monotonic, init=False)

    def start(self) -> None:
        for child in self.children:
            self._start(child)

    def run(self) -> int:
        """Keep the children alive until a signal; return the exit code: 0 if all ended cleanly."""
        while not self.signals.stopping:
            self._end_hung()
            self._restart()
            self.look()
            self.signals.wait(self._pause_s())
        return self.stop()

    def _pause_s(self) -> float:
        waits = [child.start_again_s - time.monotonic() for child in self.children if not child.running]
        return max(min([self.look_every_s, *waits]), 0.05)

    def _end_hung(self) -> None:
        now_s = time.monotonic()
        # If more time has passed, this process was stopped itself (Ctrl-Z), and its children with it.
        passed_s, self.looked_s = min(now_s - self.looked_s, self.look_every_s), now_s
        for child in self.children:
            if child.process is None or child.signs is None or not child.running:
                continue
            child.signs.look(passed_s)
            silent_s = child.signs.silent_s
            if silent_s >= self.hung_after_s + self.look_every_s:
                child.process.kill()
            elif silent_s >= self.hung_after_s and not child.is_hung:
                child.is_hung = True
                log.error(
                    "child.hung", child=child.name, silent_s=round(silent_s), then="it is ended and started again"
                )
                # It prints the stacks of its threads and ends. A stopped process does not get this signal.
                child.process.send_signal(signal.SIGABRT)

    def _restart(self) -> None:
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
        if child.signs is not None:
            child.signs.close()
        reader, writer = os.pipe()
        child.signs, child.is_hung = Signs(reader), False
        pages = ["--metrics-pages", ",".join(map(str, child.pages))] if child.pages else []
        argv = [*child.argv, *pages, "--supervised-by", str(os.getpid()), "--show-life-to", str(writer)]
        try:
            with hand_over(self.environment) as (block, descriptors):
                child.process = subprocess.Popen(  # noqa: S603 - our own command
                    argv, env=block, pass_fds=(*descriptors, *child.pages, writer), stdin=subprocess.DEVNULL
                )
        finally:
            os.close(writer)
        child.started_s = time.monotonic()

    def stop(self) -> int:
        """Stop kind by kind, within one deadline for all and a moment for each; a second signal ends the waiting."""
        deadline_s = time.monotonic() + self.stop_timeout_s
        for kind, alike in groupby(self.children, key=lambda child: child.kind):
            self._stop_kind(kind, {child.name: child.process for child in alike if child.process}, deadline_s)
            deadline_s = max(deadline_s, time.monotonic() + STOP_LATER_S)
        ended = [child.process.returncode for child in self.children if child.process]
        # Ended by our signal: it was not listening for it yet, so it had no work either.
        return 0 if all(code in {0, -signal.SIGTERM, -signal.SIGINT} for code in ended) else 1

    def _stop_kind(self, kind: str, processes: Mapping[str, subprocess.Popen[bytes]], deadline_s: float) -> None:
        for process in processes.values():
            process.terminate()
        report_s = time.monotonic() + ECHO_S
        while any(process.poll() is None for process in processes.values()):
            now_s = time.monotonic()
            if now_s >= deadline_s or self.signals.impatient:
                break
            if now_s >= report_s:
                report_s = math.inf
                self.report_waiting(kind)
            self.signals.wait(0.2)
        for name, process in processes.items():
            if process.poll() is None:
                log.error("child.killed", child=name)
                process.kill()
            process.wait()


def hung_after(heartbeat_s: float) -> float:
    return max(HUNG_AFTER_S, heartbeat_s * HUNG_AFTER_BEATS)


def role_argv(*words: str) -> list[str]:
    """The command line of a role as a child process.

    `-P`: a `click.py` in the current directory must not shadow a package that ondot needs. A worker adds the directory
    to its path itself, for the user's app.
    """
    return [sys.executable, "-P", "-m", "ondot", *words]


def die_with(parent_pid: int) -> None:
    """In a child: be killed when the supervisor dies, in whatever way (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise SystemExit(1)
