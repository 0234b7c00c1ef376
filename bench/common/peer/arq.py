"""arq: two processes on uvloop, many jobs at once, results not kept, its queue polled each 10 ms instead of each 500.

It has no batch form: a hundred jobs are enqueued at a time.
"""
# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, arg-type, no-untyped-call"

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import uvloop
from arq.connections import RedisSettings, create_pool
from arq.worker import Worker, func

from peer import PROCESSES, Put, batches, command, redis_url
from peer.marks import mark

AT_ONCE, JOBS = 100, 1_000
FORM = f"{PROCESSES} processes, uvloop, max_jobs {JOBS}, poll_delay 10 ms, no results; enqueued {AT_ONCE} at a time"
SERVER, ENDS_WITHIN_S = "redis", 0.5


async def run(_context: dict[str, Any], number: int) -> None:
    mark(number)


def workers() -> list[list[str]]:
    return [command("peer.arq")] * PROCESSES


async def prepare() -> None:
    """Nothing."""


@asynccontextmanager
async def producer() -> AsyncIterator[Put]:
    pool = await create_pool(RedisSettings.from_dsn(redis_url()))
    try:

        async def put(numbers: Sequence[int]) -> None:
            for batch in batches(numbers, AT_ONCE):
                await asyncio.gather(*(pool.enqueue_job("mark", number) for number in batch))

        yield put
    finally:
        await pool.aclose()


async def unfinished() -> int:
    return 0


async def work() -> None:
    worker = Worker(
        [func(run, name="mark", keep_result=0)],
        redis_settings=RedisSettings.from_dsn(redis_url()),
        max_jobs=JOBS,
        poll_delay=0.01,
        keep_result=0,
        handle_signals=False,
    )
    await worker.async_run()


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    uvloop.run(work())
