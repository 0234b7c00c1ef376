"""Taskiq on a Redis list: two processes on uvloop, a thousand tasks at once in each, no results and no parsing.

It has no batch form: a hundred tasks are sent at a time.
"""
# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, arg-type, no-untyped-call"

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from taskiq_redis import ListQueueBroker

from peer import PROCESSES, Put, batches, command, redis_url
from peer.marks import mark

AT_ONCE, TASKS = 100, 1_000
FORM = f"Redis list, {PROCESSES} processes, uvloop, {TASKS} tasks at once each, no results; sent {AT_ONCE} at a time"
SERVER, ENDS_WITHIN_S = "redis", 0.5

broker = ListQueueBroker(redis_url(), max_connection_pool_size=AT_ONCE)


@broker.task(task_name="mark")
async def run(number: int) -> None:
    mark(number)


def workers() -> list[list[str]]:
    flags = ["--workers", str(PROCESSES), "--max-async-tasks", str(TASKS), "--no-parse", "--log-level", "ERROR"]
    return [command("taskiq", "worker", "peer.taskiq:broker", *flags)]


async def prepare() -> None:
    """Nothing."""


@asynccontextmanager
async def producer() -> AsyncIterator[Put]:
    await broker.startup()
    try:

        async def put(numbers: Sequence[int]) -> None:
            for batch in batches(numbers, AT_ONCE):
                await asyncio.gather(*(run.kiq(number) for number in batch))

        yield put
    finally:
        await broker.shutdown()


async def unfinished() -> int:
    return 0
