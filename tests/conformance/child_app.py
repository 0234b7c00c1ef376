"""What the conformance suite calls in a child process."""

import asyncio
from typing import Any

import msgspec

from ondot import Context, Ondot

app = Ondot()


@app.job
async def good(ctx: Context, **arguments: Any) -> dict[str, str]:
    return {
        "execution": str(ctx.execution_id),
        "job": str(ctx.job_id),
        "attempt": str(ctx.attempt),
        "fencing_token": str(ctx.fencing_token),
        "fire_at": ctx.fire_at.isoformat().replace("+00:00", "Z"),
        "payload": msgspec.json.encode(arguments).decode(),
        "of": f"{ctx.run_id} {ctx.step} {ctx.item} {ctx.hops}",
    }


@app.job
async def bad() -> None:
    raise OSError("the disk is full")


@app.job
async def complain() -> None:
    raise ValueError("a\0b\udcff")


@app.job
async def hang(ctx: Context) -> None:
    """With a program, whose end can be seen from outside."""
    program = await asyncio.create_subprocess_exec("sleep", "1000")
    ctx.log(f"began {program.pid}")
    try:
        await program.wait()
    finally:
        program.kill()
