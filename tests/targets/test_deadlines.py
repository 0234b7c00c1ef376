"""Timeouts by the thousand: never early, at most a tenth of a second late, and never after they were removed."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from ondot.targets.function.deadlines import EXACT_BELOW_S, GRAIN_S, Deadlines
from tests.proves import proves


class HandTimer:
    def __init__(self, cancel: Callable[[], object]) -> None:
        self.cancel = cancel


class HandLoop:
    """As much of a loop as deadlines need, with a clock turned by hand."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self.timers: list[tuple[float, Callable[..., object], tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, at_s: float, callback: Callable[..., object], *values: Any) -> "HandTimer":
        timer = (at_s, callback, values)
        self.timers.append(timer)
        return HandTimer(partial(self.timers.remove, timer))

    def turn(self, to_s: float) -> None:
        self.now_s = to_s
        due = [timer for timer in self.timers if timer[0] <= to_s]
        self.timers = [timer for timer in self.timers if timer[0] > to_s]
        for _, callback, values in due:
            callback(*values)


def deadlines_of(loop: HandLoop) -> Deadlines:
    return Deadlines(cast("asyncio.AbstractEventLoop", loop))


@given(st.floats(0, 1e6), st.floats(EXACT_BELOW_S, 1e5))
@proves("E7")
def test_a_call_is_ended_when_its_time_is_over_and_never_before(now_s: float, seconds: float) -> None:
    loop, rung = HandLoop(now_s), list[float]()
    deadlines_of(loop).add(seconds, lambda: rung.append(loop.now_s))
    loop.turn(now_s + seconds - 1e-6)
    assert rung == []
    loop.turn(now_s + seconds + GRAIN_S)
    assert len(rung) == 1


@proves("E7")
def test_calls_of_one_moment_share_a_timer_and_those_that_ended_do_not_ring() -> None:
    loop, rung = HandLoop(100.0), list[int]()
    deadlines = deadlines_of(loop)
    taken = [deadlines.add(300.0, partial(rung.append, number)) for number in range(1000)]
    assert len(loop.timers) == 1
    for number in range(0, 1000, 2):
        taken[number]()
    loop.turn(401.0)
    assert rung == list(range(1, 1000, 2))
    for each in taken:
        each()


@proves("E7")
def test_deadlines_that_are_removed_leave_nothing_behind() -> None:
    loop = HandLoop(100.0)
    deadlines = deadlines_of(loop)
    for _ in range(3):
        for taken in [deadlines.add(86_400.0, print) for _ in range(64)]:
            taken()
        assert loop.timers == []
        loop.turn(loop.now_s + 1.0)


@proves("E7")
async def test_a_short_time_has_a_timer_of_its_own() -> None:
    over = asyncio.Event()
    Deadlines(asyncio.get_running_loop()).add(0.001, over.set)
    async with asyncio.timeout(60):
        await over.wait()
