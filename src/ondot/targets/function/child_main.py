"""The child process of suspects (E6): `python -m ondot.targets.function.child_main MODULE:APP` runs calls of the app.

Calls arrive over one pipe; reports, lines and progress leave over another, each written before the function continues:
the worker has its output even if it dies in the next moment. The child lives no longer than its worker: it ends when
the pipe closes, and on Linux it is killed with the worker. A child that opens transactions is
`ondot.roles.function_child`, which calls `main` with `transactions`: nothing here knows the database.
"""

import asyncio
import ctypes
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Protocol, assert_never

import uvloop

from ondot import __version__
from ondot.environment import take_environment
from ondot.model.completion import NO_FUNCTION
from ondot.model.ids import ExecutionId, JobId
from ondot.model.outcome import AttemptError, Cancelled, Failed, NoFunction, Succeeded
from ondot.model.scrub import SecretValues
from ondot.model.target import FunctionTarget
from ondot.ports.target import Call, Cancel, OpenTransaction
from ondot.sdk.handler import Handler
from ondot.sdk.load import load_app
from ondot.targets.function.child_protocol import (
    DOWN,
    Ask,
    Begin,
    Done,
    Down,
    Drop,
    Messages,
    Progressed,
    Ready,
    Said,
    Up,
    encode,
)
from ondot.targets.function.prints import capture_prints
from ondot.targets.function.target import FunctionCaller
from ondot.telemetry.trace import close_tracer, open_tracer

_PR_SET_PDEATHSIG: Final = 1
CLOSES_WITHIN_S: Final = 0.5
"""A worker kills a child that has not exited after a second."""
_READ_BYTES: Final = 1024 * 1024


class Transactions(Protocol):
    def opener(self, elsewhere: str) -> OpenTransaction:
        """`elsewhere`: that of the worker's `OpenTransaction`. Called in the loop; waits for nothing."""

    async def close(self) -> None:
        """Takes less time than the worker waits for its child to exit."""


class Child(asyncio.Protocol):
    def __init__(
        self,
        handlers: Mapping[str, Handler[..., Any]],
        up: int,
        ends_within_s: float,
        transactions: Transactions | None,
    ) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        self._caller = FunctionCaller(handlers, ends_within_s=ends_within_s)
        self._transactions = transactions
        self._up = up
        self._sending = threading.Lock()
        self._messages = Messages(DOWN, self._receive)
        self._running: dict[int, tuple[asyncio.Task[None], Cancel]] = {}

    def send(self, message: Up) -> None:
        data = memoryview(encode(message))
        with self._sending:
            while data:
                data = data[os.write(self._up, data) :]

    def data_received(self, data: bytes) -> None:
        self._messages.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def _receive(self, message: Down) -> None:
        match message:
            case Begin():
                cancel = Cancel(message.grace_s)
                self._running[message.call_no] = asyncio.create_task(self._run(message, cancel)), cancel
            case Ask():
                if (running := self._running.get(message.call_no)) is not None:
                    running[1].request()
            case Drop():
                if (running := self._running.get(message.call_no)) is not None:
                    running[0].cancel()
            case _:
                assert_never(message)

    async def _run(self, begin: Begin, cancel: Cancel) -> None:
        number = begin.call_no
        transaction = None
        if begin.transaction is not None and self._transactions is not None:
            transaction = self._transactions.opener(begin.transaction)
        call = Call(
            execution_id=ExecutionId(begin.execution_id),
            job_id=JobId(begin.job_id),
            job_name=begin.job_name,
            attempt_no=begin.attempt_no,
            fire_s=begin.fire_at.timestamp(),
            payload=begin.payload,
            timeout_s=begin.timeout_s,
            say=lambda stream, line: self.send(Said(number, stream, line)),  # type: ignore[arg-type]
            progress=lambda *reported: self.send(Progressed(number, *reported)),
            checkpoint=begin.checkpoint,
            cancel=cancel,
            losses=begin.losses,
            transaction=transaction,
            secrets=None if begin.secrets is None else SecretValues(begin.secrets),
            results=begin.results,
            run_id=None if begin.run_id is None else ExecutionId(begin.run_id),
            step=begin.step,
            item_no=begin.item_no,
            hops=begin.hops,
            traceparent=begin.traceparent,
            tracestate=begin.tracestate,
        )
        done = partial(Done, number)
        try:
            report = await self._caller.call(FunctionTarget(name=begin.function), call)
        except asyncio.CancelledError:
            self.send(done(left_behind=self._caller.left_behind))
            return
        finally:
            del self._running[number]
        left_behind = self._caller.left_behind
        match report:
            case Succeeded():
                self.send(done(succeeded=report, left_behind=left_behind))
            case Failed():
                if transaction is not None and transaction.is_committed:
                    # Its worker finds the success recorded and drops this report: only the log can show it.
                    call.say("log", f"It failed after its transaction was committed: {report.error.message}")
                self.send(done(failed=report, left_behind=left_behind))
            case Cancelled():
                self.send(done(cancelled=report, left_behind=left_behind))
            case NoFunction():
                # Its worker has the function, so the app has changed under it: that is a failure of this child.
                error = AttemptError(NO_FUNCTION, report.message)
                self.send(done(failed=Failed(error), left_behind=left_behind))
            case _:
                assert_never(report)


def die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(1)


def main(
    reference: str, parent: str, down: str, up: str, ends_within_s: str, *, transactions: Transactions | None = None
) -> None:
    take_environment()
    die_with(int(parent))
    # Programs that a function starts must not keep the pipes open.
    for fd in (int(down), int(up)):
        os.set_inheritable(fd, False)
    faulthandler.enable(sys.__stderr__ or sys.stderr)
    capture_prints()
    handlers = load_app(reference).handlers
    open_tracer("function", __version__)

    async def serve() -> None:
        child = Child(handlers, int(up), float(ends_within_s), transactions)
        await asyncio.get_running_loop().connect_read_pipe(lambda: child, os.fdopen(int(down), "rb", 0))
        child.send(Ready())
        await child.ended
        if transactions is not None:
            await transactions.close()

    uvloop.run(serve())
    close_tracer(CLOSES_WITHIN_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
