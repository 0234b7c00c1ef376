"""Python functions (E3, E7, E8): the payload's fields are the keyword arguments, the return value is the result.

`async` functions run in the worker's loop, plain ones in threads. Whatever a function raises becomes a report, whose
traceback shows the user's code and not ondot's. A function that is cancelled learns it at once, by a CancelledError or
by `ctx.cancelled`, and has its grace to end by itself. A function that does not end is reported when its time is over
all the same: its task is cancelled, its thread is left behind, and `stuck` counts the functions that still run, so that
the worker can recycle its process.
"""

import asyncio
import gc
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context, copy_context
from functools import partial
from inspect import isawaitable
from typing import Any

import msgspec

from ondot.model.outcome import AttemptError, Cancelled, Failed, NoFunction, Succeeded, timed_out
from ondot.model.target import FunctionTarget
from ondot.ports.target import Call, End, Interrupt, Target
from ondot.sdk.arguments import ArgumentError, BadArguments
from ondot.sdk.handler import TASK_NAME, Handler
from ondot.targets.cancelling import not_called
from ondot.targets.function.attempt import Attempt
from ondot.targets.function.deadlines import Deadlines
from ondot.targets.function.exceptions import report_exception
from ondot.targets.function.prints import PRINTING
from ondot.targets.function.threads import Threads
from ondot.targets.output import MAX_RESULT_BYTES
from ondot.targets.text import one_line
from ondot.telemetry.trace_context import enter_trace


class FunctionCaller(Target[FunctionTarget]):
    def __init__(
        self, handlers: Mapping[str, Handler[..., Any]], *, slots: int = 100, ends_within_s: float = 1.0
    ) -> None:
        self._handlers = handlers
        self._secrets = {name: handler.secrets for name, handler in handlers.items() if handler.secrets}
        self._with_context = {name for name, handler in handlers.items() if handler.takes_context}
        self._threads = Threads(slots)
        self._ends_within_s = ends_within_s
        self._given_up: set[Attempt] = set()
        self._deadlines: Deadlines | None = None

    @property
    def stuck(self) -> int:
        """Functions that still run though they were given up more than a moment ago. Only a new process is rid of
        them: a plain function holds a thread, an async one swallows its cancellation."""
        if not self.left_behind:
            return 0
        since = asyncio.get_running_loop().time() - self._ends_within_s
        return sum(attempt.given_up_at is not None and attempt.given_up_at < since for attempt in self._given_up)

    @property
    def left_behind(self) -> int:
        """Functions that still run though they were given up, even if only just now."""
        self._given_up = {attempt for attempt in self._given_up if attempt.runs}
        return len(self._given_up)

    def secrets_of(self, spec: FunctionTarget) -> Sequence[str]:
        return self._secrets.get(spec.name, ())

    def reads_results(self, spec: FunctionTarget) -> bool:
        return spec.name in self._with_context

    def can_begin(self, spec: FunctionTarget) -> bool:
        return spec.name not in self._secrets

    def begin(self, spec: FunctionTarget, call: Call, end: End) -> Interrupt | None:
        """Begin a call and call `end` once with its report; None: it has already been called.

        Only the loop waits for it: a task that did would cost more than a short function.
        """
        if call.cancel.requested:
            end(not_called())
            return None
        prepared = self._prepare(spec, call)
        if isinstance(prepared, (Failed, NoFunction)):
            end(prepared)
            return None
        handler, attempt, function = prepared
        self._start(handler, attempt, function)
        return _Watched(self, handler, attempt, call, end).interrupt

    @property
    def deadlines(self) -> Deadlines:
        """Of the loop in which the first call was made: all calls are made in it."""
        if self._deadlines is None:
            self._deadlines = Deadlines(asyncio.get_running_loop())
        return self._deadlines

    def find_running(self) -> tuple[str, Call] | None:
        """The function whose task, or a task that it started, runs in the loop at this moment, and its call.

        Called from another thread while the loop is blocked, so that starting an attempt costs nothing for it. A task
        is recognised by its context, which before Python 3.12 only the garbage collector can find.
        """
        if self._deadlines is None:
            return None
        task = asyncio.current_task(self._deadlines.loop)
        contexts = (found for found in gc.get_referents(task) if isinstance(found, Context))
        printing = next((context.get(PRINTING) for context in contexts), None)
        attempt = getattr(printing, "__self__", None)
        if not isinstance(attempt, Attempt) or attempt.task is None:
            return None
        return attempt.task.get_name().removeprefix(TASK_NAME), attempt.call

    def has(self, spec: FunctionTarget) -> bool:
        return spec.name in self._handlers

    async def call(self, spec: FunctionTarget, call: Call) -> Succeeded | Failed | Cancelled | NoFunction:
        loop = asyncio.get_running_loop()
        over: asyncio.Future[Succeeded | Failed | Cancelled | NoFunction | None] = loop.create_future()
        interrupt = self.begin(spec, call, over.set_result)
        try:
            await asyncio.wait({over})
        except asyncio.CancelledError:
            if interrupt is not None:
                interrupt()
            await asyncio.wait({over})
            raise
        report = over.result()
        assert report is not None, "only this task could have interrupted it"
        return report

    async def close(self) -> None:
        for attempt in self._given_up:
            if attempt.task is not None:
                attempt.task.cancel()
        self._threads.close()

    def _prepare(
        self, spec: FunctionTarget, call: Call
    ) -> tuple[Handler[..., Any], Attempt, Callable[[], Any]] | Failed | NoFunction:
        handler = self._handlers.get(spec.name)
        if handler is None:
            return self._report_unknown(spec.name)
        item = None if call.item_no is None else next(iter(handler.parameters.names), None)
        arguments = _arguments(call.payload, item)
        if isinstance(arguments, Failed):
            return arguments
        attempt = Attempt(call, self.deadlines.loop)
        try:
            function = handler.bind(attempt.context() if handler.takes_context else None, arguments)
        except ArgumentError as error:
            return report_exception(BadArguments(str(error)))
        return handler, attempt, function

    def _start(self, handler: Handler[..., Any], attempt: Attempt, function: Callable[[], Any]) -> None:
        context = copy_context()
        context.run(PRINTING.set, attempt.write)
        if attempt.call.traceparent is not None:
            context.run(enter_trace, attempt.call.traceparent, attempt.call.tracestate)
        attempt.task = attempt.loop.create_task(
            self._run(handler, attempt, function), name=handler.task_name, context=context
        )

    async def _run(
        self, handler: Handler[..., Any], attempt: Attempt, function: Callable[[], Any]
    ) -> Succeeded | Failed:
        """Never raises but for its own cancellation."""
        forks = _FORKS.count
        try:
            if handler.is_async:
                attempt.begin()
                return _report(handler, await function())
            attempt.in_thread = True
            value = await self._threads.run(partial(_run_in_thread, handler, function, attempt))
            attempt.in_thread = False
            if isinstance(value, (Succeeded, Failed)):
                return value
            if attempt.is_cancelled() and (task := attempt.task) is not None:
                task.cancel()
            return _report(handler, await value)
        except asyncio.CancelledError as error:
            if attempt.ended or attempt.saw_cancel:
                raise
            return report_exception(error)
        except BaseException as error:  # noqa: BLE001 - the user's handler; SystemExit too must not end the worker
            return report_exception(error)
        finally:
            _exit_if_forked_since(forks)

    async def cancel(
        self, handler: Handler[..., Any], attempt: Attempt, grace_s: float
    ) -> Succeeded | Failed | Cancelled:
        """Let it end by itself, for the length of its grace."""
        task = attempt.task
        assert task is not None
        if attempt.withdraw():
            await self.give_up(attempt)
            return not_called()
        if not attempt.in_thread:
            attempt.saw_cancel = True
            task.cancel()
        await asyncio.wait({task}, timeout=grace_s)
        if task.done():
            return attempt.judge()
        await self.give_up(attempt)
        remark = self._describe_rest(handler, attempt)
        return Cancelled(
            f"It did not end within its grace of {grace_s:g} s after it was cancelled, and was abandoned."
            f"{remark and f' {remark}'}",
            forced=True,
        )

    async def time_out(self, handler: Handler[..., Any], attempt: Attempt, timeout_s: float) -> Failed:
        await self.give_up(attempt)
        return timed_out(timeout_s, self._describe_rest(handler, attempt))

    async def give_up(self, attempt: Attempt) -> None:
        """Cancel it and give it a moment to end. If it swallows the cancellation, it runs on unattended."""
        task = attempt.task
        assert task is not None
        attempt.withdraw()
        attempt.end()
        attempt.given_up_at = attempt.loop.time()
        task.cancel()
        self._given_up.add(attempt)
        await asyncio.wait({task}, timeout=self._ends_within_s)

    def _describe_rest(self, handler: Handler[..., Any], attempt: Attempt) -> str:
        if not attempt.began:
            return f"It did not start: all {self._threads.size:,} threads were busy with other functions."
        if not handler.is_async:
            return (
                "A plain function runs in a thread, which cannot be ended: it may still be running. "
                "Check ctx.cancelled in it, or make it async."
            )
        return "It swallowed its cancellation (CancelledError) and is still running." if attempt.runs else ""

    def _report_unknown(self, name: str) -> NoFunction:
        known = ", ".join(sorted(self._handlers)[:20]) or "none"
        return NoFunction(name, f"This worker has no function {one_line(name)!r}; it has: {known}.")


class _Watched:
    """A function that runs: waits for its end, a cancel, its timeout or an interruption, whichever is first."""

    __slots__ = ("_attempt", "_call", "_caller", "_drop_deadline", "_end", "_ending", "_handler")

    def __init__(
        self, caller: FunctionCaller, handler: Handler[..., Any], attempt: Attempt, call: Call, end: End
    ) -> None:
        self._caller = caller
        self._handler = handler
        self._attempt = attempt
        self._call = call
        self._end = end
        self._ending: asyncio.Task[None] | None = None
        """Ends it, if it does not end by itself."""
        assert attempt.task is not None
        attempt.task.add_done_callback(self._on_done)
        self._drop_deadline = None if call.timeout_s is None else caller.deadlines.add(call.timeout_s, self._on_timeout)
        call.cancel.listen(self._on_cancel)

    def interrupt(self) -> None:
        if self._ending is None:
            self._end_by(self._give_up())
        else:
            # Not before its first step: a task that is cancelled sooner does nothing at all, and `_end` never runs.
            self._attempt.loop.call_soon(self._ending.cancel)

    def _on_done(self, _task: asyncio.Task[Succeeded | Failed]) -> None:
        if self._ending is None:
            self._stop_watching()
            attempt = self._attempt
            attempt.end()
            report = attempt.judge()
            # Its task's context refers back to it: freeing the cycle took the collector a fifth of a worker's time.
            attempt.task = None
            self._end(report)

    def _on_cancel(self) -> None:
        self._end_by(self._caller.cancel(self._handler, self._attempt, self._call.cancel.grace_s))

    def _on_timeout(self) -> None:
        assert self._call.timeout_s is not None
        self._end_by(self._caller.time_out(self._handler, self._attempt, self._call.timeout_s))

    async def _give_up(self) -> None:
        await self._caller.give_up(self._attempt)

    def _end_by(self, how: Coroutine[Any, Any, Succeeded | Failed | Cancelled | None]) -> None:
        if self._attempt.task is None or self._attempt.task.done():
            # It ended by itself in the same moment: `_on_done` has run, or is about to.
            how.close()
            return
        self._stop_watching()
        self._ending = self._attempt.loop.create_task(self._until_ended(how), name="ondot ending")

    async def _until_ended(self, how: Coroutine[Any, Any, Succeeded | Failed | Cancelled | None]) -> None:
        report = None
        try:
            report = await how
        except asyncio.CancelledError:
            # Interrupted during its grace.
            await self._caller.give_up(self._attempt)
        finally:
            self._attempt.end()
            self._end(report)

    def _stop_watching(self) -> None:
        if self._drop_deadline is not None:
            self._drop_deadline()
        self._call.cancel.unlisten(self._on_cancel)


def _arguments(payload: bytes, item: str | None = None) -> dict[str, Any] | Failed:
    """`item`: the parameter that gets the item of a mapped step, if that is no object."""
    try:
        value = msgspec.json.decode(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return Failed(AttemptError("bad-arguments", one_line(f"The payload cannot be read: {error}")), retryable=False)
    if isinstance(value, dict):
        return value
    if item is not None:
        return {item: value}
    if value is None:
        return {}
    message = (
        "A function takes its arguments by name, so the payload must be an object, such as "
        f'{{"region": "eu"}}, or null, got {type(value).__name__}.'
    )
    return Failed(AttemptError("bad-arguments", message), retryable=False)


def _run_in_thread(handler: Handler[..., Any], function: Callable[[], Any], attempt: Attempt) -> Any:
    """The report, also built in the thread; for a decorated async function, the awaitable that it returned."""
    forks = _FORKS.count
    attempt.thread_runs = True
    try:
        if not attempt.begin():
            return Succeeded()  # its report is no longer wanted
        value = function()
        return value if isawaitable(value) else _report(handler, value)
    except BaseException as error:  # noqa: BLE001 - the user's handler
        return report_exception(error)
    finally:
        _exit_if_forked_since(forks)
        attempt.thread_runs = False


class _Forks:
    """How often this process was forked. Counted in the fork: comparing process ids would cost two system calls an
    attempt."""

    def __init__(self) -> None:
        self.count = 0
        os.register_at_fork(after_in_child=self._start_in_fork)

    def _start_in_fork(self) -> None:
        self.count += 1


_FORKS = _Forks()


def _exit_if_forked_since(forks: int) -> None:
    """A function that forks returns twice. The copy of the worker must not run on: it has the same connections."""
    if _FORKS.count != forks:
        os._exit(0)


def _report(handler: Handler[..., Any], value: object) -> Succeeded | Failed:
    if value is None:
        return Succeeded()
    try:
        encoded = handler.types.encode_result(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        message = f"The function did not return JSON: {error}"
        return Failed(AttemptError("result_not_json", one_line(message)), retryable=False)
    if len(encoded) > MAX_RESULT_BYTES:
        message = (
            f"The function returned {len(encoded):,} bytes, and at most {MAX_RESULT_BYTES:,} are kept; "
            "store the result elsewhere and return its address."
        )
        return Failed(AttemptError("result_too_large", message), retryable=False)
    return Succeeded(encoded.decode())
