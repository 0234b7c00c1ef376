"""A process that submits one-time jobs due now, in batches, by the code that the API runs (`flow.submit`), with the
transport of ONDOT_TRANSPORT.

    python submitter.py <database url> <jobs not ended, at most>        the spec on the first line of stdin

A closed loop: one job of each batch is watched, and the backlog limits the batches in flight, so that the rate is what
the rest can take. Two submits are in flight, as an API has many. When stdin ends it stops, and prints how many jobs
were acknowledged.
"""

import asyncio
import sys

import uvloop

from ondot.app import open_transports
from ondot.flow.dispatch import Dispatcher
from ondot.flow.new_jobs import Accepted
from ondot.flow.submit import submit
from ondot.model.ids import DEFAULT_TENANT, JobId
from ondot.model.job import JobSpec, decode_spec
from ondot.settings import load_settings
from ondot.store.database import Database, open_database

BATCH = 1_000
IN_FLIGHT = 2
LOOK_EVERY_S = 0.02


class Submitter:
    def __init__(self, database: Database, dispatcher: Dispatcher, spec: JobSpec, most: int) -> None:
        self._database, self._dispatcher = database, dispatcher
        self._batch = min(BATCH, most // 2)
        self._specs = [spec] * self._batch
        self._room = asyncio.Semaphore(most // self._batch)
        self._watched: set[JobId] = set()
        self._stopping = False
        self.submitted = 0

    async def submit(self) -> None:
        """Submit batch after batch, until `stop`."""
        while True:
            await self._room.acquire()
            if self._stopping:
                return
            last: list[JobId] = []

            def answer(accepted: list[Accepted], last: list[JobId] = last) -> str:
                last.append(accepted[-1].id)
                return ""

            await submit(self._database, self._dispatcher, DEFAULT_TENANT, self._specs, render=answer)
            self.submitted += self._batch
            self._watched.update(last)

    def stop(self) -> None:
        self._stopping = True
        for _ in range(IN_FLIGHT):
            self._room.release()

    async def look(self) -> None:
        """Find the batches that have ended: their watched job has no live execution."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            watched = list(self._watched)
            async with self._database.connection() as connection:
                rows = await connection.fetch(
                    "SELECT w.id FROM unnest($1::uuid[]) AS w(id) WHERE NOT EXISTS (SELECT FROM ondot.execution e"
                    " WHERE e.job_id = w.id AND e.origin IN ('fire', 'backfill'))",
                    watched,
                )
            for row in rows:
                self._watched.remove(row["id"])
                self._room.release()


async def main(url: str, most: int) -> None:
    spec = decode_spec(sys.stdin.readline())
    database = await open_database(load_settings(database_url=url))
    await database.read_clock()
    async with open_transports(database) as transports, asyncio.TaskGroup() as group:
        dispatcher = Dispatcher(transports)
        submitter = Submitter(database, dispatcher, spec, most)
        others = [group.create_task(submitter.look()), group.create_task(dispatcher.run())]
        submitting = [group.create_task(submitter.submit()) for _ in range(IN_FLIGHT)]
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
        await ended.wait()
        submitter.stop()
        await asyncio.wait(submitting)
        for task in others:
            task.cancel()
    print(submitter.submitted, flush=True)
    await database.close()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
