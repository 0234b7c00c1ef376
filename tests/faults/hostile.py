"""Badly written functions for real workers to run: `ondot worker tests.faults.hostile:app`.

They hang, swallow their cancellation, fork, leak, flood, die by signals, fail at random, commit and go on. They write
notes for a test to the file that `ONDOT_TEST_NOTES` names, one line at a time, so that a note survives however their
process ends. Random choices are a hash of the execution's id and its attempt: the same in every run of an id.
"""
# ruff: noqa: T201 - they print and block on purpose

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
    """One line in one write: lines do not mix, and a kill leaves the line whole or leaves none."""
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


# Well-behaved --------------------------------------------------------------------------------------------------------


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
    """Writes a note before it sleeps, so that a test can wait until many run."""
    note(ctx, "started")
    await asyncio.sleep(seconds)


@app.job
async def fails_at_random(ctx: Context, percent: int = 40) -> str:
    await asyncio.sleep(0.02)
    if dice(ctx.execution_id, ctx.attempt) < percent:
        raise ValueError(f"attempt {ctx.attempt} fails by its dice")
    return "lucky"


@app.job
async def goes_on(ctx: Context, steps: int = 5, seconds: float = 0.05) -> int:
    """Checkpoints after each step; an attempt after a crash goes on from the last known checkpoint."""
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


# Never end -----------------------------------------------------------------------------------------------------------


@app.job
def hangs(ctx: Context) -> None:
    note(ctx, "started")
    threading.Event().wait()


@app.job
async def blocks_its_loop(ctx: Context, seconds: float = 3600.0) -> int:
    """A common mistake: an `async` function that blocks without `await`."""

    async def of_a_part() -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - it blocks on purpose

    note(ctx, "started")
    await asyncio.gather(asyncio.sleep(0), of_a_part())
    return ctx.attempt


@app.job
async def swallows_its_cancellation(ctx: Context) -> None:
    note(ctx, "started")
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            note(ctx, "cancelled")


@app.job
async def heeds(ctx: Context) -> None:
    note(ctx, "started")
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        note(ctx, "cancelled")
        raise


@app.job
def heeds_in_a_thread(ctx: Context) -> None:
    note(ctx, "started")
    while not ctx.cancelled:
        time.sleep(0.02)
    note(ctx, "cancelled")


# Die -----------------------------------------------------------------------------------------------------------------


@app.job
async def kills_its_worker(ctx: Context, number: int = signal.SIGKILL, after_s: float = 0.0) -> None:
    note(ctx, "started")
    await asyncio.sleep(after_s)
    os.kill(os.getpid(), number)
    await asyncio.sleep(3600)


@app.job
def exits_its_worker(ctx: Context, code: int = 3) -> None:
    note(ctx, "started")
    os._exit(code)


# Leave something behind ----------------------------------------------------------------------------------------------


@app.job
def forks(ctx: Context) -> int:
    """The forked copy returns from the function too, and must not go on as a second worker."""
    pid = os.fork()
    if not pid:
        note(ctx, "copy")
        return 0
    os.waitpid(pid, 0)
    return 1


@app.job
def starts_children(ctx: Context) -> None:
    """A child and a grandchild that outlive the function; the test ends them by the ids in the notes."""
    grandchild = "import subprocess, sys; print(subprocess.Popen(['sleep', '30']).pid, flush=True)"
    child = subprocess.Popen([sys.executable, "-c", grandchild], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    note(ctx, "child", pids=[int(child.stdout.readline())])
    child.wait()


@app.job
def leaks(ctx: Context, megabytes: int = 4, files: int = 20) -> None:
    _KEPT.append(bytearray(megabytes * 1024 * 1024))
    _KEPT.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(files))


@app.job
async def floods(ctx: Context, lines: int = 200_000) -> None:
    for number in range(lines):
        print(f"line {number} of a flood that is too long to read")
        if number % 1_000 == 0:
            await asyncio.sleep(0)
