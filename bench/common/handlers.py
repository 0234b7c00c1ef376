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
async def fail() -> None:
    raise RuntimeError("it broke")


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


# A fan by hand on plain jobs (workflows.py): its table is `by_hand (run text PRIMARY KEY, left_over integer)`.


@app.job
async def spread(ctx: Context, run: str, count: int) -> None:
    async with ctx.transaction() as connection:
        await connection.execute("INSERT INTO by_hand VALUES ($1, $2)", run, count)
        await connection.execute(
            "SELECT ondot.enqueue('count_down', jsonb_build_object('run', $1::text)) FROM generate_series(1, $2::int)",
            run,
            count,
        )


@app.job
async def count_down(ctx: Context, run: str) -> None:
    """The one that reaches zero enqueues the last."""
    async with ctx.transaction() as connection:
        left_over = await connection.fetchval(
            "UPDATE by_hand SET left_over = left_over - 1 WHERE run = $1 RETURNING left_over", run
        )
        if left_over == 0:
            await connection.execute("SELECT ondot.enqueue('join_by_hand', jsonb_build_object('run', $1::text))", run)


@app.job
async def join_by_hand(ctx: Context, run: str) -> None:
    async with ctx.transaction() as connection:
        await connection.execute("UPDATE by_hand SET left_over = -1 WHERE run = $1", run)
