"""One child process for suspects (E6): the worker's end of its pipes, the calls in it, and how it ended.

One task starts it, watches it and reports its end. Whatever ends it (a signal, an exit, an app that cannot be imported,
an invalid message), every call in it is reported as `Interrupted` with the reason, and all processes that it started
are ended too.
"""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from typing import Final

from ondot.environment import hand_over
from ondot.model.outcome import Interrupted
from ondot.model.target import FunctionTarget
from ondot.ports.target import Call, CallReport, Cancel
from ondot.targets.function.child_protocol import UP, Begin, Done, Down, Messages, Progressed, Ready, Said, Up, encode
from ondot.targets.output import Output
from ondot.targets.processes.process import Process, Stream
from ondot.targets.text import one_line, storable_bytes

EXITS_WITHIN_S: Final = 1.0
GONE_WITHIN_S: Final = 5.0
"""How long after it closed its pipe. On a machine with a load of 20 an exit was seen more than 1 s after that."""
DETAIL_LINES: Final = 50


class ChildCall:
    """A call in a child. Its lines and its progress are passed on until it has a report."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.raw = Output(call.say)
        self.report: asyncio.Future[CallReport | None] = asyncio.get_running_loop().create_future()

    def end(self, report: CallReport | None) -> None:
        if not self.report.done():
            self.raw.close()
            self.report.set_result(report)


class Child(asyncio.Protocol):
    def __init__(self, app: str, *, module: str, is_shared: bool, ends_within_s: float, starts_within_s: float) -> None:
        self.is_shared = is_shared
        self.is_taken = False
        """By a call that must be alone in it."""
        self.places = 0
        """Calls in it, and calls that wait until it is ready."""
        self.is_retired = False
        """It takes no further calls."""
        self.is_ending = False
        self.left_behind = False
        self.changed = asyncio.Event()
        self.is_lost = False
        self.is_ready = False
        self.idle: asyncio.TimerHandle | None = None
        self._app = app
        self._module = module
        self._ends_within_s = ends_within_s
        self._starts_within_s = starts_within_s
        self._calls: dict[int, ChildCall] = {}
        self._last_no = 0
        self._process: Process | None = None
        self._exit_code: int | None = None
        self._dying = Cancel(0.0)
        self._down: asyncio.WriteTransport | None = None
        self._up: asyncio.ReadTransport | None = None
        self._up_ended = asyncio.Event()
        self._messages = Messages(UP, self._receive)
        self._reason = ""
        self._life = asyncio.create_task(self._live(), name="ondot child")

    async def wait_until_ready(self) -> Interrupted | None:
        """None once it is ready; otherwise how it was lost."""
        while not self.is_ready:
            if self.is_lost:
                return self._loss()
            self.changed.clear()
            await self.changed.wait()
        return None

    def begin(self, spec: FunctionTarget, call: Call) -> tuple[int, ChildCall]:
        self._last_no += 1
        child_call = self._calls[self._last_no] = ChildCall(call)
        self.send(
            Begin(
                call_no=self._last_no,
                function=spec.name,
                execution_id=call.execution_id,
                job_id=call.job_id,
                job_name=call.job_name,
                attempt_no=call.attempt_no,
                fire_at=call.fire_at,
                payload=call.payload,
                timeout_s=call.timeout_s,
                grace_s=call.cancel.grace_s,
                checkpoint=call.checkpoint,
                losses=call.losses,
                transaction=None if call.transaction is None else call.transaction.elsewhere,
                secrets=None if call.secrets is None else call.secrets.pass_on(),
                results=call.results,
                run_id=call.run_id,
                step=call.step,
                item_no=call.item_no,
                hops=call.hops,
                traceparent=call.traceparent,
                tracestate=call.tracestate,
            )
        )
        if self.is_lost:
            child_call.end(self._loss())
        return self._last_no, child_call

    def send(self, message: Down) -> None:
        if self._down is not None and not self._down.is_closing():
            self._down.write(encode(message))

    def forget(self, call_no: int) -> None:
        self._calls.pop(call_no, None)

    def kill(self, reason: str) -> None:
        """Calls that are still in it are reported with the reason."""
        self.is_retired = True
        self._reason = self._reason or reason
        self._dying.request()

    async def end(self) -> None:
        """Let it exit; kill it if it does not."""
        self.is_retired = True
        if self._down is not None:
            self._down.close()
            await asyncio.wait({self._life}, timeout=EXITS_WITHIN_S)
        self.kill("its worker ended it")
        await asyncio.wait({self._life})

    # Its life ---------------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        try:
            process = await self._start()
        except (OSError, ValueError) as error:
            self._reason = one_line(f"it could not be started: {error}")
            self._report_loss()
            return
        late = asyncio.get_running_loop().call_later(self._starts_within_s, self._kill_if_not_ready)
        try:
            self._exit_code = await process.wait(None, self._dying)
            if self._exit_code is not None:
                # Reports that it sent before its end count. A forked process may keep the pipe open: no waiting for it.
                with suppress(TimeoutError):
                    async with asyncio.timeout(EXITS_WITHIN_S):
                        await self._up_ended.wait()
        finally:
            late.cancel()
            await process.end(0.0)
            self._report_loss()
            for transport in (process, self._down, self._up):
                if transport is not None:
                    transport.close()

    def _kill_if_not_ready(self) -> None:
        if not self.is_ready:
            self.kill(f"it was not ready after {self._starts_within_s:g} s")

    async def _start(self) -> Process:
        their_down, our_down = os.pipe()
        our_up, their_up = os.pipe()
        words = (self._app, str(os.getpid()), str(their_down), str(their_up), str(self._ends_within_s))
        loop = asyncio.get_running_loop()
        try:
            with hand_over(os.environ) as (block, descriptors):
                process = await Process.start(
                    (sys.executable, "-P", "-u", "-m", self._module, *words),
                    block,
                    b"",
                    self,
                    kill_after_s=0.0,
                    pass_fds=(their_down, their_up, *descriptors),
                )
        except BaseException:
            os.close(our_down)
            os.close(our_up)
            raise
        finally:
            os.close(their_down)
            os.close(their_up)
        self._process = process
        self._down, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(our_down, "wb", 0))
        self._up, _ = await loop.connect_read_pipe(lambda: self, os.fdopen(our_up, "rb", 0))
        return process

    def _report_loss(self) -> None:
        self.is_lost = self.is_retired = True
        for child_call in self._calls.values():
            child_call.end(self._loss())
        self.changed.set()

    def _loss(self) -> Interrupted:
        """`detail` is the end of its standard error, if that is known to be of one function."""
        detail = None
        if self._process is not None and (not self.is_ready or len(self._calls) == 1):
            lines = storable_bytes(self._process.tail("stderr")).splitlines()[-DETAIL_LINES:]
            detail = "\n".join(lines).strip() or None
        remark = ""
        if not self.is_ready:
            last_line = (detail or "it printed nothing").splitlines()[-1]
            remark = f" It had not imported {self._app}: {one_line(last_line)}"
        how = self._reason or _how(self._exit_code)
        message = f"The process that ran this function is gone: {how}.{remark}"
        return Interrupted(message, code="child_lost", detail=detail)

    # What it sends ----------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        try:
            self._messages.feed(data)
        except ValueError as error:
            self.kill(f"ended by its worker: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._up_ended.set()
        # A process that has closed its only way to report never will. One that is exiting is gone by then.
        asyncio.get_running_loop().call_later(GONE_WITHIN_S, self.kill, "ended by its worker: it closed its pipe")

    def _receive(self, message: Up) -> None:
        match message:
            case Ready():
                self.is_ready = True
                self.changed.set()
            case Said():
                if child_call := self._find_unreported(message.call_no):
                    child_call.call.say(message.stream, message.line)
            case Progressed():
                if child_call := self._find_unreported(message.call_no):
                    child_call.call.progress(message.fraction, message.message, message.checkpoint)
            case Done():
                if message.left_behind:
                    self.is_retired = self.left_behind = True
                if child_call := self._find_unreported(message.call_no):
                    child_call.end(message.succeeded or message.failed or message.cancelled)

    def _find_unreported(self, call_no: int) -> ChildCall | None:
        child_call = self._calls.get(call_no)
        return None if child_call is None or child_call.report.done() else child_call

    # What it prints outside the protocol: passed to the only call in it, if there is exactly one ----------------------

    @property
    def full(self) -> bool:
        only = self._only()
        return only is None or only.raw.full

    def add(self, stream: Stream, line: str, beyond: int = 0) -> None:
        if (only := self._only()) is not None:
            only.raw.add(stream, line, beyond)

    def skip(self, lines: int, characters: int) -> None:
        if (only := self._only()) is not None:
            only.raw.skip(lines, characters)

    def _only(self) -> ChildCall | None:
        return next(iter(self._calls.values())) if len(self._calls) == 1 else None


def _how(exit_code: int | None) -> str:
    if exit_code is None:
        return "it does not run"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"ended by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"ended by signal {-exit_code}"
