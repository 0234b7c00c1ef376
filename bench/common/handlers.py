"""The functions that benchmarks run: `ondot worker handlers:app` with this directory on the path."""

import asyncio
import os
import time

from ondot import Context, Ondot

app = Ondot()


@app.job
async def nothing() -> None:
    """The least that can be done."""


@app.job
async def wait(seconds: float) -> None:
    await asyncio.sleep(seconds)


@app.job
async def now() -> float:
    """When it was called, by the clock of its machine."""
    return time.time()


@app.job
async def linger(ctx: Context, seconds: float) -> None:
    """Waits, and if it is asked to end writes down the instant at which it heard of it, by the machine's own clock."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        heard_s = time.monotonic()
        with open(f"heard-{os.getpid()}", "a", encoding="ascii") as heard:  # noqa: PTH123 - the shortest way to a line
            heard.write(f"{ctx.execution_id} {heard_s}\n")
        raise
