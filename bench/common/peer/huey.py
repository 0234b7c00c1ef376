"""Huey on a Redis list with blocking pops: two consumers of several threads, no results.

It has no batch form: tasks are enqueued one by one.
"""
# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, arg-type, no-untyped-call"

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from huey import RedisHuey

from peer import PROCESSES, Put, command, redis_url
from peer.marks import mark

THREADS = 16
FORM = f"{PROCESSES} consumers × {THREADS} threads, no results; enqueued singly"
SERVER, ENDS_WITHIN_S = "redis", 0.5

app = RedisHuey("peer", url=redis_url(), results=False)


@app.task(name="mark")
def run(number: int) -> None:
    mark(number)


def workers() -> list[list[str]]:
    flags = ["--workers", str(THREADS), "--worker-type", "thread", "--no-periodic", "--quiet"]
    return [command("huey.bin.huey_consumer", "peer.huey.app", *flags)] * PROCESSES


async def prepare() -> None:
    """Nothing."""


@asynccontextmanager
async def producer() -> AsyncIterator[Put]:
    async def put(numbers: Sequence[int]) -> None:
        for number in numbers:
            run(number)

    yield put


async def unfinished() -> int:
    return 0
