"""The functions that benchmarks run: `ondot worker handlers:app` with this directory on the path."""

import asyncio
import os
import time

from ondot import Context, Ondot

app = Ondot()


@app.job
async def nothing() -> None:
    """Do nothing."""


@app.job
async def wait(seconds: float) -> None:
    await asyncio.sleep(seconds)


@app.job
async def now() -> float:
    """When it was called, by the clock of its machine."""
    return time.time()


@app.job
async def linger(ctx: Context, seconds: float) -> None:
    """Waits; if it is cancelled, it writes the instant of the CancelledError to a file, by the machine's own clock."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        cancelled_s = time.monotonic()
        with open(f"cancelled-{os.getpid()}", "a", encoding="ascii") as file:  # noqa: PTH123 - the shortest way to a line
            file.write(f"{ctx.execution_id} {cancelled_s}\n")
        raise
