"""A client inside a benchmark: the flow that the API calls, on its own connections, with real wake-ups."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from structlog.testing import capture_logs

from ondot.flow.dispatch import Dispatcher
from ondot.flow.new_jobs import Accepted
from ondot.flow.submit import submit
from ondot.model.ids import DEFAULT_TENANT, JobId, TenantNo
from ondot.model.job import JobSpec
from ondot.settings import load_settings
from ondot.store.database import Database, open_database
from ondot.transports.postgres import PostgresTransport


@dataclass(frozen=True, slots=True)
class Client:
    database: Database
    dispatcher: Dispatcher

    async def submit(self, spec: JobSpec, count: int, tenant_no: TenantNo = DEFAULT_TENANT) -> list[JobId]:
        """A batch of the same job, acknowledged after COMMIT."""
        ids: list[JobId] = []

        def answer(accepted: list[Accepted]) -> str:
            ids.extend(each.id for each in accepted)
            return ""

        await submit(self.database, self.dispatcher, tenant_no, [spec] * count, render=answer)
        return ids


@asynccontextmanager
async def client(url: str) -> AsyncIterator[Client]:
    with capture_logs():
        database = await open_database(load_settings(database_url=url))
    dispatcher = Dispatcher(PostgresTransport(database))
    waking = asyncio.create_task(dispatcher.run())
    try:
        await database.read_clock()
        yield Client(database, dispatcher)
    finally:
        waking.cancel()
        await asyncio.gather(waking, return_exceptions=True)
        await database.close()
