"""Dramatiq on Redis: two processes of eight threads, its own defaults. It has no batch form: sent one by one."""
# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, arg-type, no-untyped-call"

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from peer import PROCESSES, Put, command, redis_url
from peer.marks import mark

THREADS = 8
FORM = f"{PROCESSES} processes × {THREADS} threads; sent singly"
SERVER, ENDS_WITHIN_S = "redis", 0.5

broker = RedisBroker(url=redis_url())
dramatiq.set_broker(broker)


@dramatiq.actor(actor_name="mark", max_retries=0)
def run(number: int) -> None:
    mark(number)


def workers() -> list[list[str]]:
    return [command("dramatiq", "peer.dramatiq", "--processes", str(PROCESSES), "--threads", str(THREADS))]


async def prepare() -> None:
    """Nothing."""


@asynccontextmanager
async def producer() -> AsyncIterator[Put]:
    async def put(numbers: Sequence[int]) -> None:
        for number in numbers:
            run.send(number)

    yield put


async def unfinished() -> int:
    return 0
