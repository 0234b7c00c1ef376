"""Procrastinate: two processes on uvloop, many jobs at once in each, woken by LISTEN; deferred 1,000 at a time.

Jobs that succeeded are deleted, which is faster than keeping them.
"""
# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, arg-type, no-untyped-call"

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg
import uvloop
from procrastinate import App, PsycopgConnector

from peer import PROCESSES, Put, batches, command, database_url
from peer.marks import mark

CONCURRENCY = 20
FORM = f"{PROCESSES} processes × concurrency {CONCURRENCY}, uvloop, psycopg; ended jobs deleted; deferred by 1,000"
SERVER, ENDS_WITHIN_S = "postgres", 0.5

app = App(connector=PsycopgConnector(conninfo=database_url(), min_size=2, max_size=CONCURRENCY))


@app.task(name="mark")
async def run(number: int) -> None:
    mark(number)


def workers() -> list[list[str]]:
    return [command("peer.procrastinate")] * PROCESSES


async def prepare() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


@asynccontextmanager
async def producer() -> AsyncIterator[Put]:
    async with app.open_async():

        async def put(numbers: Sequence[int]) -> None:
            for batch in batches(numbers):
                await run.batch_defer_async(*({"number": number} for number in batch))

        yield put


async def unfinished() -> int:
    connection = await asyncpg.connect(database_url())
    try:
        return int(
            await connection.fetchval("SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')")
        )
    finally:
        await connection.close()


async def work() -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=CONCURRENCY, delete_jobs="successful")


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    uvloop.run(work())
