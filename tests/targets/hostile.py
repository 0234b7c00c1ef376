"""Functions as they should not be, for child processes to run: `tests.targets.hostile:app`."""
# ruff: noqa: T201, ASYNC221 - printing and blocking is what they are for

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ondot import Context, Ondot, RetryAt

app = Ondot()


@app.job
async def fine(ctx: Context, n: int = 0) -> dict[str, Any]:
    return {"n": n, "pid": os.getpid(), "attempt": ctx.attempt, "fire_at": ctx.fire_at, "checkpoint": ctx.checkpoint}


@app.job(secrets=["stripe"])
async def confides(ctx: Context) -> dict[str, Any]:
    return {"pid": os.getpid(), "value": ctx.secret("stripe"), "environ": "sk_live" in str(os.environ)}


@app.job
async def speaks(ctx: Context) -> None:
    print("printed")
    print("half a ", end="")
    print("line", file=sys.stdout)
    await asyncio.to_thread(print, "from a thread")
    print("oops", file=sys.stderr)
    ctx.log("logged", n=1)
    ctx.progress(0.5, "half")
    ctx.heartbeat(checkpoint={"row": 7})
    os.write(1, b"around everything\n")
    subprocess.run(["echo", "by a program"], check=True)


@app.job
def logs_and_dies(ctx: Context) -> None:
    ctx.heartbeat(checkpoint=[1])
    ctx.log("about to die")
    time.sleep(0.1)
    os._exit(3)


@app.job
async def exits(code: int = 3) -> None:
    os._exit(code)


@app.job
async def exits_politely() -> None:
    sys.exit(4)


@app.job
def kills_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.job
async def segfaults() -> None:
    ctypes.string_at(0)


@app.job
async def waits(ctx: Context) -> str:
    ctx.log(f"waiting {os.getpid()}")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        ctx.log("was cancelled")
    return "tidied"


@app.job
def works_until_cancelled(ctx: Context) -> int:
    ctx.log("working")
    steps = 0
    while not ctx.cancelled:
        steps += 1
        time.sleep(0.005)
    return steps


@app.job
def sleeps_for_ever(ctx: Context) -> None:
    ctx.log(f"sleeping {os.getpid()}")
    threading.Event().wait()


@app.job
async def holds_up_the_loop(ctx: Context) -> None:
    ctx.log(f"holding {os.getpid()}")
    threading.Event().wait()


@app.job
def begins_a_daemon(ctx: Context) -> None:
    daemon = subprocess.Popen(["setsid", "sleep", "1000"], stdin=subprocess.DEVNULL)
    ctx.log(f"daemon {daemon.pid}")
    threading.Event().wait()


@app.job
def forks() -> str:
    """Comes back twice."""
    return "child" if os.fork() == 0 else "parent"


@app.job
def floods(megabytes: int = 100) -> str:
    block = ("x" * 99 + "\n") * 10_000
    for _ in range(megabytes):
        print(block, end="")
    os.write(1, b"done\n")
    return "flooded"


@app.job
def returns(size: int) -> str:
    return "x" * size


@app.job
def returns_no_json() -> object:
    return object()


class Odd(BaseException):
    pass


@app.job
async def waits_for_tomorrow() -> None:
    raise RetryAt(datetime(2031, 3, 4, 12, tzinfo=UTC), "tomorrow")


@app.job
async def raises_oddly() -> None:
    raise Odd("strange")


@app.job
def recurses(n: int = 0) -> int:
    recurse = recurses.function
    return recurse(n + 1) + 1


@app.job
def talks_nonsense() -> None:
    """Writes into every pipe it finds open: their numbers are those of the worker, and may be large."""
    for fd in sorted(int(entry.name) for entry in Path("/dev/fd").iterdir()):
        if fd < 3:
            continue
        try:
            os.write(fd, b"nonsense\n")
        except OSError:
            continue
    threading.Event().wait()


@app.job
async def closes_everything() -> None:
    os.closerange(3, 1024)
    threading.Event().wait()


@app.job
async def wants_a_transaction(ctx: Context) -> None:
    async with ctx.transaction():
        pass


@app.job
def shows_its_variables() -> dict[str, str]:
    """What it has, and what others can read of it."""
    try:
        block = Path("/proc/self/environ").read_bytes().decode(errors="replace")
    except PermissionError:
        block = ""
    return {"has": os.environ.get("STRIPE_KEY", ""), "shown": block}
