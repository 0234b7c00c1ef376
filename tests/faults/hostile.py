"""Functions as they should not be, for real workers to run: `ondot worker tests.faults.hostile:app`.

They hang, swallow their cancellation, fork, leak, flood, die by signals, fail at random, commit and go on. What a test
must know of them they write to the file that `ONDOT_TEST_NOTES` names, one line at a time, so that it is there however
their process ends. What is random is a hash of the execution's id and its attempt: the same in every run of an id.
"""
# ruff: noqa: T201 - printing and blocking is what they are for

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from hashlib import sha256
from typing import Any
from uuid import UUID

from ondot import Context, Ondot

app = Ondot()

_KEPT: list[Any] = []


def note(ctx: Context, what: str, **facts: object) -> None:
    """One line, in one write: nobody else's comes between, and a kill leaves it whole or not there."""
    line = {
        "what": what,
        "execution_id": str(ctx.execution_id),
        "attempt": ctx.attempt,
        "token": ctx.fencing_token,
        "pid": os.getpid(),
        "at_s": time.time(),
        **facts,
    }
    file = os.open(os.environ["ONDOT_TEST_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


def dice(execution_id: UUID | str, attempt: int) -> int:
    """From 0 to 99, by the id and the attempt."""
    return int.from_bytes(sha256(f"{execution_id}/{attempt}".encode()).digest()[:4]) % 100


# Good neighbours -----------------------------------------------------------------------------------------------------


@app.job
async def naps(ctx: Context, seconds: float = 0.2) -> int:
    await asyncio.sleep(seconds)
    return ctx.attempt


@app.job
def naps_in_a_thread(ctx: Context, seconds: float = 0.2) -> int:
    time.sleep(seconds)
    return ctx.attempt


@app.job
async def works_together(ctx: Context, seconds: float = 0.5) -> None:
    """Tells that it runs before it naps, so that a test can wait until many are under way."""
    note(ctx, "begun")
    await asyncio.sleep(seconds)


@app.job
async def fails_at_random(ctx: Context, percent: int = 40) -> str:
    await asyncio.sleep(0.02)
    if dice(ctx.execution_id, ctx.attempt) < percent:
        raise ValueError(f"the dice of attempt {ctx.attempt} are against it")
    return "lucky"


@app.job
async def goes_on(ctx: Context, steps: int = 5, seconds: float = 0.05) -> int:
    """Checkpoints after each step; an attempt after a crash begins where the last one is known to have been."""
    first = ctx.checkpoint["step"] if ctx.checkpoint else 0
    for step in range(first, steps):
        await asyncio.sleep(seconds)
        ctx.heartbeat(checkpoint={"step": step + 1})
        ctx.progress((step + 1) / steps, f"step {step + 1}")
    return first


@app.job
async def transacts(ctx: Context, before_s: float = 0.0, inside_s: float = 0.0, after_s: float = 0.0) -> None:
    """An effect in ondot's database, committed together with the success."""
    await asyncio.sleep(before_s)
    async with ctx.transaction() as connection:
        await connection.execute(
            "INSERT INTO public.effect (execution_id, attempt) VALUES ($1, $2)", ctx.execution_id, ctx.attempt
        )
        await asyncio.sleep(inside_s)
    await asyncio.sleep(after_s)


# Those that will not end ---------------------------------------------------------------------------------------------


@app.job
def hangs(ctx: Context) -> None:
    note(ctx, "begun")
    threading.Event().wait()


@app.job
async def blocks_its_loop(ctx: Context, seconds: float = 3600.0) -> int:
    """What everybody writes once: an `async` function that waits without `await`."""

    async def of_a_part() -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - that is what it is for

    note(ctx, "begun")
    await asyncio.gather(asyncio.sleep(0), of_a_part())
    return ctx.attempt


@app.job
async def swallows_its_cancellation(ctx: Context) -> None:
    note(ctx, "begun")
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            note(ctx, "heard")


@app.job
async def heeds(ctx: Context) -> None:
    note(ctx, "begun")
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        note(ctx, "heard")
        raise


@app.job
def heeds_in_a_thread(ctx: Context) -> None:
    note(ctx, "begun")
    while not ctx.cancelled:
        time.sleep(0.02)
    note(ctx, "heard")


# Those that die ------------------------------------------------------------------------------------------------------


@app.job
async def kills_its_worker(ctx: Context, number: int = signal.SIGKILL, after_s: float = 0.0) -> None:
    note(ctx, "begun")
    await asyncio.sleep(after_s)
    os.kill(os.getpid(), number)
    await asyncio.sleep(3600)


@app.job
def exits_its_worker(ctx: Context, code: int = 3) -> None:
    note(ctx, "begun")
    os._exit(code)


# Those that leave something behind -----------------------------------------------------------------------------------


@app.job
def forks(ctx: Context) -> int:
    """The copy of the worker comes back from the function too, and must not go on as a second worker."""
    pid = os.fork()
    if not pid:
        note(ctx, "copy")
        return 0
    os.waitpid(pid, 0)
    return 1


@app.job
def begets(ctx: Context) -> None:
    """A child and its child, which outlive the function; the test ends them by the ids in the notes."""
    grandchild = "import subprocess, sys; print(subprocess.Popen(['sleep', '30']).pid, flush=True)"
    child = subprocess.Popen([sys.executable, "-c", grandchild], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    note(ctx, "begot", pids=[int(child.stdout.readline())])
    child.wait()


@app.job
def leaks(ctx: Context, megabytes: int = 4, files: int = 20) -> None:
    _KEPT.append(bytearray(megabytes * 1024 * 1024))
    _KEPT.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(files))


@app.job
async def floods(ctx: Context, lines: int = 200_000) -> None:
    for number in range(lines):
        print(f"line {number} of a flood that nobody will ever read to its end")
        if number % 1_000 == 0:
            await asyncio.sleep(0)
