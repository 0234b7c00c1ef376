"""One call of a function (E3, E8, E9): its context, what it says, and whether anybody still waits for it.

A function may run in the loop, in a thread, or in both by turns, and speaks from wherever it is. Lines are counted
where they are said, and of what it reports faster than the loop listens only the latest is kept: a function that
floods holds up no other, and takes no memory. What a function may ask for is made when it does: most never say a word.
"""

import asyncio
import threading
from collections import deque
from functools import partial
from typing import Any, Final, Literal

from ondot.model.outcome import Cancelled, Failed, Succeeded
from ondot.ports.target import Call
from ondot.sdk.context import Context
from ondot.targets.function.prints import Printed
from ondot.targets.output import Output
from ondot.targets.text import storable

MOST_REPORTS_WAITING: Final = 64

Reported = tuple[float | None, str | None, str | None]


class Attempt:
    __slots__ = (
        "_beginning",
        "_output",
        "_printed",
        "_reports",
        "_thread_id",
        "_withdrawn",
        "began",
        "call",
        "ended",
        "given_up_at",
        "in_thread",
        "loop",
        "saw_cancel",
        "task",
        "thread_runs",
    )

    def __init__(self, call: Call, loop: asyncio.AbstractEventLoop) -> None:
        self.began = False
        self.in_thread = False
        """A plain function is running, as far as the loop knows: no CancelledError can reach it."""
        self.thread_runs = False
        self.ended = False
        """Nobody waits for it any more."""
        self.saw_cancel = False
        self.given_up_at: float | None = None
        self.task: asyncio.Task[Succeeded | Failed] | None = None
        self._withdrawn = False
        # One that its thread may take twice: what is made under it may collect garbage, and a finalizer may print.
        self._beginning = threading.RLock()
        self.call = call
        self.loop = loop
        self._thread_id = threading.get_ident()
        self._reports: deque[Reported] | None = None
        self._output: Output | None = None
        self._printed: Printed | None = None

    def context(self) -> Context:
        """What a function that asks for one is handed."""
        call = self.call
        return Context(
            execution_id=call.execution_id,
            job_id=call.job_id,
            job_name=call.job_name,
            attempt=call.attempt_no,
            fire_at=call.fire_at,
            fencing_token=call.fencing_token,
            checkpoint=call.checkpoint,
            say=self._say,
            report=self._report,
            is_cancelled=self.is_cancelled,
            transaction=call.transaction,
        )

    def begin(self) -> bool:
        """Whether it may: it was not withdrawn before a thread was free."""
        with self._beginning:
            self.began = not self._withdrawn
            return self.began

    def withdraw(self) -> bool:
        """Whether it had not begun; now it will not."""
        with self._beginning:
            self._withdrawn = not self.began
            return self._withdrawn

    def end(self) -> None:
        if self.ended:
            return
        if self._printed is not None:
            self._printed.close()
        if self._output is not None:
            self._output.close()
        self.ended = True

    @property
    def runs(self) -> bool:
        return self.thread_runs or (self.task is not None and not self.task.done())

    def judged(self) -> Succeeded | Failed | Cancelled:
        """The report of a function that ended by itself: cancelled, if it had seen that it should."""
        assert self.task is not None
        if self.task.cancelled():
            return Cancelled("It ended when it was asked to.")
        report = self.task.result()
        if not self.saw_cancel:
            return report
        match report:
            case Succeeded():
                return Cancelled("It ended when it was asked to.", result=report.result)
            case Failed():
                return Cancelled(f"It ended when it was asked to, with an error: {report.error.message}")

    def is_cancelled(self) -> bool:
        if self.call.cancel.requested and not self.ended:
            self.saw_cancel = True
        return self.ended or self.saw_cancel

    def write(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        """What the function prints."""
        output = self._open_output()
        if output is None:
            return
        with self._beginning:
            if self._printed is None:
                self._printed = Printed(output)
            printed = self._printed
        printed.write(stream, text)

    def _say(self, line: str) -> None:
        if (output := self._open_output()) is not None:
            output.add("log", line)

    def _open_output(self) -> Output | None:
        """None: nobody waits for the attempt any more."""
        with self._beginning:
            if self._output is None and not self.ended:
                self._output = Output(partial(self._in_loop, self._hand_on))
            return self._output

    def _in_loop(self, what: Any, *values: Any) -> None:
        if threading.get_ident() == self._thread_id:
            what(*values)
        elif not self.ended:
            self.loop.call_soon_threadsafe(what, *values)

    def _hand_on(self, stream: str, line: str) -> None:
        if not self.ended:
            self.call.say(stream, line)

    def _report(self, fraction: float | None, message: str | None, checkpoint: str | None) -> None:
        if self.ended:
            return
        told = (fraction, None if message is None else storable(message), checkpoint)
        with self._beginning:
            if self._reports is None:
                self._reports = deque()
            waiting = len(self._reports)
            if waiting < MOST_REPORTS_WAITING:
                self._reports.append(told)
            else:
                earlier = self._reports.pop()
                self._reports.append(
                    (
                        earlier[0] if told[0] is None else told[0],
                        earlier[1] if told[1] is None else told[1],
                        earlier[2] if told[2] is None else told[2],
                    )
                )
        if not waiting or threading.get_ident() == self._thread_id:
            self._in_loop(self._hand_on_reports)

    def _hand_on_reports(self) -> None:
        while not self.ended:
            with self._beginning:
                if not self._reports:
                    return
                told = self._reports.popleft()
            self.call.progress(*told)
