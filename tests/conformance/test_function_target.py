"""Functions, in the loop and in threads: their arguments, their results, what they raise, and how they are ended."""

import asyncio
import contextvars
import functools
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from ondot import Context, Ondot
from ondot.model.execution import Outcome
from ondot.model.outcome import Failed, NoFunction, Succeeded
from ondot.model.target import FunctionTarget
from ondot.model.workflow.step_results import StepResults
from ondot.ports.target import CallReport
from ondot.sdk import GiveUp, RetryAt, RetryIn
from ondot.sdk.handler import Handler
from ondot.targets.function.target import FunctionCaller
from ondot.targets.output import MAX_LINES, MAX_RESULT_BYTES
from tests.conformance.calls import Recorder, a_call, failure_of, result_of
from tests.proves import proves

TARGET = FunctionTarget(name="function")


async def call(
    function: Callable[..., Any], payload: Any = None, recorder: Recorder | None = None, **fields: Any
) -> CallReport:
    caller = FunctionCaller({"function": Handler(function)}, ends_within_s=0.2)
    try:
        return await caller.call(TARGET, a_call(recorder, payload, **fields))
    finally:
        await caller.close()


@pytest.fixture
async def blocking() -> AsyncIterator[threading.Event]:
    """What a thread can wait for; set when the test is over, so that no thread outlives it."""
    event = threading.Event()
    yield event
    event.set()


@proves("E3")
async def test_an_async_function_runs_in_the_loop_and_a_plain_one_in_a_thread() -> None:
    async def in_loop() -> str:
        return threading.current_thread().name

    def in_thread() -> str:
        return threading.current_thread().name

    assert result_of(await call(in_loop)) == threading.current_thread().name
    assert result_of(await call(in_thread)) == "ondot-function"


@proves("E3")
async def test_the_fields_of_the_payload_are_the_arguments() -> None:
    def add(a: int, b: int = 10, **more: int) -> int:
        return a + b + sum(more.values())

    assert result_of(await call(add, {"a": 1})) == 11
    assert result_of(await call(add, {"a": 1, "b": 2, "c": 3})) == 6


@dataclass
class Order:
    id: int
    placed: date


class Receipt(BaseModel):
    order: int
    total: Decimal


@proves("D2")
@pytest.mark.parametrize("is_async", [True, False])
async def test_arguments_arrive_as_annotated_and_results_leave_as_annotated(is_async: bool) -> None:
    def plain(ctx: Context, order: Order, /, total: Decimal, *days: date, **more: UUID) -> Receipt:
        assert ctx.attempt == 3
        assert order == Order(7, date(2030, 1, 31))
        assert days == (date(2030, 1, 1),)
        assert more == {"trace": UUID(int=3)}
        return Receipt(order=order.id, total=total)

    async def later(ctx: Context, order: Order, /, total: Decimal, *days: date, **more: UUID) -> Receipt:
        return plain(ctx, order, total, *days, **more)

    payload = {
        "order": {"id": 7, "placed": "2030-01-31"},
        "total": "9.90",
        "days": ["2030-01-01"],
        "trace": str(UUID(int=3)),
    }
    assert result_of(await call(later if is_async else plain, payload)) == {"order": 7, "total": "9.90"}


@proves("D2")
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_payload_that_does_not_fit_the_annotations_fails_for_good(is_async: bool) -> None:
    ran = []

    def plain(order: Order) -> None:
        ran.append(order)

    async def later(order: Order) -> None:
        ran.append(order)

    failed = failure_of(
        await call(later if is_async else plain, {"order": {"id": 7, "placed": "soon"}}), "bad-arguments"
    )
    assert not failed.retryable
    assert "argument `order` takes Order, and `order.placed` does not fit" in failed.error.message
    assert "soon" not in failed.error.message
    assert failed.error.detail is None
    assert not ran


@proves("D2")
async def test_an_argument_error_of_the_functions_own_is_an_exception_like_any_other() -> None:
    @Ondot("http://127.0.0.1:9", "key").job
    async def other(day: date) -> None: ...

    async def calls() -> None:
        await other.enqueue("monday")  # type: ignore[arg-type]

    failed = failure_of(await call(calls), "exception")
    assert failed.retryable
    assert "ArgumentError: other: argument `day` takes date, got 'monday'." in failed.error.message


@proves("D2")
async def test_a_check_of_the_programs_own_that_breaks_is_an_exception_and_not_a_misfit() -> None:
    @dataclass
    class Fragile:
        id: int

        def __post_init__(self) -> None:
            raise OSError("the database of prices does not answer")

    async def takes(fragile: Fragile) -> None: ...

    failed = failure_of(await call(takes, {"fragile": {"id": 1}}), "exception")
    assert failed.retryable


@proves("D2")
async def test_a_function_knows_when_its_timeout_ends_it() -> None:
    async def asks(ctx: Context) -> datetime | None:
        return ctx.deadline_at

    before = datetime.now(UTC)
    deadline = datetime.fromisoformat(result_of(await call(asks, timeout_s=90.0)))
    assert before + timedelta(seconds=90) <= deadline <= datetime.now(UTC) + timedelta(seconds=90)
    assert await call(asks, timeout_s=None) == Succeeded(None)


@proves("D2")
async def test_a_result_that_cannot_be_sent_fails_and_names_the_reason() -> None:
    def returns() -> Receipt:
        return object()  # type: ignore[return-value]

    failed = failure_of(await call(returns), "result_not_json")
    assert not failed.retryable
    assert "object" in failed.error.message


@proves("E3")
async def test_no_payload_is_no_arguments_and_no_result_is_none() -> None:
    def nothing() -> None:
        return

    assert await call(nothing, None) == Succeeded(None)
    assert await call(nothing, {}) == Succeeded(None)


@proves("E4")
@pytest.mark.parametrize("payload", [[1, 2], "text", 3, True])
async def test_a_payload_that_names_no_arguments_is_refused(payload: Any) -> None:
    def takes(**_: Any) -> None:
        return

    failed = failure_of(await call(takes, payload), "bad-arguments")
    assert not failed.retryable
    assert "must be an object" in failed.error.message


@proves("E4")
@pytest.mark.parametrize("payload", [None, {}, {"b": 1}, {"a": 1, "z": 1}, {"a": 1, "ctx": 1}])
async def test_arguments_that_do_not_fit_are_refused_before_the_function_runs(payload: Any) -> None:
    ran = []

    async def takes(ctx: Context, a: int) -> None:
        ran.append(a)

    failed = failure_of(await call(takes, payload), "bad-arguments")
    assert not failed.retryable
    assert not ran


@proves("E3")
async def test_a_function_that_this_worker_does_not_know_may_be_known_to_another() -> None:
    async def known() -> None: ...

    caller = FunctionCaller({"known": Handler(known)})
    report = await caller.call(FunctionTarget(name="other"), a_call())
    assert report == NoFunction("other", "This worker has no function 'other'; it has: known.")


@proves("E4")
@pytest.mark.parametrize("plain", [True, False])
async def test_an_exception_is_reported_with_the_users_frames_and_without_ondots(plain: bool) -> None:
    def helper() -> None:
        raise ValueError("the region is\nunknown")

    def function() -> None:
        helper()

    async def async_function() -> None:
        try:
            helper()
        except ValueError as error:
            raise ValueError("the region is\nunknown") from error

    failed = failure_of(await call(function if plain else async_function), "exception")
    assert failed.retryable
    assert failed.error.message == "ValueError: the region is"
    assert failed.error.facts["type"] == "ValueError"
    assert failed.error.detail is not None
    assert "in helper" in failed.error.detail
    assert failed.error.detail.endswith("unknown")
    assert "ondot/targets" not in failed.error.detail


@proves("E4")
async def test_a_deep_traceback_keeps_its_last_lines() -> None:
    def deep(n: int = 3000) -> int:
        return deep(n - 1) + 1

    failed = failure_of(await call(deep), "exception")
    assert failed.error.facts["type"] == "RecursionError"
    assert len((failed.error.detail or "").splitlines()) <= 51


class Odd(BaseException):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


@proves("E3")
@pytest.mark.parametrize(
    "error", [SystemExit(3), StopIteration(1), asyncio.CancelledError(), TimeoutError("mine"), Odd()]
)
@pytest.mark.parametrize("plain", [True, False])
async def test_any_exception_ends_the_attempt_and_not_the_worker(plain: bool, error: BaseException) -> None:
    def function() -> None:
        raise error

    async def async_function() -> None:
        raise error

    failed = failure_of(await call(function if plain else async_function), "exception")
    assert failed.outcome is Outcome.FAILED


@proves("E4")
@pytest.mark.parametrize("plain", [True, False])
async def test_a_function_may_decide_what_follows(plain: bool) -> None:
    async def report_of(error: Exception) -> Failed:
        def function() -> None:
            raise error

        async def async_function() -> None:
            raise error

        report = await call(function if plain else async_function)
        assert isinstance(report, Failed)
        return report

    gave_up = await report_of(GiveUp("no such user"))
    assert (gave_up.error.code, gave_up.retryable) == ("gave_up", False)
    assert gave_up.error.message == "no such user"
    later = await report_of(RetryIn(90, "the shop is closed"))
    assert (later.error.code, later.retryable, later.retry_after_s) == ("retry_asked", True, 90)
    assert "the shop is closed" in later.error.message
    assert (await report_of(RetryIn(timedelta(minutes=2)))).retry_after_s == 120
    at = datetime(2020, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    then = await report_of(RetryAt(at, "tomorrow"))
    # How long that is only the database knows, whose clock it is by.
    assert (then.error.code, then.retryable, then.retry_after_s, then.retry_at) == ("retry_asked", True, None, at)
    assert "at 2020-01-01T10:00:00+00:00: tomorrow" in then.error.message


@proves("E14")
@pytest.mark.parametrize("value", [object(), {1, object()}, "\ud800", iter(())])
async def test_a_result_that_is_not_json_is_rejected_and_not_retried(value: object) -> None:
    def function() -> object:
        return value

    assert not failure_of(await call(function), "result_not_json").retryable


@proves("E14")
async def test_a_result_that_is_too_large_is_refused_and_not_tried_again() -> None:
    async def function() -> str:
        return "x" * MAX_RESULT_BYTES

    assert not failure_of(await call(function), "result_too_large").retryable


@proves("E14")
async def test_a_result_may_contain_values_with_a_common_json_spelling() -> None:
    async def function() -> Any:
        return {"at": datetime(2030, 1, 1, tzinfo=UTC), "ids": (1, 2)}

    assert result_of(await call(function)) == {"at": "2030-01-01T00:00:00Z", "ids": [1, 2]}


@proves("E3")
async def test_an_async_function_in_a_plain_wrapper_is_awaited() -> None:
    async def inner() -> str:
        return "awaited"

    @functools.wraps(inner)
    def wrapped() -> Any:
        return inner()

    assert result_of(await call(wrapped)) == "awaited"


@proves("E3")
async def test_context_variables_of_the_worker_are_seen_in_threads_and_do_not_leak_back() -> None:
    colour = contextvars.ContextVar("colour", default="none")
    colour.set("blue")

    def function() -> str:
        seen = colour.get()
        colour.set("red")
        return seen

    assert result_of(await call(function)) == "blue"
    assert colour.get() == "blue"


@proves("E9")
@pytest.mark.parametrize("plain", [True, False])
async def test_progress_checkpoints_and_logs_of_a_function_arrive_in_order(plain: bool) -> None:
    def speak(ctx: Context) -> Any:
        before = ctx.checkpoint
        ctx.log("began", row=1, name="a b")
        ctx.progress(0.4, "four\0tenths")
        ctx.heartbeat(checkpoint={"row": 7})
        ctx.heartbeat()
        ctx.log("two\nlines")
        return [before, ctx.checkpoint]

    async def async_speak(ctx: Context) -> Any:
        return await asyncio.to_thread(speak, ctx)

    recorder = Recorder()
    report = await call(speak if plain else async_speak, recorder=recorder, checkpoint='{"row":3}')
    assert result_of(report) == [{"row": 3}, {"row": 7}]
    assert recorder.lines == [("log", 'began row=1 name="a b"'), ("log", "two\\nlines")]
    assert recorder.progress == [
        (0.4, "four\N{REPLACEMENT CHARACTER}tenths", None),
        (None, None, '{"row":7}'),
        (None, None, None),
    ]


@proves("E9")
@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), True])
async def test_a_progress_that_is_none_is_refused(fraction: float) -> None:
    async def function(ctx: Context) -> None:
        ctx.progress(fraction)

    assert failure_of(await call(function), "exception").error.facts["type"] == "ValueError"


@proves("E14")
async def test_a_flood_of_log_lines_is_limited() -> None:
    recorder = Recorder()

    async def function(ctx: Context) -> None:
        for n in range(MAX_LINES + 2000):
            ctx.log(n)

    await call(function, recorder=recorder)
    assert len(recorder.lines) == MAX_LINES + 1
    assert "2,000 more lines" in recorder.lines[-1][1]


@proves("E7")
async def test_a_function_that_swallows_its_cancellation_is_still_reported() -> None:
    over = asyncio.Event()
    swallowed = asyncio.Event()

    async def stubborn(ctx: Context) -> None:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                assert ctx.cancelled
                swallowed.set()

    caller = FunctionCaller({"function": Handler(stubborn)}, ends_within_s=0.1)
    failed = failure_of(await caller.call(TARGET, a_call(timeout_s=0.1)), "timeout")
    assert failed.outcome is Outcome.TIMED_OUT
    assert "swallowed its cancellation" in failed.error.message
    assert swallowed.is_set()
    over.set()


@proves("E7")
async def test_a_function_that_tidies_up_when_cancelled_is_waited_for() -> None:
    tidied = asyncio.Event()

    async def function() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            tidied.set()
        return "too late"

    assert failure_of(await call(function, timeout_s=0.1), "timeout").outcome is Outcome.TIMED_OUT
    assert tidied.is_set()


@proves("E7")
async def test_a_plain_function_that_does_not_end_is_left_behind_and_the_report_says_so(
    blocking: threading.Event,
) -> None:
    recorder = Recorder()
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def function(ctx: Context) -> str:
        ctx.log("began")
        blocking.wait()
        ctx.log("too late")
        ctx.progress(1.0)
        loop.call_soon_threadsafe(ended.set)
        return f"cancelled={ctx.cancelled}"

    failed = failure_of(await call(function, recorder=recorder, timeout_s=0.3), "timeout")
    assert failed.outcome is Outcome.TIMED_OUT
    assert "thread" in failed.error.message
    assert "ctx.cancelled" in failed.error.message
    blocking.set()
    async with asyncio.timeout(60):
        await ended.wait()
    assert recorder.lines == [("log", "began")]
    assert recorder.progress == []


@proves("E7")
async def test_a_plain_function_can_see_that_its_report_is_no_longer_wanted() -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def function(ctx: Context) -> None:
        while not ctx.cancelled:
            pass
        loop.call_soon_threadsafe(ended.set)

    failure_of(await call(function, timeout_s=0.1), "timeout")
    async with asyncio.timeout(60):
        await ended.wait()


@proves("E7")
async def test_a_thread_left_behind_takes_no_place_from_the_next(blocking: threading.Event) -> None:
    def hangs() -> None:
        blocking.wait()

    def works() -> str:
        return "done"

    caller = FunctionCaller({"hangs": Handler(hangs), "works": Handler(works)}, slots=1, ends_within_s=0.1)
    failure_of(await caller.call(FunctionTarget(name="hangs"), a_call(timeout_s=0.2)), "timeout")
    assert result_of(await caller.call(FunctionTarget(name="works"), a_call())) == "done"
    # As many may be left behind as there are threads; the second keeps its place, and the third learns why it waits.
    failure_of(await caller.call(FunctionTarget(name="hangs"), a_call(timeout_s=0.2)), "timeout")
    failed = failure_of(await caller.call(FunctionTarget(name="works"), a_call(timeout_s=0.1)), "timeout")
    assert "all 1 threads were busy" in failed.error.message
    blocking.set()
    assert result_of(await caller.call(FunctionTarget(name="works"), a_call())) == "done"
    await caller.close()


@proves("E3")
async def test_plain_functions_run_side_by_side_as_many_as_there_are_slots() -> None:
    together = threading.Barrier(20)

    def function() -> int:
        return together.wait(timeout=10)

    caller = FunctionCaller({"function": Handler(function)}, slots=20)
    reports = await asyncio.gather(*(caller.call(TARGET, a_call()) for _ in range(20)))
    assert sorted(result_of(report) for report in reports) == list(range(20))
    again = await asyncio.gather(*(caller.call(TARGET, a_call()) for _ in range(20)))
    assert len(again) == 20
    await caller.close()


@proves("W4")
async def test_a_function_reads_the_results_of_steps_above_it() -> None:
    results = StepResults({"list": '{"files":["a","b"]}', "count": "2"}, {"huge": "The result of `huge` is too large."})

    async def report(ctx: Context) -> Any:
        with pytest.raises(LookupError, match="is too large"):
            ctx.results["huge"]
        with pytest.raises(KeyError, match="the steps above this one are: list, count, huge"):
            ctx.results["other"]
        return [ctx.results["list"]["files"], ctx.results["count"], sorted(ctx.results)]

    assert result_of(await call(report, results=results)) == [["a", "b"], 2, ["count", "huge", "list"]]


@proves("W4")
async def test_a_function_that_is_no_step_has_no_results() -> None:
    async def report(ctx: Context) -> Any:
        with pytest.raises(KeyError, match="no step of a workflow"):
            ctx.results["list"]
        return len(ctx.results)

    assert result_of(await call(report)) == 0


@proves("W7")
async def test_an_item_that_is_no_object_is_the_first_argument() -> None:
    def process(ctx: Context, file: Any, upper: bool = False) -> Any:
        return [file, ctx.step, ctx.item]

    assert result_of(await call(process, "a.txt", item_no=3, step="process")) == ["a.txt", "process", 3]
    assert result_of(await call(process, None, item_no=0, step="process")) == [None, "process", 0]
    assert result_of(await call(process, {"file": "b", "upper": True}, item_no=1)) == ["b", None, 1]
    # Only of a mapped step: elsewhere arguments have names.
    failure_of(await call(process, "a.txt"), "bad-arguments")
