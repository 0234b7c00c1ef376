"""One call of a function (E3, E8, E9): its context, its output, and whether its report is still wanted.

A function may run in the loop, in a thread, or in both by turns, and writes output from either. Lines are counted where
they are written, and of progress reported faster than the loop reads only the latest is kept: a function that floods
holds up no other and takes no memory. Objects for output are created on first use: most functions write none.
"""

import asyncio
import threading
import time
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
        """A plain function runs, as far as the loop knows: no CancelledError can reach it."""
        self.thread_runs = False
        self.ended = False
        """Its report is no longer wanted."""
        self.saw_cancel = False
        self.given_up_at: float | None = None
        self.task: asyncio.Task[Succeeded | Failed] | None = None
        self._withdrawn = False
        # Reentrant: an allocation under it may collect garbage, and a finalizer may print in the same thread.
        self._beginning = threading.RLock()
        self.call = call
        self.loop = loop
        self._thread_id = threading.get_ident()
        self._reports: deque[Reported] | None = None
        self._output: Output | None = None
        self._printed: Printed | None = None

    def context(self) -> Context:
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
            secrets=call.secrets,
            results=call.results,
            run_id=call.run_id,
            step=call.step,
            item=call.item_no,
            hops=call.hops,
            traceparent=call.traceparent,
            tracestate=call.tracestate,
            deadline_s=None if call.timeout_s is None else time.time() + call.timeout_s,
        )

    def begin(self) -> bool:
        """False if it was withdrawn before a thread was free."""
        with self._beginning:
            self.began = not self._withdrawn
            return self.began

    def withdraw(self) -> bool:
        """True if it had not started: now it never will."""
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

    def judge(self) -> Succeeded | Failed | Cancelled:
        """The report of a function that ended by itself: `Cancelled` if it had seen that it should end."""
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
        """None: the attempt has ended."""
        with self._beginning:
            if self._output is None and not self.ended:
                self._output = Output(partial(self._call_in_loop, self._pass_on))
            return self._output

    def _call_in_loop(self, what: Any, *values: Any) -> None:
        if threading.get_ident() == self._thread_id:
            what(*values)
        elif not self.ended:
            self.loop.call_soon_threadsafe(what, *values)

    def _pass_on(self, stream: str, line: str) -> None:
        if not self.ended:
            self.call.say(stream, line)

    def _report(self, fraction: float | None, message: str | None, checkpoint: str | None) -> None:
        if self.ended:
            return
        reported = (fraction, None if message is None else storable(message), checkpoint)
        with self._beginning:
            if self._reports is None:
                self._reports = deque()
            waiting = len(self._reports)
            if waiting < MOST_REPORTS_WAITING:
                self._reports.append(reported)
            else:
                earlier = self._reports.pop()
                self._reports.append(
                    (
                        earlier[0] if reported[0] is None else reported[0],
                        earlier[1] if reported[1] is None else reported[1],
                        earlier[2] if reported[2] is None else reported[2],
                    )
                )
        if not waiting or threading.get_ident() == self._thread_id:
            self._call_in_loop(self._pass_on_reports)

    def _pass_on_reports(self) -> None:
        while not self.ended:
            with self._beginning:
                if not self._reports:
                    return
                reported = self._reports.popleft()
            self.call.progress(*reported)
