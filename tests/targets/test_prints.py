"""The prints of functions go to their own attempts, though all share one standard output."""
# ruff: noqa: T201 - printing is what this is about

import asyncio
import io
import sys
import threading
from typing import Any

import pytest

from ondot.model.target import FunctionTarget
from ondot.sdk.handler import Handler
from ondot.targets.function.prints import Printed, capture_prints
from ondot.targets.function.target import FunctionCaller
from ondot.targets.output import MAX_LINE_CHARACTERS, Output
from tests.conformance.calls import Recorder, a_call, result_of
from tests.proves import proves


def captured(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Where prints go that are no function's. No fixture: pytest changes sys.stdout between a fixture and its test."""
    beneath = io.StringIO()
    monkeypatch.setattr(sys, "stdout", beneath)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    capture_prints()
    capture_prints()
    return beneath


async def call(function: Any, recorder: Recorder, payload: Any = None) -> Any:
    caller = FunctionCaller({"function": Handler(function)})
    try:
        return result_of(await caller.call(FunctionTarget(name="function"), a_call(recorder, payload)))
    finally:
        await caller.close()


@proves("E14")
async def test_the_prints_of_functions_that_run_at_once_go_to_their_own_attempts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stdout = captured(monkeypatch)
    together = asyncio.Barrier(2)

    async def function(name: str) -> None:
        print(name, end=" ")
        await together.wait()
        await asyncio.to_thread(print, "in a thread")
        print("error of", name, file=sys.stderr)
        print("unfinished", end="")

    one, two = Recorder(), Recorder()
    await asyncio.gather(call(function, one, {"name": "one"}), call(function, two, {"name": "two"}))
    for recorder, name in ((one, "one"), (two, "two")):
        assert recorder.of("stdout") == [f"{name} in a thread", "unfinished"]
        assert recorder.of("stderr") == [f"error of {name}"]
    assert stdout.getvalue() == ""


@proves("E14")
async def test_the_prints_of_a_plain_function_are_its_own_and_all_others_go_where_they_went(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stdout = captured(monkeypatch)

    def function() -> None:
        print("mine")
        stranger = threading.Thread(target=print, args=("a stranger's",))
        stranger.start()
        stranger.join()
        sys.stdout.flush()

    recorder = Recorder()
    await call(function, recorder)
    print("nobody's")
    assert recorder.of("stdout") == ["mine"]
    assert stdout.getvalue() == "a stranger's\nnobody's\n"


@proves("E14")
def test_a_print_without_end_is_cut_and_counted() -> None:
    recorder = Recorder()
    output = Output(recorder.say)
    printed = Printed(output)
    for _ in range(100):
        printed.write("stdout", "x" * 1000)
    printed.write("stdout", "\nnext\n")
    printed.write("stderr", "y" * (MAX_LINE_CHARACTERS + 5))
    printed.close()
    long, following = recorder.of("stdout")
    assert long == "x" * MAX_LINE_CHARACTERS + f" … ({100_000 - MAX_LINE_CHARACTERS:,} more were cut)"
    assert following == "next"
    assert recorder.of("stderr") == ["y" * MAX_LINE_CHARACTERS + " … (5 more were cut)"]
