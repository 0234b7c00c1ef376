"""PgQueuer: two processes, each with several drains on their own connections, on uvloop, as in its own benchmark.

Batches are larger than its benchmark's 10, because that is faster. Jobs are enqueued 1,000 at a time. Ended jobs are
deleted from its queue and written to its log, in the same durable transaction: that is its history.
"""
# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, arg-type, no-untyped-call"

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from peer import PROCESSES, Put, batches, command, database_url
from peer.marks import mark

DRAINS, DRAIN_BATCH = 2, 200
FORM = f"{PROCESSES} processes × {DRAINS} drains × batches of {DRAIN_BATCH}, uvloop, asyncpg; enqueued by 1,000"
SERVER, ENDS_WITHIN_S = "postgres", 0.5


def workers() -> list[list[str]]:
    return [command("peer.pgqueuer")] * PROCESSES


async def prepare() -> None:
    async with _connected() as connection:
        await Queries(AsyncpgDriver(connection)).install()


@asynccontextmanager
async def producer() -> AsyncIterator[Put]:
    async with _connected() as connection:
        queries = Queries(AsyncpgDriver(connection))

        async def put(numbers: Sequence[int]) -> None:
            for batch in batches(numbers):
                size = len(batch)
                await queries.enqueue(["mark"] * size, [b"%d" % number for number in batch], [0] * size)

        yield put


async def unfinished() -> int:
    async with _connected() as connection:
        return int(await connection.fetchval("SELECT count(*) FROM pgqueuer"))


@asynccontextmanager
async def _connected() -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database_url())
    try:
        yield connection
    finally:
        await connection.close()


async def work() -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(DRAINS):
            drain = PgQueuer(AsyncpgDriver(await asyncpg.connect(database_url())))

            @drain.entrypoint("mark")
            async def run(job: Job) -> None:
                mark(int(job.payload or b"0"))

            group.create_task(drain.run(batch_size=DRAIN_BATCH))


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    uvloop.run(work())
