"""Functions that are cancelled while they run, and those that are left behind."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest

from ondot import Context
from ondot.model.execution import Outcome
from ondot.model.outcome import Cancelled, Succeeded
from ondot.model.target import FunctionTarget
from ondot.ports.target import CallReport, Cancel
from ondot.sdk.handler import Handler
from ondot.targets.function.target import FunctionCaller
from tests.conformance.calls import Recorder, a_call, failure_of, gone, result_of
from tests.proves import proves

TARGET = FunctionTarget(name="function")


@pytest.fixture
async def blocking() -> AsyncIterator[threading.Event]:
    """What a thread can wait for; set when the test is over, so that no thread outlives it."""
    event = threading.Event()
    yield event
    event.set()


async def cancelled(
    function: Callable[..., Any], *, grace_s: float = 10.0, recorder: Recorder | None = None
) -> CallReport:
    """The report of a function that says "began", and is cancelled then."""
    recorder, cancel = recorder or Recorder(), Cancel(grace_s)
    caller = FunctionCaller({"function": Handler(function)}, ends_within_s=0.1)
    calling = asyncio.ensure_future(caller.call(TARGET, a_call(recorder, timeout_s=100, cancel=cancel)))
    await recorder.line("began")
    cancel.request()
    try:
        async with asyncio.timeout(60):
            return await calling
    finally:
        await caller.close()


@proves("E8")
async def test_an_async_function_that_ends_by_its_cancellation_is_cancelled() -> None:
    seen: list[bool] = []

    async def function(ctx: Context) -> None:
        seen.append(ctx.cancelled)
        ctx.log("began")
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(ctx.cancelled)

    assert await cancelled(function) == Cancelled("It ended when it was asked to.")
    assert seen == [False, True]


@proves("E8")
async def test_the_result_of_an_async_function_that_tidies_up_is_kept() -> None:
    async def function(ctx: Context) -> str:
        ctx.log("began")
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        ctx.heartbeat(checkpoint=7)
        return "tidied"

    assert await cancelled(function) == Cancelled("It ended when it was asked to.", result='"tidied"')


@proves("E8")
async def test_an_error_after_a_cancel_is_in_the_report_and_counts_as_cancelled() -> None:
    async def function(ctx: Context) -> None:
        ctx.log("began")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("half done") from None

    report = await cancelled(function)
    assert isinstance(report, Cancelled)
    assert "ValueError: half done" in report.message
    assert not report.forced


@proves("E8")
async def test_an_async_function_that_swallows_its_cancellation_is_abandoned_by_force() -> None:
    over = asyncio.Event()

    async def function(ctx: Context) -> None:
        ctx.log("began")
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()

    report = await cancelled(function, grace_s=0.05)
    over.set()
    assert isinstance(report, Cancelled)
    assert report.forced
    assert "0.05 s" in report.message
    assert "still running" in report.message


@proves("E8")
async def test_a_plain_function_that_looks_at_the_context_is_cancelled_with_its_result() -> None:
    def function(ctx: Context) -> str:
        ctx.log("began")
        while not ctx.cancelled:
            pass
        return "as far as I got"

    report = await cancelled(function)
    assert report == Cancelled("It ended when it was asked to.", result='"as far as I got"')


@proves("E8")
async def test_a_plain_function_that_never_looked_has_succeeded() -> None:
    going = threading.Event()
    recorder, cancel = Recorder(), Cancel()

    def function(ctx: Context) -> str:
        ctx.log("began")
        assert going.wait(10)
        return "done"

    caller = FunctionCaller({"function": Handler(function)})
    calling = asyncio.ensure_future(caller.call(TARGET, a_call(recorder, cancel=cancel)))
    await recorder.line("began")
    cancel.request()
    await asyncio.sleep(0)
    going.set()
    assert await calling == Succeeded('"done"')
    await caller.close()


@proves("E8")
async def test_a_plain_function_that_will_not_end_is_abandoned_by_force(blocking: threading.Event) -> None:
    def function(ctx: Context) -> None:
        ctx.log("began")
        blocking.wait()

    report = await cancelled(function, grace_s=0.05)
    assert isinstance(report, Cancelled)
    assert report.forced
    assert "thread" in report.message


@proves("E8")
async def test_an_async_function_in_a_plain_wrapper_hears_its_cancellation() -> None:
    async def inner(ctx: Context) -> None:
        ctx.log("began")
        await asyncio.Event().wait()

    def wrapped(ctx: Context) -> Any:
        return inner(ctx)

    assert await cancelled(wrapped) == Cancelled("It ended when it was asked to.")


@proves("E8")
async def test_a_plain_function_that_waits_for_a_thread_is_cancelled_without_being_called(
    blocking: threading.Event,
) -> None:
    called: list[int] = []

    def holds(ctx: Context) -> None:
        ctx.log("began")
        blocking.wait()

    def waits() -> None:
        called.append(1)

    recorder, cancel = Recorder(), Cancel(grace_s=100)
    caller = FunctionCaller({"function": Handler(waits), "holds": Handler(holds)}, slots=1)
    holding = asyncio.ensure_future(caller.call(FunctionTarget(name="holds"), a_call(recorder)))
    await recorder.line("began")
    waiting = asyncio.ensure_future(caller.call(TARGET, a_call(cancel=cancel)))
    await asyncio.sleep(0)
    cancel.request()
    async with asyncio.timeout(60):
        assert await waiting == Cancelled("It was cancelled before the call began.")
    blocking.set()
    assert isinstance(await holding, Succeeded)
    assert called == []
    await caller.close()


@proves("E7")
async def test_a_thread_that_runs_on_after_its_timeout_makes_the_worker_unfit_until_it_ends(
    blocking: threading.Event,
) -> None:
    def function() -> None:
        blocking.wait()

    caller = FunctionCaller({"function": Handler(function)}, ends_within_s=0.02)
    failed = failure_of(await caller.call(TARGET, a_call(timeout_s=0.1)), "timeout")
    assert failed.outcome is Outcome.TIMED_OUT
    assert caller.left_behind == 1
    async with asyncio.timeout(60):
        while caller.stuck != 1:
            await asyncio.sleep(0)
        blocking.set()
        while caller.stuck:
            await asyncio.sleep(0)
    assert caller.left_behind == 0
    await caller.close()


@proves("E7")
async def test_a_task_that_swallows_its_cancellation_makes_the_worker_unfit_until_it_ends() -> None:
    over = asyncio.Event()

    async def function() -> None:
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()

    caller = FunctionCaller({"function": Handler(function)}, ends_within_s=0.02)
    failure_of(await caller.call(TARGET, a_call(timeout_s=0.05)), "timeout")
    async with asyncio.timeout(60):
        while caller.stuck != 1:
            await asyncio.sleep(0)
        over.set()
        while caller.stuck:
            await asyncio.sleep(0)
    await caller.close()


@proves("E7")
async def test_a_function_that_ends_soon_after_it_was_given_up_leaves_the_worker_fit() -> None:
    def function(ctx: Context) -> None:
        while not ctx.cancelled:
            pass

    caller = FunctionCaller({"function": Handler(function)}, ends_within_s=100)
    failure_of(await caller.call(TARGET, a_call(timeout_s=0.05)), "timeout")
    assert caller.stuck == 0
    async with asyncio.timeout(60):
        while caller.left_behind:
            await asyncio.sleep(0)
    await caller.close()


@proves("E3")
@pytest.mark.parametrize("plain", [True, False])
async def test_a_function_that_forks_returns_once(plain: bool) -> None:
    def fork() -> int:
        return os.fork()

    async def async_fork() -> int:
        return os.fork()

    caller = FunctionCaller({"function": Handler(fork if plain else async_fork)})
    pid = result_of(await caller.call(TARGET, a_call()))
    assert pid > 0
    await gone(pid)
    os.waitpid(pid, 0)  # noqa: ASYNC222 - it is gone already
    await caller.close()


@proves("E3")
@pytest.mark.parametrize("plain", [True, False])
async def test_an_interrupt_that_a_function_raises_ends_its_attempt_and_not_the_worker(plain: bool) -> None:
    def function() -> None:
        raise KeyboardInterrupt

    async def async_function() -> None:
        raise KeyboardInterrupt

    caller = FunctionCaller({"function": Handler(function if plain else async_function)})
    failed = failure_of(await caller.call(TARGET, a_call()), "exception")
    assert failed.error.facts["type"] == "KeyboardInterrupt"
    await caller.close()


@proves("E9")
async def test_progress_that_is_reported_too_fast_keeps_the_latest() -> None:
    recorder = Recorder()
    has_ended = threading.Event()

    async def function(ctx: Context) -> None:
        def flood() -> None:
            for n in range(10_000):
                ctx.heartbeat(checkpoint=n)
                ctx.progress(n / 10_000, None if n else "begun")
            has_ended.set()

        thread = threading.Thread(target=flood)
        thread.start()
        # The loop does not listen meanwhile.
        assert has_ended.wait(10)
        thread.join()
        await asyncio.sleep(0)

    caller = FunctionCaller({"function": Handler(function)})
    assert isinstance(await caller.call(TARGET, a_call(recorder)), Succeeded)
    assert len(recorder.progress) <= 64
    assert recorder.progress[-1] == (0.9999, None, "9999")
    await caller.close()
