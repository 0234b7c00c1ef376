"""The functions that benchmarks run: `ondot worker handlers:app` with this directory on the path."""

import asyncio

from ondot import Ondot

app = Ondot()


@app.job
async def nothing() -> None:
    """The least that can be done."""


@app.job
async def wait(seconds: float) -> None:
    await asyncio.sleep(seconds)
