"""A client inside a benchmark: the flow that the API calls, on its own connections, with real wake-ups."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from structlog.testing import capture_logs

from ondot.app import open_transports
from ondot.flow.dispatch import Dispatcher
from ondot.flow.new_jobs import Accepted
from ondot.flow.submit import submit
from ondot.model.ids import DEFAULT_TENANT, JobId, TenantNo
from ondot.model.job import JobSpec
from ondot.settings import load_settings
from ondot.store.database import Database, open_database


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
async def client(url: str, settings: Mapping[str, str] | None = None) -> AsyncIterator[Client]:
    """`settings`: of the fleet, as environment."""
    given = {name.removeprefix("ONDOT_").lower(): value for name, value in (settings or {}).items()}
    with capture_logs():
        database = await open_database(load_settings(database_url=url, **given))
    try:
        async with open_transports(database) as transports:
            dispatcher = Dispatcher(transports)
            waking = asyncio.create_task(dispatcher.run())
            try:
                await database.read_clock()
                yield Client(database, dispatcher)
            finally:
                waking.cancel()
                await asyncio.gather(waking, return_exceptions=True)
    finally:
        await database.close()
