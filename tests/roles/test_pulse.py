"""The pulse of a loop: whether it moves, what blocks it, and when that is too long."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from ondot.roles.loop import Passes, every
from ondot.roles.pulse import Culprit, ProcessorWaits, Pulse
from tests.proves import proves

TIMEOUT_S = 0.4
LONG_S = 30.0


def block_until(fact: Callable[[], Any]) -> None:
    """As a function does that waits without `await`."""
    deadline_s = time.monotonic() + LONG_S
    while not fact():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


async def move_until(fact: Callable[[], Any]) -> None:
    async with asyncio.timeout(LONG_S):
        while not fact():
            await asyncio.sleep(0.005)


@proves("P13")
async def test_a_stalled_loop_is_reported_with_its_stack_until_it_moves() -> None:
    called: list[float] = []
    pulse = Pulse(TIMEOUT_S)
    pulse.on_stall = lambda: called.append(pulse.stalled_s)
    pulse.start()
    with capture_logs() as logs:
        await move_until(lambda: pulse.is_moving)
        block_until(lambda: not pulse.is_moving)
        assert not called
        block_until(lambda: called)
        assert pulse.stall is not None
        assert "test_pulse.py" in pulse.stall.where
        assert "block_until" in pulse.stall.stack
        assert called[0] >= TIMEOUT_S / 2
        await move_until(lambda: pulse.stall is None and pulse.is_moving)
    pulse.stop()
    assert [entry["event"] for entry in logs] == ["loop.stalled", "loop.moves"]
    assert len(called) == 1


@proves("P13", "E7")
async def test_the_function_that_runs_in_the_loop_is_named() -> None:
    culprit = Culprit("crawl", UUID(int=7), 2)
    pulse = Pulse(TIMEOUT_S, find_culprit=lambda: culprit)
    pulse.start()
    with capture_logs() as logs:
        block_until(lambda: pulse.stall is not None)
    pulse.stop()
    assert pulse.stall is not None
    assert pulse.stall.culprit == culprit
    assert (logs[0]["function"], logs[0]["execution_id"], logs[0]["attempt"]) == ("crawl", str(culprit.execution_id), 2)


@proves("P13")
async def test_after_the_whole_timeout_the_process_is_given_up() -> None:
    hung: list[tuple[float, int]] = []
    pulse = Pulse(TIMEOUT_S, on_hung=lambda stalled_s: hung.append((stalled_s, threading.get_ident())))
    pulse.start()
    block_until(lambda: hung)
    pulse.stop()
    assert hung[0][0] >= TIMEOUT_S
    assert hung[0][1] != threading.get_ident(), "the loop itself is blocked"


@proves("P13")
async def test_a_loop_that_moves_now_and_then_is_not_given_up() -> None:
    hung: list[float] = []
    pulse = Pulse(TIMEOUT_S, on_hung=hung.append)
    pulse.start()
    for _ in range(4):
        block_until(lambda: pulse.stall is not None)
        await move_until(lambda: pulse.stall is None)
    pulse.stop()
    assert hung == []


@proves("P13")
async def test_a_pass_that_never_ends_counts_as_a_stalled_loop_and_is_reported_with_where_it_waits() -> None:
    passes = Passes()
    never = asyncio.Event()
    tries = 0

    async def waits_for_ever() -> int:
        nonlocal tries
        tries += 1
        if tries == 2:
            raise ValueError("a fault ends a pass too")
        await never.wait()
        return 0

    pulse = Pulse(TIMEOUT_S, passes=passes)
    pulse.start()
    loop = every(0.01, waits_for_ever, name="plan", passes=passes, within_s=0.05)
    task = asyncio.create_task(loop, name="plan")
    # On a busy machine the loop itself may stall before, for a moment.
    await move_until(lambda: pulse.stall is not None and "in waits_for_ever" in pulse.stall.stack)
    assert pulse.stall is not None
    assert "in the pass plan, which does not end" in pulse.stall.where
    assert not pulse.is_moving
    never.set()
    await move_until(lambda: tries > 2 and pulse.is_moving)
    never.clear()
    await move_until(lambda: passes.overdue() == "plan")
    task.cancel()
    await asyncio.wait({task})
    assert passes.overdue() is None
    pulse.stop()


@proves("P13")
async def test_a_fault_in_finding_the_culprit_hides_nothing() -> None:
    hung: list[float] = []

    def fails() -> Culprit | None:
        raise RuntimeError("for a test")

    pulse = Pulse(TIMEOUT_S, find_culprit=fails, on_hung=hung.append)
    pulse.start()
    with capture_logs() as logs:
        block_until(lambda: hung)
        await move_until(lambda: pulse.is_moving)
    pulse.stop()
    assert "pulse.failed" in {entry["event"] for entry in logs}


FROZEN = """
import asyncio, sys
from ondot.roles.pulse import Pulse

async def main():
    stalls = []
    pulse = Pulse(1.0, on_hung=stalls.append)
    pulse.on_stall = lambda: stalls.append("stall")
    pulse.start()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await asyncio.sleep(0.3)
    print(stalls, flush=True)

asyncio.run(main())
"""


@proves("P13")
def test_a_process_that_was_frozen_is_not_stalled() -> None:
    """Its loop has not moved for three timeouts, but the watching thread did not run either."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(FROZEN)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3.0)
        process.send_signal(signal.SIGCONT)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "[]\n"


@proves("P13")
async def test_time_in_which_no_processor_is_free_stops_the_beat_and_blames_no_function() -> None:
    hung: list[float] = []
    pulse = Pulse(TIMEOUT_S, on_hung=hung.append)
    for _ in range(20):
        pulse._look(TIMEOUT_S, TIMEOUT_S, moved=False)
    assert not pulse.is_moving
    assert (pulse.stall, hung) == (None, [])
    pulse._look(TIMEOUT_S / 2, 0.0, moved=False)
    assert pulse.stall is not None
    pulse._look(TIMEOUT_S / 2, 0.0, moved=False)
    assert len(hung) == 1


@proves("P13")
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel does not count it")
def test_waits_for_a_processor_are_those_that_the_kernel_counts() -> None:
    cores = os.sched_getaffinity(0)
    waits = ProcessorWaits(threading.get_native_id())
    try:
        os.sched_setaffinity(0, {min(cores)})
        # A neighbour on the same core, for as long as it takes.
        neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            waited_s = 0.0
            while waited_s < 0.2:
                waited_s += waits.since_last_s()
        finally:
            neighbour.kill()
            neighbour.wait()
    finally:
        os.sched_setaffinity(0, cores)
