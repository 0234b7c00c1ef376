"""SAQ on Redis: two processes on uvloop, many jobs at once, results not kept.

It has no batch form that is faster: a hundred jobs are enqueued at a time.
"""
# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, arg-type, no-untyped-call"

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import uvloop
from saq import Queue, Worker

from peer import PROCESSES, Put, batches, command, redis_url
from peer.marks import mark

AT_ONCE, CONCURRENCY = 100, 20
FORM = f"{PROCESSES} processes, uvloop, hiredis, concurrency {CONCURRENCY}, no results; enqueued {AT_ONCE} at a time"
SERVER, ENDS_WITHIN_S = "redis", 0.5


async def run(_context: Any, *, number: int) -> None:
    mark(number)


def workers() -> list[list[str]]:
    return [command("peer.saq")] * PROCESSES


async def prepare() -> None:
    """Nothing."""


@asynccontextmanager
async def producer() -> AsyncIterator[Put]:
    queue = Queue.from_url(redis_url(), max_concurrent_ops=AT_ONCE)
    await queue.connect()
    try:

        async def put(numbers: Sequence[int]) -> None:
            for batch in batches(numbers, AT_ONCE):
                await asyncio.gather(*(queue.enqueue("mark", number=number, ttl=-1) for number in batch))

        yield put
    finally:
        await queue.disconnect()


async def unfinished() -> int:
    return 0


async def work() -> None:
    queue = Queue.from_url(redis_url())
    await queue.connect()
    await Worker(queue, [("mark", run)], concurrency=CONCURRENCY).start()


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    uvloop.run(work())
