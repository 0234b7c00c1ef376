"""Celery: one node with two prefork children that prefetch, without results, events, gossip, mingle and heartbeat.

Celery has no batch form: tasks are sent one by one through one producer.
"""
# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, arg-type, no-untyped-call"

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from celery import Celery

from peer import PROCESSES, Put, command, redis_url
from peer.marks import mark

PREFETCH = 128
FORM = f"prefork × {PROCESSES}, prefetch {PREFETCH} each, ignore_result, no gossip, mingle, heartbeat; sent singly"
SERVER, ENDS_WITHIN_S = "redis", 0.5

app = Celery("peer.celery", broker=redis_url())
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=PREFETCH, worker_enable_remote_control=False)


@app.task(name="mark")
def run(number: int) -> None:
    mark(number)


def workers() -> list[list[str]]:
    flags = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "ERROR"]
    return [command("celery", "-A", "peer.celery", "worker", "--concurrency", str(PROCESSES), *flags)]


async def prepare() -> None:
    """Nothing."""


@asynccontextmanager
async def producer() -> AsyncIterator[Put]:
    with app.producer_pool.acquire(block=True) as sender:

        async def put(numbers: Sequence[int]) -> None:
            for number in numbers:
                run.apply_async((number,), producer=sender)

        yield put


async def unfinished() -> int:
    return 0
