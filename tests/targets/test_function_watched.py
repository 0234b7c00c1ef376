"""A function that runs without a task that waits for it: in any order of events its end is reported once."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from itertools import permutations

import pytest

from ondot.model.outcome import Failed
from ondot.model.target import FunctionTarget
from ondot.ports.target import CallReport, Cancel, Interrupt
from ondot.sdk.handler import Handler
from ondot.targets.function.target import FunctionCaller
from tests.conformance.calls import a_call
from tests.proves import proves

Report = CallReport | None


class Begun:
    """A function that waits until it is let go, begun."""

    def __init__(self, *, timeout_s: float = 100.0) -> None:
        self.go = asyncio.Event()
        self.reports: list[Report] = []
        self.over = asyncio.Event()
        self.cancel = Cancel(100.0)
        self.caller = FunctionCaller({"function": Handler(self.function)}, ends_within_s=0.1)
        call = a_call(timeout_s=timeout_s, cancel=self.cancel)
        interrupt = self.caller.begin(FunctionTarget(name="function"), call, self.end)
        assert interrupt is not None
        self.interrupt: Interrupt = interrupt

    async def function(self) -> str:
        await self.go.wait()
        return "done"

    def end(self, report: Report) -> None:
        self.reports.append(report)
        self.over.set()

    async def ended(self) -> list[Report]:
        async with asyncio.timeout(60):
            await self.over.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        await self.caller.close()
        return self.reports


@proves("E7", "E8")
@pytest.mark.parametrize("order", [*permutations(("end", "cancel", "interrupt")), *permutations(("end", "cancel"))])
@pytest.mark.parametrize("turns", [0, 1, 2, 3])
async def test_of_events_in_the_same_moment_only_one_is_reported(order: tuple[str, ...], turns: int) -> None:
    begun = Begun()
    await asyncio.sleep(0)
    happens: dict[str, Interrupt] = {
        "end": begun.go.set,
        "cancel": begun.cancel.request,
        "interrupt": begun.interrupt,
    }
    for what in order:
        happens[what]()
        for _ in range(turns):
            await asyncio.sleep(0)
    assert len(await begun.ended()) == 1


@proves("E7")
async def test_an_interruption_during_the_grace_ends_it_and_is_reported() -> None:
    begun = Begun()
    await asyncio.sleep(0)
    begun.cancel.request()
    begun.interrupt()
    assert await begun.ended() == [None]


@proves("E7")
async def test_a_timeout_and_an_interruption_in_the_same_moment_are_reported_once() -> None:
    begun = Begun(timeout_s=0.001)
    async with asyncio.timeout(60):
        await begun.over.wait()
    begun.interrupt()
    [report] = await begun.ended()
    assert isinstance(report, Failed)
    assert report.error.code == "timeout"


async def _blocks(looked: threading.Event) -> None:
    looked.wait(30)


async def _blocks_in_a_task(looked: threading.Event) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_blocks(looked))


async def _blocks_in_a_task_of_a_task(looked: threading.Event) -> None:
    await asyncio.gather(asyncio.sleep(0), asyncio.create_task(_blocks_in_a_task(looked)))


@proves("P13", "E7")
@pytest.mark.parametrize("how", [_blocks, _blocks_in_a_task, _blocks_in_a_task_of_a_task])
async def test_a_function_that_blocks_the_loop_is_found_from_another_thread(
    how: Callable[[threading.Event], Awaitable[None]],
) -> None:
    looked, blocked = threading.Event(), threading.Event()

    async def crawl() -> None:
        await how(looked)

    caller = FunctionCaller({"crawl": Handler(crawl), "innocent": Handler(_innocent)})
    assert caller.find_running() is None
    for name in ("innocent", "crawl"):
        caller.begin(FunctionTarget(name=name), a_call(timeout_s=60, job_name=name), lambda _report: blocked.set())
    found: list[tuple[str, str]] = []

    def look() -> None:
        """The innocent one may be met in passing."""
        while not found or found[-1][0] != "crawl":
            if (running := caller.find_running()) is not None:
                found.append((running[0], running[1].job_name))
        looked.set()

    thread = threading.Thread(target=look)
    thread.start()
    while not blocked.is_set() or caller.left_behind:
        await asyncio.sleep(0.01)
    await asyncio.to_thread(thread.join, 30)
    assert found[-1] == ("crawl", "crawl")
    assert caller.find_running() is None, "this is a test's own task"
    await caller.close()


async def _innocent() -> None:
    await asyncio.sleep(0)
