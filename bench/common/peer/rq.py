"""RQ: a pool of two workers that do not fork for each job, no results; enqueued 1,000 at a time in a pipeline."""
# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, arg-type, no-untyped-call"

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from redis import Redis
from rq import Queue

from peer import PROCESSES, Put, batches, command, redis_url

FORM = f"worker-pool of {PROCESSES} SimpleWorkers, no results; enqueue_many by 1,000"
SERVER, ENDS_WITHIN_S = "redis", 0.5


def workers() -> list[list[str]]:
    flags = ["--num-workers", str(PROCESSES), "--worker-class", "rq.worker.SimpleWorker", "--quiet"]
    return [command("rq.cli", "worker-pool", "default", "--url", redis_url(), *flags)]


async def prepare() -> None:
    """Nothing."""


@asynccontextmanager
async def producer() -> AsyncIterator[Put]:
    queue = Queue(connection=Redis.from_url(redis_url()))

    async def put(numbers: Sequence[int]) -> None:
        for batch in batches(numbers):
            queue.enqueue_many(
                [queue.prepare_data("peer.marks.mark", (number,), result_ttl=0, description="mark") for number in batch]
            )

    yield put


async def unfinished() -> int:
    return 0
