"""Python functions (E3, E7): the payload's fields as keyword arguments, the return value as result.

`async` functions run in the worker's loop, plain ones in threads. A function gets what it was registered with and
nothing else; whatever it raises is a report, and the traceback in it shows the user's code and not ondot's. A function
that will not end is reported all the same when its time is over: a task is cancelled, a thread left behind.
"""

import asyncio
import threading
from collections.abc import Mapping
from functools import partial
from inspect import isawaitable
from typing import Any, Final

import msgspec

from ondot.model.job import FunctionTarget
from ondot.model.outcome import AttemptError, Failed, Succeeded
from ondot.ports.target import Call
from ondot.sdk.context import Context
from ondot.sdk.handler import Handler
from ondot.targets.exceptions import failure
from ondot.targets.output import Output
from ondot.targets.reports import one_line, storable, timed_out
from ondot.targets.threads import Threads

MAX_RESULT_BYTES: Final = 1_048_576


class FunctionCaller:
    def __init__(
        self, handlers: Mapping[str, Handler[..., Any]], *, slots: int = 100, ends_within_s: float = 1.0
    ) -> None:
        self._handlers = handlers
        self._threads = Threads(slots)
        self._ends_within_s = ends_within_s
        self._never_ending: set[asyncio.Task[Succeeded | Failed]] = set()

    async def call(self, spec: FunctionTarget, call: Call) -> Succeeded | Failed:
        handler = self._handlers.get(spec.name)
        if handler is None:
            return self._unknown(spec.name)
        arguments = _arguments(call.payload)
        if isinstance(arguments, Failed):
            return arguments
        attempt = _Attempt(call)
        try:
            positional, named = handler.bound(attempt.context, arguments)
        except TypeError as error:
            return Failed(AttemptError("bad_arguments", one_line(str(error))), retryable=False)
        task = asyncio.create_task(self._run(handler, attempt, positional, named), name=f"ondot function {spec.name}")
        try:
            await asyncio.wait({task}, timeout=call.timeout_s)
            if task.done():
                return task.result()
            await self._end(task, attempt)
            return timed_out(call.timeout_s, self._what_is_left(handler, attempt, task))
        except asyncio.CancelledError:
            await self._end(task, attempt)
            raise
        finally:
            attempt.end()

    async def close(self) -> None:
        for task in self._never_ending:
            task.cancel()
        self._threads.close()

    async def _run(
        self, handler: Handler[..., Any], attempt: "_Attempt", positional: tuple[Any, ...], named: dict[str, Any]
    ) -> Succeeded | Failed:
        """Never raises but for its own cancellation."""
        function = partial(handler.function, *positional, **named)
        try:
            if handler.is_async:
                attempt.began = True
                return _report(await function())
            value = await self._threads.run(partial(_in_thread, function, attempt))
            if isinstance(value, (Succeeded, Failed)):
                return value
            return _report(await value)
        except asyncio.CancelledError as error:
            if attempt.ended:
                raise
            return failure(error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the user's handler; SystemExit too must not end the worker
            return failure(error)

    async def _end(self, task: asyncio.Task[Succeeded | Failed], attempt: "_Attempt") -> None:
        """Cancel it, and give it a moment to end; one that swallows the cancellation runs on, on its own account."""
        attempt.end()
        task.cancel()
        self._never_ending.add(task)
        task.add_done_callback(self._never_ending.discard)
        await asyncio.wait({task}, timeout=self._ends_within_s)

    def _what_is_left(
        self, handler: Handler[..., Any], attempt: "_Attempt", task: asyncio.Task[Succeeded | Failed]
    ) -> str:
        if not attempt.began:
            return f"It had not begun: all {self._threads.size:,} threads were busy with other functions."
        if not handler.is_async:
            return (
                "A plain function runs in a thread, which cannot be ended: it may still be running. "
                "Let it look at ctx.cancelled, or make it async."
            )
        return "" if task.done() else "It swallowed its cancellation (CancelledError) and is still running."

    def _unknown(self, name: str) -> Failed:
        known = ", ".join(sorted(self._handlers)[:20]) or "none"
        message = f"This worker knows no function {one_line(name)!r}; it knows: {known}."
        return Failed(AttemptError("unknown_function", message))


class _Attempt:
    """One call of a function: its context, and whether anybody still waits for it."""

    def __init__(self, call: Call) -> None:
        self.began = False
        self.ended = False
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._output = Output(call.say)
        self.context = Context(
            execution_id=call.execution_id,
            job_id=call.job_id,
            job_name=call.job_name,
            attempt=call.attempt_no,
            fire_at=call.fire_at,
            fencing_token=call.fencing_token,
            checkpoint=call.checkpoint,
            say=partial(self._in_loop, partial(self._output.add, "log")),
            report=partial(self._in_loop, self._report),
            is_cancelled=lambda: self.ended,
        )

    def end(self) -> None:
        self.ended = True
        self._output.close()

    def _in_loop(self, what: Any, *values: Any) -> None:
        if threading.get_ident() == self._thread_id:
            what(*values)
        elif not self.ended:
            self._loop.call_soon_threadsafe(what, *values)

    def _report(self, fraction: float | None, message: str | None, checkpoint: str | None) -> None:
        if not self.ended:
            self._call.progress(fraction, None if message is None else storable(message), checkpoint)


def _arguments(payload: bytes) -> dict[str, Any] | Failed:
    try:
        value = msgspec.json.decode(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return Failed(AttemptError("bad_arguments", one_line(f"The payload cannot be read: {error}")), retryable=False)
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    message = (
        "A function takes its arguments by name, so the payload must be an object, such as "
        f'{{"region": "eu"}}, or null; {type(value).__name__} came.'
    )
    return Failed(AttemptError("bad_arguments", message), retryable=False)


def _in_thread(function: Any, attempt: _Attempt) -> Any:
    """The report, made in the thread too; or, of a decorated async function, what is still to be awaited."""
    attempt.began = True
    try:
        value = function()
    except BaseException as error:  # noqa: BLE001 - the user's handler
        return failure(error)
    return value if isawaitable(value) else _report(value)


def _report(value: object) -> Succeeded | Failed:
    if value is None:
        return Succeeded()
    try:
        encoded = msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        message = f"The function returned what is no JSON: {error}"
        return Failed(AttemptError("result_not_json", one_line(message)), retryable=False)
    if len(encoded) > MAX_RESULT_BYTES:
        message = (
            f"The function returned {len(encoded):,} bytes, and at most {MAX_RESULT_BYTES:,} are kept; "
            "store the result elsewhere and return its address."
        )
        return Failed(AttemptError("result_too_large", message), retryable=False)
    return Succeeded(encoded.decode())
