"""Watches whether the loop that does the work moves (P13). A heartbeat must mean that work is done, and not only that
some thread can still send it.

The loop increments a counter a few times a second; a thread reads it. While the counter does not change, `is_moving` is
false and no beat is sent, so that others take over as fast as after a death. A loop that is stalled for half its
timeout is reported with its stack, and with the function that blocks it. After the whole timeout others have its work,
and the process is started again (`on_hung`).

A loop that moves does no work either while a pass of its role waits for something that never happens: an overdue pass
(`roles.loop.Passes`) counts as a stalled loop.

Only time in which the watching thread itself ran is counted: a process that was frozen as a whole is not stalled. Time
in which the loop's thread waited for a processor stops the beat, because no work is done then, but does not count
towards the report and the restart: on a machine that is busy with something else no function is to blame. (At a load of
20 on two cores innocent functions were moved to child processes, and a storm of ten seconds took over three minutes to
end.)
"""

import asyncio
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final
from uuid import UUID

from ondot.roles.loop import Passes
from ondot.telemetry.log import get_logger

EVERY_S: Final = 0.1
LOOKS_A_TIMEOUT: Final = 20
"""So that it looks more often where the timeout is short."""
STALE_AFTER: Final = 3
"""After this many missing increments the loop is blocked: a beat waits until it moves."""
REPORTED_FROM: Final = 0.5
"""Of the timeout."""
MAX_CHARACTERS: Final = 300

log = get_logger()


@dataclass(frozen=True, slots=True)
class Culprit:
    """A function that runs in the loop, and the execution that it runs for."""

    function: str
    execution_id: UUID
    attempt_no: int


OnHung = Callable[[float], None]
"""Called when the loop was stalled for the whole timeout, with the seconds. From another thread."""

FindCulprit = Callable[[], Culprit | None]
"""Finds the function that runs in the loop. Called from another thread while the loop is stalled."""


@dataclass(frozen=True, slots=True)
class Stall:
    """`where`: the line that does not return, of the user's code if there is any."""

    where: str
    stack: str
    culprit: Culprit | None


class ProcessorWaits:
    """How long a thread was ready to run while no processor was free; 0 where the kernel does not count it."""

    def __init__(self, native_thread_id: int) -> None:
        self._path = f"/proc/self/task/{native_thread_id}/schedstat"
        self._seen_ns = 0
        self.since_last_s()

    def since_last_s(self) -> float:
        try:
            with open(self._path, "rb") as file:  # noqa: PTH123 - ten times a second
                waited_ns = int(file.read().split()[1])
        except (OSError, IndexError, ValueError):
            return 0.0
        since_ns, self._seen_ns = waited_ns - self._seen_ns, waited_ns
        return since_ns / 1e9


class Pulse:
    def __init__(
        self,
        timeout_s: float,
        *,
        passes: Passes | None = None,
        find_culprit: FindCulprit = lambda: None,
        on_hung: OnHung | None = None,
        hung_after_s: float | None = None,
    ) -> None:
        """Created in the loop's thread. `hung_after_s`: when `on_hung` is called; by default after the timeout."""
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._waits = ProcessorWaits(threading.get_native_id())
        self._timeout_s = timeout_s
        self._every_s = min(EVERY_S, timeout_s / LOOKS_A_TIMEOUT)
        self._passes = passes or Passes()
        self._find_culprit = find_culprit
        self._on_hung = on_hung
        self._hung_after_s = hung_after_s or timeout_s
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ondot-pulse", daemon=True)
        self.stalled_s = 0.0
        """How long the loop has not moved."""
        self._hung_s = 0.0
        """The same, without the time that its thread waited for a processor."""
        self._overdue: str | None = None
        """The pass that was reported, if it was one."""
        self.stall: Stall | None = None
        """Set from its report until the loop moves."""
        self.on_stall: Callable[[], None] = lambda: None

    @property
    def is_moving(self) -> bool:
        return self.stalled_s < self._every_s * STALE_AFTER

    @property
    def look_again_s(self) -> float:
        return self._every_s / 2

    def start(self) -> None:
        self._move()
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def _move(self) -> None:
        self._count += 1
        self._timer = self._loop.call_later(self._every_s, self._move)

    def _watch(self) -> None:
        seen, looked_s = self._count, time.monotonic()
        while not self._stopped.wait(self._every_s):
            now_s = time.monotonic()
            # If more time has passed, this thread did not run either.
            passed_s, looked_s = min(now_s - looked_s, self._every_s * 2), now_s
            waited_s = min(self._waits.since_last_s(), passed_s)
            moved, seen = self._count != seen, self._count
            try:
                self._look(passed_s, waited_s, moved=moved)
            except Exception:  # the boundary of a pass: without this thread no beat would ever be sent again
                log.exception("pulse.failed")

    def _look(self, passed_s: float, waited_s: float, *, moved: bool) -> None:
        overdue = self._passes.overdue() if moved else None
        if moved and overdue is None:
            self._note_move()
            return
        self.stalled_s += passed_s
        self._hung_s += passed_s - waited_s
        is_other = overdue is not None and self._overdue is None  # the loop itself moves again
        if (self.stall is None or is_other) and self._hung_s >= self._timeout_s * REPORTED_FROM:
            self._report(overdue)
        if self._on_hung is not None and self._hung_s >= self._hung_after_s:
            self._on_hung(self.stalled_s)

    def _note_move(self) -> None:
        stalled_s, self.stalled_s, self._hung_s = self.stalled_s, 0.0, 0.0
        if self.stall is not None:
            log.warning("loop.moves", stalled_s=round(stalled_s, 1), where=self.stall.where)
            self.stall = self._overdue = None

    def _report(self, overdue: str | None) -> None:
        self._overdue = overdue
        stall = Stall("?", "", None)
        try:
            stall = self._find_stall(overdue)
        finally:
            # Even if finding the details fails, there is a stall, and it is reported once.
            self.stall = stall
        details = {}
        if (culprit := stall.culprit) is not None:
            details = {
                "function": culprit.function,
                "execution_id": str(culprit.execution_id),
                "attempt": culprit.attempt_no,
                "then": "its next attempts run in a child process",
            }
        log.error("loop.stalled", stalled_s=round(self.stalled_s, 1), where=stall.where, stack=stall.stack, **details)
        self.on_stall()

    def _find_stall(self, overdue: str | None) -> Stall:
        if overdue is None:
            frame = sys._current_frames()[self._thread_id]
            return Stall(_find_line(frame), "".join(traceback.format_stack(frame)), self._find_culprit())
        lines = _find_waits(overdue, self._loop)
        return Stall(
            f"{lines[-1]}, in the pass {overdue}, which does not end"[-MAX_CHARACTERS:], "\n".join(lines), None
        )


def _find_waits(name: str, loop: asyncio.AbstractEventLoop) -> list[str]:
    """The lines at which the task of this name waits, outermost first."""
    lines = []
    for task in asyncio.all_tasks(loop):
        if task.get_name() == name:
            waiting: Any = task.get_coro()
            while waiting is not None:
                frame = getattr(waiting, "cr_frame", None)
                if frame is not None:
                    lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}")
                waiting = getattr(waiting, "cr_await", None)
    return lines or ["?"]


def _find_line(innermost: FrameType) -> str:
    """The innermost line that is neither of Python nor of an installed package."""
    installed = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    frame: FrameType | None = innermost
    while frame is not None and frame.f_code.co_filename.startswith((*installed, "<")):
        frame = frame.f_back
    frame = frame or innermost
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"[-MAX_CHARACTERS:]
