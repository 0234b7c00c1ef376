"""ondot as one of the peers: a scheduler and a worker of two processes; jobs are submitted 1,000 at a time.

They are submitted by the function that the API and the caller's own transaction use, with its wake-ups; the other
producers are libraries in the benchmark's process, too. A job has ended when it is in history.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg
from msgspec import Raw

from ondot import Ondot
from ondot.flow.dispatch import Dispatcher
from ondot.flow.submit import submit
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.job import JobSpec
from ondot.model.schedule import Schedule
from ondot.model.target import FunctionTarget
from ondot.settings import load_settings
from ondot.store.database import open_database
from ondot.transports.postgres import PostgresTransport
from peer import PROCESSES, Put, batches, command, database_url
from peer.marks import mark

SLOTS = 1_000
FORM = f"scheduler, {PROCESSES} worker processes × {SLOTS} slots; submitted by 1,000"
# A killed scheduler keeps its partitions for seconds, and the next one waits for them.
SERVER, ENDS_WITHIN_S = "postgres", 10.0

app = Ondot()
TARGET = FunctionTarget(name="mark")


@app.job(name="mark")
async def run(number: int) -> None:
    mark(number)


def workers() -> list[list[str]]:
    worker = ["worker", "--processes", str(PROCESSES), "--slots", str(SLOTS), "peer.ondot:app"]
    return [command("ondot", "scheduler"), command("ondot", *worker)]


async def prepare() -> None:
    """Nothing: the fleet's database is migrated."""


@asynccontextmanager
async def producer() -> AsyncIterator[Put]:
    async with _submitter() as put:
        yield put


async def submit_all(numbers: Sequence[int], schedule: Schedule) -> None:
    """Jobs with a schedule, for the herd."""
    async with _submitter(schedule) as put:
        await put(numbers)


@asynccontextmanager
async def _submitter(schedule: Schedule | None = None) -> AsyncIterator[Put]:
    database = await open_database(load_settings(database_url=database_url()))
    await database.read_clock()
    dispatcher = Dispatcher(PostgresTransport(database))
    waking = asyncio.create_task(dispatcher.run())
    try:

        async def put(numbers: Sequence[int]) -> None:
            for batch in batches(numbers):
                specs = [
                    JobSpec(name="mark", target=TARGET, schedule=schedule, payload=Raw(b'{"number":%d}' % number))
                    for number in batch
                ]
                await submit(database, dispatcher, DEFAULT_TENANT, specs, render=lambda _accepted: "")

        yield put
    finally:
        waking.cancel()
        await database.close()


async def unfinished() -> int:
    connection = await asyncpg.connect(database_url())
    try:
        return int(await connection.fetchval("SELECT count(*) FROM ondot.execution"))
    finally:
        await connection.close()
